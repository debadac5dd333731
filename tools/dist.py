"""Build what is released, install each wheel into a clean environment, and try it there.

    python tools/dist.py dist

An sdist; from that a wheel with the compiled loops and a pure one, for where none fits. Nothing is
fetched: the build uses the setuptools that is here, and the clean environments find numpy and the
other needs where this Python has them, but this package only if it was installed.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from sysconfig import get_path

ROOT = Path(__file__).parents[1]
FILES = ["pyproject.toml", "setup.py", "MANIFEST.in", "Makefile", "constraints.txt", "LICENSE"]
FILES += ["README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md"]
FILES += ["SECURITY.md"]
FOLDERS = ["src", "docs", "tests", "benchmarks", "examples", "tools"]
LEFT_OUT = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "*.egg-info", "node_modules")
BACKEND = "import sys, setuptools.build_meta as b; print(b.build_{}(sys.argv[1]))"
TRIAL = """
import consilience as cs
found = cs.aggregate({"ann": [1.0, 2], "bob": [1.1, 2], "eve": [70.0, 80]})
assert found.weights["eve"] < 0.01, found
print(cs.__file__)
"""


def main(out: Path, *, whole: bool = True) -> list[Path]:
    """Build and try everything; return the sdist, the compiled wheel and the pure one.

    Without ``whole`` the sdist has the package only: quicker, for a test.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        for name in FILES:
            shutil.copy(ROOT / name, tree)
        for name in FOLDERS if whole else FOLDERS[:1]:
            shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
        sdist = out / _built("sdist", tree, out)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        unpacked = Path(folder, sdist.name.removesuffix(".tar.gz"))
        compiled = out / _built("wheel", unpacked, out)
        shutil.rmtree(unpacked / "build")
        pure = out / _built("wheel", unpacked, out, CONSILIENCE_PURE="1")
        for wheel in (compiled, pure):
            print(f"{wheel.name}: {tried(wheel, Path(folder, wheel.name + '.env'))}")
    return [sdist, compiled, pure]


def _built(kind: str, tree: Path, out: Path, **environment: str) -> str:
    command = [sys.executable, "-c", BACKEND.format(kind), str(out.resolve())]
    return _output(command, cwd=tree, env={**os.environ, **environment}).splitlines()[-1]


def tried(wheel: Path, place: Path) -> str:
    """Return what the command says of its version, in a new environment with the wheel in it."""
    venv.create(place, with_pip=False)
    paths = {"base": str(place), "platbase": str(place)}
    python = Path(get_path("scripts", "venv", paths), Path(sys.executable).name)
    packages = Path(get_path("purelib", "venv", paths))
    install = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CONSILIENCE"))}
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    _output([*pip, *install, str(wheel)], env=clean)
    # After pip, which would take a package that it finds there for installed.
    (packages / "needs.pth").write_text(get_path("purelib") + "\n")
    where = _output([str(python), "-c", TRIAL], cwd=place, env=clean).strip()
    if not Path(where).is_relative_to(packages):
        raise RuntimeError(f"{where}: not the package that was installed into {packages}")
    return _output(
        [str(python.with_name("consilience")), "--version"], cwd=place, env=clean
    ).strip()


def _output(command: list[str], **how: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **how)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
