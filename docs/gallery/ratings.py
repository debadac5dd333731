"""Ratings of 200 items by 16 workers: ten look, two answer anything, four copy from each other."""

import numpy as np
from look import BLUE, INK, RED, figure, save

import consilience as cs

rng = np.random.default_rng(3)
truth, copied = rng.normal(5, 2, 200), rng.uniform(0, 10, 200)
rows = []
for item in range(200):
    for worker in rng.choice(16, 6, replace=False):
        if worker < 10:
            score = truth[item] + rng.normal(0, 1)  # looks
        elif worker < 12:
            score = rng.uniform(0, 10)  # answers anything
        else:
            score = copied[item] + rng.normal(0, 0.1)  # copies
        rows.append((item, f"worker {worker}", score))
items, workers, scores = zip(*rows, strict=True)
table = {"item": items, "worker": workers, "score": scores}

picture, both = figure(3.1, "AB", sharey=True)
for axes, method, colour in zip(both, ("mean", "pairwise"), (RED, BLUE), strict=True):
    found = cs.infer(table, task="item", party="worker", value="score", method=method)
    inferred = np.array([found.truth[item] for item in range(200)])
    error = np.sqrt(np.mean((inferred - truth) ** 2))
    axes.axline((0, 0), slope=1, color=INK, linewidth=1)
    axes.plot(truth, inferred, "o", color=colour, markersize=4, alpha=0.7, markeredgewidth=0)
    axes.set_title(f"{method}: off by {error:.1f}", color=colour, fontsize=13, weight="bold")
    axes.set(xlim=(-1, 11), ylim=(-1, 11), aspect="equal", xticks=(0, 5, 10), yticks=(0, 5, 10))
    axes.set_xlabel("true score")
both[0].set_ylabel("inferred score")
save(picture, "ratings")
