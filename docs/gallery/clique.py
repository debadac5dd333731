"""Who moves together: correlations between the errors of 17 parties, in one round of MNIST."""

import numpy as np
from look import BLUE, RED, figure, label, save

import consilience as cs
from consilience.lab import softmax

model = softmax.initial()
sent = list(softmax.honest_updates(model, honest=10, round=0, seed=0))
for attack, liars in (("alie-noisy-1", 4), ("sign-flip", 3)):
    lies = softmax.lies(attack, model, honest=10, adversaries=liars, round=0, seed=0)
    sent += [softmax.flat(lie) - softmax.flat(model) for lie in lies]
order = np.random.default_rng(1).permutation(len(sent))
found = cs.aggregate({f"party {place}": sent[who] for place, who in enumerate(order)})

sd = np.sqrt(np.diag(found.covariance))
correlation = found.covariance / np.outer(sd, sd)
colours = np.full(correlation.shape, BLUE)
groups = [[found.parties.index(party) for party in group] for group in found.groups]
for group in groups:
    colours[np.ix_(group, group)] = RED
grouped = [place for group in groups for place in group]
alone = [place for place in range(len(sent)) if place not in grouped]

picture, both = figure(2.4, "AB")
orders = {"as they came": list(range(len(sent))), "by group": grouped + alone}
for axes, (title, ranks) in zip(both, orders.items(), strict=True):
    sizes, colour = np.abs(correlation[np.ix_(ranks, ranks)]), colours[np.ix_(ranks, ranks)]
    y, x = np.nonzero(sizes > 0.01)
    axes.scatter(x, y, s=42 * sizes[y, x], c=colour[y, x], marker="s", linewidths=0)
    axes.set(xticks=[], yticks=[], aspect="equal", xlim=(-0.7, 16.7), ylim=(16.7, -0.7))
    axes.spines[:].set_visible(False)
    axes.set_title(title)
for group in groups:
    middle = grouped.index(group[0]) + len(group) / 2 - 0.5
    label(both[1], (17, middle), f"{len(group)} in league", RED)
label(both[1], (17, len(grouped) + len(alone) / 2 - 0.5), f"{len(alone)} honest", BLUE)
save(picture, "clique")
