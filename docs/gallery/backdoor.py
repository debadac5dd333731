"""A backdoor, planted by one of 15 parties: how often it works, over the rounds of the demo."""

import logging

from look import BLUE, GREEN, INK, PURPLE, RED, figure, label, save

from consilience.lab import demo

logging.getLogger("consilience").setLevel(logging.ERROR)  # each round rejects the garbage
LOOKS = {  # by method: name in the picture, its height, colour, line
    "mean": ("mean", 0.70, RED, "-"),
    "geometric-median": ("geometric\nmedian", 0.20, PURPLE, "--"),
    "coordinate-median": ("coord. median", 0.08, GREEN, ":"),
    "pairwise": ("pairwise", 0.0, BLUE, "-"),
}

data = demo.gather(seed=0, alpha=1.0)
runs = demo.federate(data, tuple(LOOKS), seed=0)
picture, (axes,) = figure()
for method, (name, height, colour, style) in LOOKS.items():
    wide, order = (5, 1) if method == "pairwise" else (2.5, 2)  # behind the coordinate median
    rounds = range(1, demo.ROUNDS + 1)
    axes.plot(rounds, runs[method].success, style, color=colour, linewidth=wide, zorder=order)
    label(axes, (25.6, height), name, colour)
axes.set(xlim=(1, 25), ylim=(-0.02, 0.8), xlabel="round", xticks=(1, 5, 10, 15, 20, 25))
axes.set_yticks([0, 0.25, 0.5, 0.75], ["0 %", "25 %", "50 %", "75 %"])
axes.set_title("digits with the patch that are taken for a 0", loc="left")

for place, digit in enumerate(data.triggered[:3]):
    small = axes.inset_axes((0.04 + 0.17 * place, 0.68, 0.15, 0.25))
    small.imshow(digit.reshape(28, 28), cmap="gray")
    small.set(xticks=[], yticks=[])
    small.spines[:].set(visible=True, color=INK)
save(picture, "backdoor")
