"""How many adversaries a method survives, from the data of `consilience bench breakdown`."""

import json

from look import BLUE, FOLDER, GREEN, INK, PURPLE, RED, figure, label, save

worst = json.loads((FOLDER.parent / "data/breakdown.json").read_text())["worst"]
LOOKS = {  # by method: name in the picture, where it stands, colour, line
    "mean": ("mean", (0.4, 16), INK, "-"),
    "trimmed-mean": ("trimmed mean", (2.4, 11), GREEN, "--"),
    "multi-krum": ("Multi-Krum,\ntold how many", (2.4, 6.8), PURPLE, ":"),
    "coordinate-median": ("coordinate\nmedian", (9.4, 5.3), RED, "-."),
    "pairwise": ("pairwise", (4.2, 0.95), BLUE, "-"),
}

picture, (axes,) = figure()
for method, (name, place, colour, style) in LOOKS.items():
    # From ten adversaries on, half of all, every method breaks.
    errors = {int(count): cell["ratio"] for count, cell in worst[method].items() if int(count) < 10}
    clipped = [min(error, 1e6) for error in errors.values()]
    wide = 4 if method == "pairwise" else 2.5
    axes.plot(list(errors), clipped, style, color=colour, linewidth=wide)
    label(axes, place, name, colour)
axes.axvline(10, ymax=0.45, color=INK, linewidth=1, linestyle=":")
label(axes, (10.1, 0.95), "half of all", INK)
axes.set(xlim=(0, 12), ylim=(0.8, 20), yscale="log", xticks=range(0, 13, 2))
axes.set_yticks([1, 2, 5, 10, 20], ["1 ×", "2 ×", "5 ×", "10 ×", "20 ×"])
axes.set_yticks([], minor=True)
axes.set_xlabel("adversaries, beside 10 honest parties")
axes.set_title("error under the worst of 28 attacks", loc="left")
save(picture, "breakdown")
