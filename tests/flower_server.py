"""A Flower server to be killed: `python flower_server.py FOLDER`, a line of input for each server.

Flower takes seconds to import, so that is done once, and each server is a fork that has run nothing
yet. A line says to which round it runs, at which of its calls that change a file it kills itself,
and after how many seconds it is killed (0: never). Said are each round that has ended, and at last
"over" with the server's exit code.
"""

import io
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from flower_local import LocalGrid, Party, content, in_a_run, initial, noisy, sends, strategy

CHANGES = ("mkdir", "open", "write", "fsync", "replace", "rename", "truncate", "ftruncate")
CHANGES = (*CHANGES, "unlink", "remove", "rmdir")
NAMES = {str(node): str(1000 + node) for node in range(11, 16)}


def answer(message: Message) -> RecordDict:
    """A difference of about one, so that a model tells how many rounds it has seen."""
    node, round = message.metadata.dst_node_id, int(message.content["config"]["server-round"])
    return content(noisy(node + 1000 * round, about=1.0), who=1000 + node)


def serve(folder: Path, rounds: int) -> None:
    in_a_run()
    parties = {node: Party(answer) for node in range(11, 15)}
    parties[15] = sends({"weight": np.full(3, np.nan)}, who=1015)
    server = strategy(
        step=1.0,
        party_key="who",
        checkpoint=folder / "run",
        record=folder / "run.jsonl",
        spool=folder / "spool",
    )

    def evaluate(server_round: int, model: ArrayRecord) -> MetricRecord:
        # In one write, also where Python does not buffer: a kill could come between two.
        print(f"{server_round}\n", end="", flush=True)
        return MetricRecord({"accuracy": 1 / (1 + server_round)})

    server.start(LocalGrid(parties), initial(), num_rounds=rounds, evaluate_fn=evaluate)


def killed_at(step: int) -> None:
    """Have this process kill itself at its so-manieth change of a file, a write half way."""
    left = [step]

    def dying(name: str, change: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if name == "write":
                    change(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **more)

        return call

    for name in CHANGES:
        setattr(os, name, dying(name, getattr(os, name)))


def main() -> None:
    for name in ("flwr", "consilience"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for line in sys.stdin:
        rounds, step, seconds = line.split()
        server = os.fork()
        if server == 0:
            sys.stdin = io.StringIO()
            if int(step):
                killed_at(int(step))
            serve(Path(sys.argv[1]), int(rounds))
            os._exit(0)
        if float(seconds):
            time.sleep(float(seconds))
            os.kill(server, signal.SIGKILL)
        _, status = os.waitpid(server, 0)
        print("over", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
