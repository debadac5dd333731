"""Importing the package brings in nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "typer", "rich", "safetensors", "pandas", "scipy"}
PROBE = """
import sys
before = set(sys.modules)
import consilience
print(*(set(sys.modules) - before))
"""


@pytest.mark.integration
def test_import_is_light():
    found = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
    )
    imported = set(found.stdout.split())
    assert "consilience.consensus" in imported
    assert not HEAVY & imported
