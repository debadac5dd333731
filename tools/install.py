"""Install by uv, which resolves in seconds what takes pip a minute; by pip where uv cannot.

uv does not read the configuration of pip. So it is told here where pip looks for packages, and
whose certificates pip believes.
"""

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-m", "pip"]
UV = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-build-isolation"]
PLACES = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
}


def configured() -> dict[str, str]:
    """What pip was told in its files and in the environment, which comes last and counts."""
    said = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    lines = [line.split("=", 1) for line in said.stdout.splitlines()]
    return {name.split(".", 1)[1].lstrip("."): ast.literal_eval(value) for name, value in lines}


def main(words: list[str]) -> int:
    """Install what the words say, which both understand; return the exit code."""
    told = configured()
    places = [f"{PLACES[name]}={one}" for name in PLACES for one in told.get(name, "").split()]
    best = ["--python", sys.executable, "--index-strategy=unsafe-best-match"]  # as pip chooses
    certificates = {"SSL_CERT_FILE": told["cert"]} if "cert" in told else {}
    by_uv = subprocess.run([*UV, *best, *places, *words], env={**os.environ, **certificates})
    if by_uv.returncode == 0:
        return 0
    print("uv could not install; pip tries it", file=sys.stderr)
    by_pip = [*PIP, "install", "--quiet", "--disable-pip-version-check", "--no-compile", *words]
    return subprocess.run(by_pip).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
