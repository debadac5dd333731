"""Flower for real: a SuperLink and SuperNodes as processes on this machine's loopback."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
PATIENCE = 120.0  # seconds until a wait is given up
# The command flwr, forked for each line of words, as importing it takes seconds.
FLWR = """
import json, os, sys
from flwr.cli.app import app
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv, (out, err) = ["flwr", *json.loads(line)], sys.argv[1:]
        for stream, file in (1, out), (2, err):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        code = 1
        try:
            app()
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Deployment:
    """A SuperLink, its nodes, and runs of an app; `close` ends whatever is left of them."""

    def __init__(
        self, folder: Path, app: Path, certificates: Path | None = None, commands: Path = BIN
    ) -> None:
        self.folder, self.app, self.certificates = folder, app, certificates
        self.address = f"127.0.0.1:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands: subprocess.Popen[str] | None = None
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": os.pathsep.join([str(commands), str(BIN), os.environ["PATH"]]),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "no_proxy": "*",
        }
        (folder / "flwr").mkdir()
        trust = "insecure = true"
        if certificates is not None:
            trust = f'root-certificates = "{certificates / "ca.crt"}"'
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\n'
            f'address = "{self.address}"\n{trust}\n'
        )

    def superlink(self, *options: str, database: bool = True) -> None:
        host, port = self.address.split(":")
        trust = ["--insecure"]
        if self.certificates is not None:
            files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
            trust = [f"--ssl-{name}={self.certificates / file}" for name, file in files.items()]
        self.start(
            "superlink",
            ["flower-superlink", *trust, "--host", host, "--port", port, *options],
            "--disable-runtime-dependency-installation",
            *([f"--database={self.folder / 'superlink.db'}"] if database else []),
        )
        wait(lambda: listening(self.address), "the SuperLink does not listen", self.log)

    def supernode(self, party: int, *options: str) -> None:
        trust = "--insecure"
        if self.certificates is not None:
            trust = f"--root-certificates={self.certificates / 'ca.crt'}"
        self.start(
            f"node{party}",
            ["flower-supernode", trust, "--superlink", self.address, *options],
            f"--port={free_port()}",
            f"--node-config=partition-id={party}",
        )

    def run(self, **config: Any) -> "Run":
        """Submit a run."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = ["run", str(self.app), "loopback", "--run-config", pairs, "--format", "json"]
        answer = self.flwr(*command)
        return Run(self, str(answer["run-id"]))

    def flwr(self, *command: str) -> dict[str, Any]:
        """Ask Flower's command line for something that it answers in JSON."""
        text = self.text(*command)
        found: dict[str, Any] = json.loads(text[text.index("{") :])
        return found

    def text(self, *command: str) -> str:
        out, err = (self.folder / f"flwr.{name}" for name in ("out", "err"))
        if self.commands is None:
            self.commands = subprocess.Popen(
                [sys.executable, "-c", FLWR, out, err],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.commands.stdin is not None
        assert self.commands.stdout is not None
        print(json.dumps(command), file=self.commands.stdin, flush=True)
        if not select.select([self.commands.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(f"flwr {command[0]} takes too long\n{self.log()}")
        if self.commands.stdout.readline() != "0\n":
            said = f"{out.read_text()}\n{err.read_text()}"
            raise RuntimeError(f"flwr {command[0]}: {said}\n{self.log()}")
        return out.read_text()

    def start(self, name: str, command: Sequence[str], *options: str) -> None:
        found = shutil.which(command[0], path=self.environment["PATH"])
        assert found is not None, f"there is no {command[0]}"
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [found, *command[1:], *options],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill a process and those it started, with no time to say goodbye."""
        process = self.processes.pop(name)
        for one in descendants(process.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.kill()
        process.wait(PATIENCE)

    def log(self) -> str:
        tails = [
            f"--- {path.name}\n" + path.read_text(errors="replace")[-3000:]
            for path in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join(tails)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        if self.commands is not None:
            with self.commands:
                self.commands.kill()


class Run:
    """One run of the app."""

    def __init__(self, deployment: Deployment, run_id: str) -> None:
        self.deployment, self.run_id = deployment, run_id

    def status(self) -> str:
        answer = self.deployment.flwr("list", "loopback", "--run-id", self.run_id, "--format=json")
        return str(answer["runs"][0]["status"])

    def finished(self) -> None:
        """Wait until the run has ended, and see that it did well."""
        status = ""

        def ended() -> bool:
            nonlocal status
            # No server is no end: it may be yet to start.
            status = "" if self._servers() else self.status()
            return status.startswith("finished")

        wait(ended, "the run goes on", self.deployment.log)
        assert status == "finished:completed", f"{status}\n{self.deployment.log()}"

    def stop(self) -> None:
        """Tell the SuperLink that the run has ended, which it finds out by itself in a minute."""
        self.deployment.text("stop", self.run_id, "loopback")

    def kill_server(self) -> None:
        """Kill the process that the strategy runs in."""
        found = self._servers()
        assert found, "no server app is running"
        for process in found:
            process.send_signal(signal.SIGKILL)
        wait(lambda: not self._servers(), "the server cannot be killed", self.deployment.log)

    def _servers(self) -> list[psutil.Process]:
        home = self.deployment.environment["FLWR_HOME"]
        return [p for p in psutil.process_iter() if named(p, "flwr-serverapp") and at(p, home)]


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def named(process: psutil.Process, name: str) -> bool:
    try:
        return any(name in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def at(process: psutil.Process, home: str) -> bool:
    """Tell whether a process is of the deployment with this folder."""
    try:
        return process.environ().get("FLWR_HOME") == home
    except psutil.Error:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(address: str) -> bool:
    host, port = address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


def wait(
    done: Callable[[], Any], otherwise: str, log: Callable[[], str], patience: float | None = None
) -> None:
    patience = PATIENCE if patience is None else patience
    end = time.monotonic() + patience
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise} after {patience:.0f} s\n{log()}")
        time.sleep(0.3)


@contextlib.contextmanager
def deployed(
    folder: Path, app: Path, certificates: Path | None = None, commands: Path = BIN
) -> Iterator[Deployment]:
    """Flower's commands are those of a folder, if it has them: `warm.commands` start sooner."""
    deployment = Deployment(folder, app, certificates, commands)
    try:
        yield deployment
    finally:
        deployment.close()
