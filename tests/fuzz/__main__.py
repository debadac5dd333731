"""The command line of the fuzzer."""

import argparse
import sys
import time

from fuzz import KINDS, TURNS
from fuzz.driver import Plan, repeat, run


def main() -> int:
    """Run cases until the time or their number is up; 1 if any was wrong."""
    options = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0, help="how long; default 60")
    options.add_argument("--cases", type=int, help="stop after so many cases")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    options.add_argument("--workers", type=int, default=2, help="processes; default 2")
    options.add_argument("--most", type=int, default=20, help="stop after so many failures")
    options.add_argument("--only", metavar="KIND:SEED:NUMBER", help="repeat one case")
    given = options.parse_args()
    if given.only:
        kind, seed, number = given.only.split(":")
        return repeat(kind, int(seed), int(number))
    kinds = given.kinds.split(",")
    unknown = set(kinds) - set(KINDS)
    if unknown or given.workers < 1:
        options.error(f"no such kind: {', '.join(unknown)}" if unknown else "no workers")
    turns = tuple(kind for kind in TURNS if kind in kinds)
    plan = Plan(given.seed, turns, time.time() + given.seconds, given.cases, given.workers)
    return run(plan, given.most)


if __name__ == "__main__":
    sys.exit(main())
