"""How much memory a server takes where models are large, with and without a spool.

    python -m benchmarks.spool flower --parties 4 --megabytes 200   # docs/data/spool.json
    python -m benchmarks.spool flower --parties 20 --megabytes 1024 --kinds spool --at-once 2
    python -m benchmarks.spool flare --parties 20 --megabytes 200

Real processes on this machine: Flower's SuperLink, SuperNodes, client and server apps; FLARE's
simulator, whose clients are processes of their own. With ``--at-once`` clients take turns: so many
SuperNodes run them one after another, so many threads of the simulator. Measured is the most
resident memory of the process in which the strategy runs, over what it had before it made its
model; for FLARE, over what the same job takes with a model of 1 MB. Without a database, the
SuperLink keeps in memory what was not yet fetched.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import psutil

from benchmarks.timing import machine
from consilience.record import Record

HERE = Path(__file__).parent
DATA = HERE.parent / "docs" / "data" / "spool.json"
KINDS = ("spool", "memory", "fedavg")


def flower(parties: int, megabytes: int, kinds: list[str], nodes: int) -> dict[str, Any]:
    """Return what each kind of server takes, and the SuperLink beside it."""
    sys.path.append(str(HERE.parent / "tests"))
    import deployment

    deployment.PATIENCE = 3600.0
    found: dict[str, Any] = {}
    for kind in kinds:
        with (
            TemporaryDirectory() as name,
            deployment.deployed(Path(name), HERE / "spool_app") as here,
        ):
            here.superlink(database=False)
            link = psutil.Process(here.processes["superlink"].pid)
            for node in range(nodes):
                here.supernode(node)
            config = {"parties": parties, "nodes": nodes, "megabytes": megabytes}
            here.run(**config, strategy=kind, folder=name).finished()
            found[kind] = {**_server(Path(name) / f"{kind}.json"), "superlink": _most(link)}
            record = Path(name) / f"{kind}.jsonl"
            if record.exists():  # of ours
                last = Record.read(record)[-1]
                found[kind]["heard"] = len(last.weights.keys() - last.rejected)
            print(kind, found[kind], flush=True)
    return found


def _server(path: Path) -> dict[str, float]:
    said = json.loads(path.read_text())
    return {
        "base": round(said["base"]),
        "over": round(said["peak"] - said["base"]),
        "seconds": round(said["seconds"]),
    }


def flare(parties: int, megabytes: int, kinds: list[str], threads: int) -> dict[str, Any]:
    """Return what each kind of server takes in FLARE's simulator."""
    found: dict[str, Any] = {}
    for kind in kinds:
        base, _ = _simulated(kind, 2, 1, threads)
        over, seconds = _simulated(kind, parties, megabytes, threads)
        found[kind] = {"base": base, "over": over - base, "seconds": seconds}
        print(kind, found[kind], flush=True)
    return found


def _simulated(kind: str, parties: int, megabytes: int, threads: int) -> tuple[int, int]:
    """Run a job; return the most memory of its server, which is the parent of the clients."""
    job, most, started = HERE / "spool_flare" / "job.py", 0, perf_counter()
    with TemporaryDirectory() as out:
        words = [sys.executable, job, kind, out, *map(str, (parties, megabytes, threads))]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                with suppress(psutil.Error, FileNotFoundError, StopIteration):
                    for one in psutil.Process(process.pid).children(recursive=True):
                        if "nvflare.private.fed.app.simulator.simulator_worker" in one.cmdline():
                            most = max(most, _most(one.parent() or one))
                sleep(0.2)
        ended = list(Path(out).glob("work/**/models/server.npy"))
        if process.returncode or not ended:
            raise RuntimeError(f"the job of {kind} failed: {process.returncode}")
    return most, round(perf_counter() - started)


def _most(process: psutil.Process) -> int:
    """Return the most memory that a process ever had, in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(round(int(line.split()[1]) / 1024) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["flower", "flare"])
    parser.add_argument("--parties", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--at-once", type=int, help="by default all with Flower, two with FLARE")
    parser.add_argument("--out", type=Path, default=DATA)
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    usual = {"flower": asked.parties, "flare": 2}[asked.what]
    together = min(asked.at_once or usual, asked.parties)
    measure = {"flower": flower, "flare": flare}[asked.what]
    found = measure(asked.parties, asked.megabytes, kinds, together)
    kept = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    name = f"{asked.what} {asked.parties} x {asked.megabytes} MB"
    name += f", {together} at once" if asked.at_once else ""
    kept[name] = {**kept.get(name, {}), **found, "machine": machine()}
    asked.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
