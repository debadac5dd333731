"""How far from the truth is each method on a synthetic crowd, and do its intervals cover it?

    python -m consilience.lab.studies.crowd [--out docs/data/crowd.json] [--seeds 10]

The crowds are those of consilience.lab.crowd. Each number is a mean over the seeds: of the root
mean squared error over the tasks, or of the share of tasks whose 95 % interval covers the truth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import consilience as cs
from consilience.lab.crowd import Crowd, crowd
from consilience.lab.tables import markdown

SETTINGS: dict[str, dict[str, Any]] = {
    "10 spammers, 10 in a clique": {},
    "no clique": {"clique": "none"},
    "honest workers only": {"clique": "none", "spammers": 0},
    "biased workers": {"biased": True},
    "clique copies an honest worker": {"clique": "honest"},
    "clique of half-copies": {"clique": "loose"},
    "clique of 18, 20 honest": {"honest": 20, "members": 18},
    "4 % observed": {"observed": 0.04},
    "100 tasks": {"tasks": 100},
    "6 honest, 2 spammers, 100 tasks, half observed": {
        "honest": 6, "spammers": 2, "clique": "none", "tasks": 100, "observed": 0.5,
    },
}  # fmt: skip
FIRST = 100  # lower seeds were used while the method was developed
METHODS = ("mean", "median", "ivar", "affine", "pairwise")


def measure(people: Crowd, method: str) -> dict[str, float]:
    """Return the error of a method, and whom it names."""
    found = cs.infer(people.table, task="task", party="worker", value="score", method=method)
    held = [low <= people.truth[str(t)] <= high for t, (low, high) in found.intervals.items()]
    listed = {party for group in found.groups for party in group}
    return {
        "error": people.error({str(t): value for t, value in found.truth.items()}),
        "coverage": float(np.mean(held)),
        "clique found": len(listed & people.clique) / max(len(people.clique), 1),
        "others named": len(listed - people.clique),
    }


def main() -> None:
    """Measure, print as Markdown and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/data/crowd.json"))
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    records = []
    for name, settings in track(SETTINGS.items(), total=len(SETTINGS)):
        people = [crowd(FIRST + seed, **settings) for seed in range(args.seeds)]
        for method in METHODS:
            each = [measure(one, method) for one in people]
            means = {key: round(float(np.mean([m[key] for m in each])), 3) for key in each[0]}
            spread = round(float(np.std([m["error"] for m in each], ddof=1)), 3)
            kept = {k: v for k, v in means.items() if method == "pairwise" or k == "error"}
            if method in ("ivar", "affine"):
                kept["coverage"] = means["coverage"]
            records.append({"crowd": name, "method": method, "spread": spread, **kept})
    print(_page(records))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    content = {"first seed": FIRST, "seeds": args.seeds, "records": records}
    args.out.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n")


def _page(records: list[dict[str, Any]]) -> str:
    rows = []
    for name in SETTINGS:
        mine = {r["method"]: r for r in records if r["crowd"] == name}
        best = min(r["error"] for r in mine.values())
        cells = [f"**{r['error']:.3f}**" if r["error"] == best else f"{r['error']:.3f}"
                 for r in mine.values()]  # fmt: skip
        held = [f"{mine[method]['coverage']:.3f}" for method in ("ivar", "pairwise")]
        found = mine["pairwise"]
        share = f"{100 * found['clique found']:.0f} %"
        some = SETTINGS[name].get("clique") != "none"
        rows.append([name, *cells, *held, share if some else "–", f"{found['others named']:.1f}"])
    header = ["crowd", *METHODS, "`ivar` holds", "`pairwise` holds", "clique found", "others named"]
    return markdown(header, rows)


if __name__ == "__main__":
    main()
