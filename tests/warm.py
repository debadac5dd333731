"""Flower's commands as processes that are forked from one that has imported Flower already.

A federation starts a process for each message, and each would import Flower for 2 seconds. In the
folder that `commands` makes, a command hands its words, environment, folder and streams to the one
that forks, waits for the fork, and ends as it ended; if it is killed, the fork is killed. What runs
in the fork is Flower's own, from parsing its words to the exit of the interpreter.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import psutil

# Whichever a federation starts once for each node, run or message. The others start afresh.
MANY = ("flower-supernode", "flower-superexec", "flwr-serverapp", "flwr-clientapp")
ASK = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.path.join(os.path.dirname(os.path.abspath(__file__)), "socket"))
    said = (json.dumps([sys.argv, os.getcwd(), dict(os.environ)]) + chr(10)).encode()
    asked.sendall(said[socket.send_fds(asked, [said], [0, 1, 2]):])
    sys.exit(int(asked.recv(9)))
"""


@contextlib.contextmanager
def commands(names: Sequence[str] = MANY) -> Iterator[Path]:
    """A folder with these commands, for the beginning of ``PATH``."""
    # Not below pytest's folder: the address of a socket is 100 characters at most.
    with tempfile.TemporaryDirectory(prefix="warm") as name, socket.socket(socket.AF_UNIX) as here:
        folder = Path(name)
        for command in names:
            (folder / command).write_text(ASK.format(python=sys.executable))
            (folder / command).chmod(0o755)
        here.bind(str(folder / "socket"))
        here.listen(100)
        with subprocess.Popen(
            [sys.executable, __file__, str(here.fileno()), *names],
            pass_fds=[here.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                yield folder
            finally:
                process.stdin.close()  # which ends it and its forks


class Forks:
    """The forks that run, by the connection to the command that asked for it."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.running: dict[socket.socket, int] = {}
        self.ended, ended = os.pipe()
        os.set_blocking(ended, False)
        self.own = [self.ended, ended]
        signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> bool:
        """Fork until standard input ends; true in a fork."""
        while True:
            waiting = [sys.stdin, self.ended, self.listener, *self.running]
            for one in select.select(waiting, [], [])[0]:
                if one is sys.stdin:
                    for child in self.running.values():
                        kill(child)
                    return False
                if one is self.listener:
                    if self.fork(self.listener.accept()[0]):
                        return True
                elif one is self.ended:
                    os.read(self.ended, 100)
                    self.tell()
                elif one in self.running:  # whoever asked is dead
                    kill(self.running[one])
                    os.waitpid(self.running.pop(one), 0)
                    one.close()

    def fork(self, asked: socket.socket) -> bool:
        """Fork for a command that asks for it; true in the fork."""
        said, streams, *_ = socket.recv_fds(asked, 2**16, 3)
        while not said.endswith(b"\n") and (more := asked.recv(2**16)):
            said += more
        if said.endswith(b"\n"):  # or it was killed before it had said all
            child = os.fork()
            if child == 0:
                self.become(asked, streams, *json.loads(said))
                return True
            self.running[asked] = child
        for stream in streams:
            os.close(stream)
        return False

    def become(
        self,
        asked: socket.socket,
        streams: list[int],
        words: list[str],
        folder: str,
        environment: dict[str, str],
    ) -> None:
        """Be the process that was asked for."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self.listener, asked, *self.running):
            one.close()
        for stream, given in enumerate(streams):
            os.dup2(given, stream)
        for one in (*self.own, *streams):
            os.close(one)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = words

    def tell(self) -> None:
        """Tell those whose forks have ended how."""
        for asked, child in list(self.running.items()):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                del self.running[asked]
                with asked, contextlib.suppress(OSError):
                    asked.send(str(os.waitstatus_to_exitcode(status) & 255).encode())


def kill(child: int) -> None:
    """Kill a fork, and the commands that it started, whose own forks then follow."""
    for one in (*psutil.Process(child).children(), psutil.Process(child)):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def main(listener: socket.socket, names: Sequence[str]) -> None:
    found = entry_points(group="console_scripts")
    known: dict[str, Callable[[], object]] = {name: found[name].load() for name in names}
    gc.freeze()  # or collecting garbage in a fork would copy all of this
    if Forks(listener).serve():
        sys.exit(known[Path(sys.argv[0]).name]())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
