"""A merge of strangers' models: eight files, each a classifier of MNIST's digits."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from look import BLUE, INK, RED, figure, save
from matplotlib.colors import LinearSegmentedColormap
from safetensors.numpy import save_file

import consilience as cs
from consilience.lab import softmax


def trained(party: int, wrong: int = 0) -> softmax.Weights:
    """Return what a stranger learns from its own pictures, with labels that may be wrong."""
    model, rng = softmax.initial(), np.random.default_rng(party)
    pictures, labels = softmax.shard(party, 8, seed=0)
    for _ in range(10):
        model = softmax.learn(model, pictures, (labels + wrong) % 10, rng)
    return model


noise = np.random.default_rng(8).normal(0, 0.3, 7850).astype(np.float32)
models = {name: trained(party) for party, name in enumerate(("ann", "bob", "cat", "dan", "eli"))}
models["wrong labels"] = trained(5, wrong=1)
models["broken disk"] = softmax.unflat(softmax.flat(trained(6)) + noise)
models["sabotage"] = softmax.unflat(-10 * softmax.flat(trained(7)))
with TemporaryDirectory() as folder:
    paths = {name: Path(folder) / f"{name}.safetensors" for name in models}
    for name, model in models.items():
        save_file(model, paths[name])
    found = {m: cs.aggregate_files(paths, f"{folder}/{m}.npz", m) for m in ("mean", "pairwise")}
    merged = {method: dict(np.load(consensus.value)) for method, consensus in found.items()}

picture, cells = figure(5.2, "ABCD;EFGH;MMPP", height_ratios=(1, 1, 1.6))
picture.suptitle("Eight strangers, and the weight of each", color=INK, fontsize=12)
for axes, (name, model) in zip(cells, {**models, **merged}.items(), strict=True):
    right = softmax.accuracy(model)
    colour = BLUE if right > 0.8 else RED
    three = model["weight"][3].reshape(28, 28)  # positive where a 3 should have ink
    # No ink is no colour, so that it can be read on white and on black.
    colours = LinearSegmentedColormap.from_list("", [f"{colour}00", colour])
    axes.imshow(np.maximum(three, 0), cmap=colours)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=INK)
    if name in models:
        said = f"{name}\n{100 * found['pairwise'].weights[name]:.0f} %"
    else:
        said = f"{name}: {100 * right:.0f} % right"
    axes.set_title(said, color=colour, weight="bold", fontsize=11 if name in models else 13)
save(picture, "merge")
