"""What is released can be installed and works: `make dist` in small."""

import sys
import tarfile
import zipfile
from pathlib import Path
from sysconfig import get_config_var

import pytest

import consilience

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from dist import main


@pytest.mark.integration
def test_sdist_and_both_wheels_are_built_and_work_in_a_clean_environment(
    tmp_path, capsys, monkeypatch
):
    # Optimised, the loops take ten times as long to compile; those of .venv are, and are tested.
    quick = tmp_path / "quick"
    quick.write_text(f'#!/bin/bash\nexec {get_config_var("CC")} "${{@/#-O?/-O0}}"\n')
    quick.chmod(0o755)
    monkeypatch.setenv("CC", str(quick))
    sdist, compiled, pure = main(tmp_path, whole=False)
    version = consilience.__version__
    assert sdist.name == f"consilience-{version}.tar.gz"
    assert pure.name == f"consilience-{version}-py3-none-any.whl"
    with tarfile.open(sdist) as archive, zipfile.ZipFile(compiled) as wheel:
        source, inside = archive.getnames(), wheel.namelist()
    assert any(name.endswith("_loops.c") for name in source)
    loops = [name for name in inside if "_loops." in name and not name.endswith(".pyi")]
    assert len(loops) == 1  # no C source in a wheel
    assert "consilience/report/page.html" in inside
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert told[compiled.name].startswith(f"consilience {version}, compiled loops")
    assert told[pure.name] == f"consilience {version}, loops in numpy, not compiled"
