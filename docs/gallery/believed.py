"""Who was believed over the rounds of the demo: 15 parties train on MNIST, seven of them bad."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from look import BLUE, RED, figure, label, save

import consilience as cs
from consilience.lab import demo

logging.getLogger("consilience").setLevel(logging.ERROR)  # each round rejects the garbage
with TemporaryDirectory() as folder:
    file = Path(folder) / "run.jsonl"
    data = demo.gather(seed=0, alpha=1.0)
    demo.federate(data, ["pairwise"], seed=0, records={"pairwise": cs.Record(file)})
    rounds = cs.Record.read(file)

picture, (axes,) = figure()
for party in (*demo.HOSPITALS, *demo.OTHERS):
    weights = [round.weights.get(party, 0) for round in rounds]
    colour, style = (RED, "--") if party in demo.OTHERS else (BLUE, "-")
    axes.plot(range(1, len(rounds) + 1), weights, style, color=colour, linewidth=2)
for height, name in (0.024, "backdoor"), (0.011, "2 broken"), (-0.002, "3 in league"):
    label(axes, (25.6, height), name, RED)
label(axes, (25.6, 0.119), "8 hospitals", BLUE)
axes.set(xlim=(1, 25), ylim=(-0.004, 0.13), xticks=(1, 5, 10, 15, 20, 25))
axes.set(xlabel="round", yticks=(0, 0.05, 0.1))
axes.set_title("weight in the consensus", loc="left")
save(picture, "believed")
