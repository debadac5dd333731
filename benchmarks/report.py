"""The report's page in a browser, small and large: python -m benchmarks.report [--out data.json]

Sizes, and the time to the first paint, until all is loaded and of picking a round, at the top of
the page and with the matrix in sight: the best of several, for a small run and a large one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from consilience import Beliefs, Consensus, Evidence, Record
from consilience.arrays import Matrix, Vector
from consilience.beliefs import NOTHING
from consilience.estimators.judgement import Judgement
from consilience.evidence import Block
from consilience.report.page import write

CHROMIUM = shutil.which("chromium")
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]"
# Two frames after the input, the browser has drawn what came of it.
PICK = """async place => {
    const slider = document.getElementById("round");
    const started = performance.now();
    slider.value = place;
    slider.dispatchEvent(new Event("input"));
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    await new Promise(done => setTimeout(done));
    return performance.now() - started;
}"""


def made_up(parties: int, rounds: int, file: Path) -> None:
    """Write a record of many rounds, in which a fifth of the parties move together."""
    rng = np.random.default_rng(0)
    names = tuple(f"party-{j:03}" for j in range(parties))
    together = parties // 5
    correlation = np.eye(parties)
    correlation[:together, :together] = 0.95
    votes = np.where(np.arange(parties) < together, 1 / together, 1.0)
    record = Record(file)
    for _ in range(rounds):
        noise = 0.1 * np.exp(0.1 * rng.standard_normal(parties))
        noise[together] *= 8
        chance = 0.05 * rng.standard_normal((parties, parties))
        covariance = np.outer(noise, noise) * (correlation + chance + chance.T)
        weights = votes / noise**2
        found = consensus(names, weights / weights.sum(), noise, covariance, names[:together])
        record.append(found, accuracy=float(rng.uniform(0.8, 0.9)))


def consensus(
    names: tuple[str, ...], weights: Vector, noise: Vector, covariance: Matrix, group: Any
) -> Consensus:
    """Return a consensus without a value, of which a group of parties moves together."""
    beliefs = Beliefs(
        Evidence((Block(names, np.zeros((len(names) + 1,) * 2), 1000.0),)),
        (weights,),
        noise,
        covariance,
        slack=1.0,
        groups=(group,),
        reasons=dict.fromkeys(group, f"moves with {len(group) - 1} more: one voice"),
    )
    return Consensus(
        value=None,
        parties=names,
        weights=dict(zip(names, weights, strict=True)),
        noise=dict(zip(names, noise, strict=True)),
        covariance=covariance,
        rejected={},
        variance=None,
        beliefs=beliefs,
        diagnostics={
            "effective_parties": 1 / float(weights @ weights),
            "seconds": {"evidence": 0.01, "inference": 0.002, "combination": 0.005},
        },
        judgement=Judgement(beliefs.evidence, NOTHING, beliefs),
    )


def measure(page: Page, file: Path, rounds: int, repeats: int = 7) -> dict[str, float]:
    """Return the least milliseconds to the first paint, to all loaded, and of picking a round."""
    found: dict[str, list[float]] = {"first_paint": [], "loaded": [], "pick": [], "pick_matrix": []}
    for _ in range(repeats):
        page.goto(file.as_uri())
        page.wait_for_function(f"() => {PAINT} !== undefined")
        found["first_paint"].append(page.evaluate(f"{PAINT}.startTime"))
        loaded = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        found["loaded"].append(page.evaluate(loaded))
        places = np.linspace(0, rounds - 2, 9).astype(int).tolist()
        found["pick"] += [page.evaluate(PICK, place) for place in places]
        page.locator("#correlation .chart").scroll_into_view_if_needed()
        found["pick_matrix"] += [page.evaluate(PICK, place) for place in places]
    best = {f"{name}_ms": round(min(times)) for name, times in found.items()}
    return {**best, "pick_median_ms": round(median(found["pick"] + found["pick_matrix"]))}


def main() -> None:
    """Measure both sizes and print them, or write them down."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path)
    out = arguments.parse_args().out
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        for parties, rounds in [(15, 100), (200, 1000)]:
            record, html = Path(name, f"{parties}.jsonl"), Path(name, f"{parties}.html")
            made_up(parties, rounds, record)
            write(record, html)
            found.append(
                {
                    "parties": parties,
                    "rounds": rounds,
                    "record_kB": record.stat().st_size // 1000,
                    "page_kB": html.stat().st_size // 1000,
                    **measure(page, html, rounds),
                }
            )
        browser.close()
    text = json.dumps(found, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
