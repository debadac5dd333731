"""Rounds of updates for the tests: drawn from the models, turned into evidence, and combined."""

import numpy as np

from consilience import Evidence

NAMES = ["eve", "bob", "ann", "dan", "cat", "flo"]

SCENARIOS = ["one round", "many rounds", "partial"]


def draw(V, own, prior, size, random, centre=None):
    """Return the truth and the updates (J, K) of a round of the latent model."""
    V, own = np.asarray(V, float), np.asarray(own, float)
    truth = np.sqrt(prior) * random.standard_normal(size)
    if centre is not None:
        truth = truth + centre
    noise = np.sqrt(own)[:, None] * random.standard_normal((own.size, size))
    return truth, truth + V @ random.standard_normal((V.shape[1], size)) + noise


def scenario(name, *, centred=True, size=7, parties=5, bias=0.8, seed=0):
    """Return rounds and their centres. Who takes part, and in which order, varies. All but two
    parties err together in one direction, some against the others."""
    random = np.random.default_rng(seed)
    names = NAMES[:parties]
    own = np.linspace(0.3, 2.0, parties)
    V = bias * np.array([0.0, 1.0, 1.5, -1.0, 0.5, 0.0])[:parties, None]
    groups = {
        "one round": [names],
        "many rounds": [names, names[::-1], names],
        "partial": [names, names[1:], names[:3], names[:0:-1], [names[0], *names[2:]]],
    }[name]
    rounds, centres = [], []
    for group in groups:
        centre = random.standard_normal(size) * 3 if centred else np.zeros(size)
        _, updates = draw(V, own, 2.0, size, random, centre)
        by_name = dict(zip(names, updates, strict=True))
        rounds.append({party: by_name[party] for party in group})
        centres.append(centre)
    return rounds, centres


def evidence_of(rounds, centres=None):
    """Return the evidence of all rounds."""
    centres = [None] * len(rounds) if centres is None else centres
    total = Evidence(())
    for updates, centre in zip(rounds, centres, strict=True):
        total = total + Evidence.of(updates, centre)
    return total


def consensuses(beliefs, rounds, centres=None):
    """Return the weighted sum of each round's updates, and of its centre."""
    found = []
    for i, updates in enumerate(rounds):
        b = beliefs.evidence.find(updates)
        weights = dict(zip(beliefs.evidence.blocks[b].parties, beliefs.weights[b], strict=True))
        value = sum(weights[party] * x for party, x in updates.items())
        if centres is not None:
            value = value + (1 - sum(weights.values())) * centres[i]
        found.append(value)
    return found


def by_party(beliefs, values):
    return dict(zip(beliefs.parties, values, strict=True))


def never_falls(objective, slack=1e-9):
    objective = np.asarray(objective)
    return bool((np.diff(objective) >= -slack * np.abs(objective).max()).all())
