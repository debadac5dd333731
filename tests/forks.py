"""Processes that can be killed at any moment; forked, as importing is slow."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

_PARENT = """
import os, sys, consilience.cli.commands, consilience.cli.merge, scipy.optimize
import numpy as np, consilience as cs
code, words = sys.argv[1], sys.argv[2].split()
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            exec(code)
        except SystemExit as end:
            os._exit(end.code)
        except BaseException:
            os._exit(99)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
MERGE = 'consilience.cli.commands.app(["merge", *words])'


class Forks:
    """Runs some code in one process after the other, with ``words`` split at blanks."""

    def __init__(self, code: str, words: str = "") -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, code, words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, when: Callable[[], object] | None = None, how: int = signal.SIGKILL) -> int:
        """Run the code, and send a signal when the time has come; return the exit code."""
        print(file=self.parent.stdin, flush=True)
        child = int(self.parent.stdout.readline())
        if when is not None:
            when()
            with suppress(ProcessLookupError):  # it was faster
                os.kill(child, how)
        return int(self.parent.stdout.readline())

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *_: object) -> None:
        self.parent.stdin.close()
        self.parent.stdout.close()
        self.parent.wait()
