"""Importing the package is quick and brings in nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "typer", "rich", "safetensors", "scipy.optimize"}
PROBE = """
import sys, time
before = set(sys.modules)
started = time.perf_counter()
import consilience
took = time.perf_counter() - started
print(took, *(set(sys.modules) - before))
"""


@pytest.mark.integration
def test_import_is_light():
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(3)
    ]
    imported = set(runs[0][1:])
    assert "consilience.consensus" in imported
    assert not HEAVY & imported
    assert min(float(run[0]) for run in runs) < 0.5
