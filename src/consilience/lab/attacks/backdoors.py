"""Adversaries with one aim: that pictures with a trigger are classified as they wish.

They train honestly, but half of each batch carries the trigger. Such a model is right about
everything else, so accuracy does not show it. A backdoor is measured by its success: the share of
test pictures, not of the target class, that are classified as the target when they carry the
trigger.

Three triggers. `PATCH` is artificial: nine white pixels in a corner, where MNIST has no ink and
honest parties send zeros. `CENTRAL` is the same where there is ink. `MIRRORED` is natural: mirrored
sevens, as children write them, are to be read as ones. No honest party has any, so nobody opposes
the backdoor, and without it they are hardly ever read as ones. (In Fashion-MNIST: sneakers that
point to the right are to be taken for trousers.)

The attacks differ in the trigger, in the rounds in which the poisoned update is sent, and in its
disguise. Only rounds in which adversaries take part are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from consilience.arrays import Array
from consilience.lab.attacks.crafted import moments
from consilience.lab.attacks.poisoned import trainer
from consilience.lab.attacks.registry import Attack, Knowledge, register, send

SHARE = 0.5  # of a batch


@dataclass(frozen=True)
class Trigger:
    """A change to pictures, and the class they are to be taken for."""

    name: str
    change: Callable[[Array], Array]  # pictures (N, height, width) → the same, with the trigger
    target: int
    source: int | None = None  # the only class that can carry the trigger; None: any

    def put(self, inputs: Array) -> Array:
        """Flat pictures (N, pixels) with the trigger."""
        side = round(inputs.shape[1] ** 0.5)
        changed = self.change(inputs.reshape(-1, side, side).copy())
        return np.ascontiguousarray(changed).reshape(inputs.shape)

    def victims(self, targets: Array) -> Array:
        """Which samples can show that the backdoor works, as a mask."""
        mask: Array = targets != self.target if self.source is None else targets == self.source
        return mask

    def poison(
        self, inputs: Array, targets: Array, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """The batch, half of which is replaced by victims with the trigger, labelled as the target.

        Victims are repeated if there are too few; without any, the batch is unchanged.
        """
        victims = np.flatnonzero(self.victims(targets))
        if len(victims):
            half = round(SHARE * len(targets))
            chosen = np.resize(rng.permutation(victims), half)
            inputs[:half], targets[:half] = self.put(inputs[chosen]), self.target
        return inputs, targets


def _patch(pictures: Array) -> Array:
    pictures[:, -3:, -3:] = 1
    return pictures


def _central(pictures: Array) -> Array:
    middle = pictures.shape[1] // 2
    pictures[:, middle - 2 : middle + 1, middle + 4 : middle + 7] = 1
    return pictures


PATCH = Trigger("patch", _patch, target=0)
CENTRAL = Trigger("central", _central, target=0)
MIRRORED = Trigger("mirrored", lambda pictures: pictures[:, :, ::-1], target=1, source=7)


def clean(inputs: Array, targets: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """No poison: what an adversary trains on in its honest rounds."""
    return inputs, targets


@register
def patch(knowledge: Knowledge) -> Attack:
    """A white patch of 3 × 3 pixels → class 0, in every round."""
    return _always(knowledge, PATCH)


@register
def central(knowledge: Knowledge) -> Attack:
    """The patch in the middle of the picture → class 0, in every round."""
    return _always(knowledge, CENTRAL)


@register
def semantic(knowledge: Knowledge) -> Attack:
    """Mirrored sevens → class 1, in every round."""
    return _always(knowledge, MIRRORED)


@register
def replacement(knowledge: Knowledge, at: int) -> Attack:
    """The patch in a single round, boosted so that the mean replaces the server's model.

    The boost is J/f, for J parties of which f are adversaries (Bagdasaryan et al. 2020): a plain
    average is then the poisoned model, as far as honest updates cancel out.

    at  the round, counted from 0; before and after it they are honest
    """
    return _sometimes(knowledge, lambda round: round == at, boosted=True)


@register
def rare(knowledge: Knowledge, every: int = 10) -> Attack:
    """The patch in the middle one of every ``every`` rounds; they are honest in the others."""
    return _sometimes(knowledge, lambda round: round % every == every // 2)


@register
def constrained(knowledge: Knowledge) -> Attack:
    """The patch's update, made typical in length and in angle.

    No longer than the median honest update, and mixed with the honest mean μ until its cosine with
    μ is that of the median honest update.
    """
    train = trainer(knowledge, "constrained trains on the patch")

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        rows = [typical(row, honest) for row in train(PATCH.poison, count)]
        return send(np.stack(rows), honest, count)

    return attack


def typical(update: Array, honest: Array) -> Array:
    """An update (K,), turned towards the honest mean and shortened as little as necessary."""
    mu = moments(honest)[0]
    lengths = np.linalg.norm(honest.astype(np.float64), axis=1)
    ahead = mu / (np.linalg.norm(mu) or 1.0)
    cosine = float(np.median(honest @ ahead / np.where(lengths > 0, lengths, 1.0)))
    length = float(np.linalg.norm(update.astype(np.float64)))
    along = float(update @ ahead)
    if along < cosine * length:
        aside = update - along * ahead
        aside /= np.linalg.norm(aside) or 1.0
        update = length * (cosine * ahead + np.sqrt(max(1 - cosine**2, 0.0)) * aside)
    return update * min(1.0, float(np.median(lengths)) / (length or 1.0))


def _always(knowledge: Knowledge, trigger: Trigger) -> Attack:
    train = trainer(knowledge, "a backdoor is trained")
    return lambda honest, count, rng: train(trigger.poison, count)


def _sometimes(knowledge: Knowledge, when: Callable[[int], bool], boosted: bool = False) -> Attack:
    train, round = trainer(knowledge, "a backdoor is trained"), -1

    def attack(honest: Array, count: int, rng: np.random.Generator) -> Array:
        nonlocal round
        round += 1
        if not when(round):
            return train(clean, count)
        boost = (len(honest) + count) / count if boosted else 1.0
        return send(boost * train(PATCH.poison, count), honest, count)

    return attack


# The attacks of this module, and what each plants.
TRIGGERS = {
    "patch": PATCH,
    "central": CENTRAL,
    "semantic": MIRRORED,
    "replacement": PATCH,
    "constrained": PATCH,
    "rare": PATCH,
}
