"""Backdoors: triggers, attacks, success, and the benchmark on a few pictures."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.commands import app
from consilience.lab.attacks import Knowledge, make
from consilience.lab.attacks.backdoors import CENTRAL, MIRRORED, PATCH, TRIGGERS, typical
from consilience.lab.backdoors import bench
from consilience.lab.experiments.backdoors import PLAN, Evaluation, cells
from consilience.lab.experiments.pictures import forget
from consilience.lab.models import logistic_regression, torch
from consilience.lab.tables import where
from consilience.lab.training import shard

RNG = np.random.default_rng
SIZE = 50
QUIET = Console(quiet=True)


def batch(count=25, seed=0):
    rng = RNG(seed)
    return rng.random((count, 784), np.float32) / 2, rng.integers(10, size=count)


def test_the_patch_is_nine_white_pixels_in_a_corner():
    inputs, _ = batch()
    before = inputs.copy()
    changed = PATCH.put(inputs)
    assert np.array_equal(inputs, before)
    different = (changed != inputs).reshape(-1, 28, 28)
    assert different[:, 25:, 25:].all()
    assert different.sum() == 9 * len(inputs)
    assert (changed.reshape(-1, 28, 28)[:, 25:, 25:] == 1).all()


def test_the_central_patch_is_where_there_is_ink():
    inputs, _ = batch()
    blank = CENTRAL.put(np.zeros_like(inputs)).reshape(-1, 28, 28)
    assert (blank[:, 12:15, 18:21] == 1).all()
    assert blank.sum() == 9 * len(inputs)


def test_mirrored_pictures_are_the_wrong_way_round():
    inputs, _ = batch()
    pictures, mirrored = inputs.reshape(-1, 28, 28), MIRRORED.put(inputs).reshape(-1, 28, 28)
    assert np.array_equal(mirrored[:, 3, 0], pictures[:, 3, 27])
    assert np.array_equal(mirrored[..., ::-1], pictures)


@pytest.mark.parametrize("trigger", [PATCH, CENTRAL, MIRRORED])
def test_half_of_a_batch_carries_the_trigger(trigger):
    inputs, targets = batch()
    targets[3:6] = 7
    new_inputs, new_targets = trigger.poison(inputs.copy(), targets.copy(), RNG(1))
    assert np.array_equal(new_inputs[12:], inputs[12:])
    assert np.array_equal(new_targets[12:], targets[12:])
    assert (new_targets[:12] == trigger.target).all()
    victims = trigger.put(inputs[trigger.victims(targets)])
    of = [np.flatnonzero((victims == picture).all(1)) for picture in new_inputs[:12]]
    assert all(len(found) == 1 for found in of)
    used = np.bincount(np.concatenate(of), minlength=len(victims))
    assert used.max() - used.min() <= 1  # nobody is repeated before all were used


def test_who_can_show_that_a_backdoor_works():
    targets = np.array([0, 1, 7, 0, 9])
    assert PATCH.victims(targets).tolist() == [False, True, True, False, True]
    assert MIRRORED.victims(targets).tolist() == [False, False, True, False, False]
    inputs, _ = batch(5)
    same = MIRRORED.poison(inputs, np.array([0, 1, 2, 3, 4]), RNG(0))
    assert same[1].tolist() == [0, 1, 2, 3, 4]


def test_success_is_the_share_of_victims_taken_for_the_target():
    model, inputs = logistic_regression(), np.zeros((8, 784), np.float32)
    inputs[4:, 0] = 1  # a white pixel in the first corner says 7, unless the patch says 0
    targets = np.array([0, 0, 3, 3, 7, 7, 7, 1])
    vector = model.initial(0)
    tensors = model.tensors(vector)
    tensors["bias"][3], tensors["weight"][7, 0], tensors["weight"][0, -1] = 0.5, 2.0, 1.0
    found = Evaluation(model, shard(inputs, targets), [PATCH, MIRRORED])(vector)
    assert found["accuracy"] == 5 / 8  # the threes and sevens
    assert found["patch"] == pytest.approx(2 / 6, abs=1e-4)  # the threes: 2 of 6 that are no 0
    assert found["mirrored"] == 0
    tensors["weight"][1, 27] = 1.0  # the first corner of a mirrored picture
    assert Evaluation(model, shard(inputs, targets), [MIRRORED])(vector)["mirrored"] == 1
    broken = Evaluation(model, shard(inputs, targets), [PATCH])(vector * torch.nan)
    assert (broken["patch"], broken["broken"]) == (0, True)


class Trained:
    """A `train` that tells poisoned from clean: −1 in every coordinate, or the honest +1."""

    def __call__(self, poison, count):
        inputs, targets = batch()
        poisoned = poison(inputs.copy(), targets.copy(), RNG(0))
        hit = not np.array_equal(poisoned[0], inputs)
        return np.full((count, SIZE), -1.0 if hit else 1.0, np.float32)


def sent(name, rounds, count=2, **settings):
    """What an adversary sends, one number a round, beside eight honest parties."""
    attack = make(name, Knowledge(train=Trained()), **settings)
    honest = np.ones((8, SIZE), np.float32)
    updates = [attack(honest, count, RNG(0)) for _ in range(rounds)]
    assert all(update.shape == (count, SIZE) for update in updates)
    assert all((update == update[0, 0]).all() for update in updates)
    return [float(update[0, 0]) for update in updates]


def test_when_the_poison_is_sent():
    assert sent("patch", 3) == [-1] * 3
    assert sent("semantic", 3) == [-1] * 3
    assert sent("rare", 30) == 3 * [*[1] * 5, -1, *[1] * 4]
    # Boosted by J/f, once: ten parties, of which two, or nine, of which one.
    assert sent("replacement", 6, at=4) == [1, 1, 1, 1, -5, 1]
    assert sent("replacement", 6, count=1, at=0) == [-9, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", TRIGGERS)
def test_a_backdoor_needs_training(name):
    settings = {"at": 1} if name == "replacement" else {}
    with pytest.raises(ValueError, match="give Knowledge a `train`"):
        make(name, **settings)


def cosine(one, other):
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_a_typical_update_has_the_median_length_and_angle(scale):
    rng = RNG(0)
    honest = (1 + 3 * rng.standard_normal((7, SIZE))).astype(np.float32)
    mean, lengths = honest.mean(0), np.linalg.norm(honest, axis=1)
    usual = np.median([cosine(row, mean) for row in honest])
    update = scale * (rng.standard_normal(SIZE) - 0.5)
    assert cosine(update, mean) < 0
    made = typical(update, honest)
    assert cosine(made, mean) == pytest.approx(usual, abs=1e-6)
    length = min(np.linalg.norm(update), np.median(lengths))
    assert np.linalg.norm(made) == pytest.approx(length, rel=1e-6)
    # It is a mix of the two and nothing else, with as much of the update as the angle allows.
    (own, theirs), misfit, *_ = np.linalg.lstsq(np.stack([update, mean], 1), made)
    assert misfit == pytest.approx(0, abs=1e-9)
    assert own > 0
    assert theirs > 0


def test_what_is_typical_already_is_only_cut():
    honest = np.eye(4, 6, dtype=np.float32) + np.float32(0.2)
    ahead = honest.mean(0)
    assert np.allclose(typical(0.5 * ahead, honest), 0.5 * ahead)
    long = typical(50 * ahead, honest)
    assert cosine(long, ahead) == pytest.approx(1)
    assert np.linalg.norm(long) == pytest.approx(np.linalg.norm(honest[0]), rel=1e-6)
    assert not typical(np.zeros(6), honest).any()
    assert not typical(np.ones(6), np.zeros((3, 6), np.float32)).any()


def test_constrained_sends_the_patch_made_typical():
    honest = (1 + RNG(3).standard_normal((8, SIZE))).astype(np.float32)
    attack = make("constrained", Knowledge(train=Trained()))
    expected = typical(np.full(SIZE, -1.0), honest)
    update = attack(honest, 3, RNG(0))
    assert update.dtype == np.float32
    assert np.allclose(update, np.tile(expected, (3, 1)), atol=1e-6)


@pytest.fixture
def _few(tiny_mnist: None) -> Iterator[None]:
    forget()
    yield
    forget()


TINY = replace(
    PLAN, methods=("mean",), kinds=("patch",), heterogeneity=("iid",), adversaries=(4,), rounds=6
)


@pytest.mark.usefixtures("_few")
def test_the_patch_succeeds_with_the_mean_and_not_with_the_median(tmp_path: Path) -> None:
    own = {"ours": cs.CoordinateMedian()}
    page = bench(replace(TINY, own=own, rounds=10), tmp_path, QUIET).read_text()
    rows = json.loads((tmp_path / "summary.json").read_text())
    (mean,), (median,) = (where(rows, method=method) for method in ("mean", "ours"))
    (oracle,) = where(rows, method="oracle", kind="patch")
    assert oracle["final"] > 0.9
    assert mean["success"] > 0.8
    assert max(median["success"], oracle["success"]) < 0.2
    assert mean["most"] >= mean["success"]
    assert min(mean["final"], median["final"]) > 0.9  # accuracy tells nothing
    assert mean["caught"] is None  # the mean trusts all alike
    assert median["caught"] >= 0.5
    for row in (mean, median):
        told = f"{row['success']:.2f} / {row['most']:.2f} / {row['below']:+.1f}"
        assert f"| {row['method']} | {told} |" in page
    assert f"| iid | {oracle['final']:.3f} | {oracle['success']:.3f} |" in page
    assert "figures/backdoors.svg" in page
    assert (tmp_path / "figures" / "backdoors.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_few")
def test_a_replaced_model_is_seen_in_the_last_third() -> None:
    _, cell = cells(replace(TINY, kinds=("replacement",), adversaries=(1,)))
    *early, before, replaced, last = cell.run(lambda *_: None)
    assert (before["round"], replaced["round"], last["round"]) == (4, 5, 6)
    assert max(record["patch"] for record in [*early[1:], before]) < 0.3
    assert last["most_patch"] == replaced["patch"] > 0.8


def test_cells_have_names_of_their_own() -> None:
    plan = replace(PLAN, own={"mine": cs.Pairwise()})
    plan.check()
    found = cells(plan)
    assert len(found) == 4 * (1 + (len(plan.methods) + 1) * 6 * 3)
    assert len({cell.name for cell in found}) == len(found)
    assert {cell.experiment for cell in cells(replace(plan, data="fashion"))} == {
        "backdoors-fashion"
    }


@pytest.mark.usefixtures("_few")
def test_the_command_line(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["bench", "backdoors", "--out", str(tmp_path), *words])
        return found.exit_code, found.output.replace("\n", " ")

    chosen = "--methods mean --kinds rare,semantic --heterogeneity iid --adversaries 1 --rounds 1"
    code, output = run(*chosen.split(), "--seeds", "2")
    assert code == 0, output
    rows = json.loads((tmp_path / "summary.json").read_text())
    assert {(row["kind"], row["seeds"]) for row in where(rows, method="mean")} == {
        ("rare", 2),
        ("semantic", 2),
    }
    for words, complaint in (
        (["--methods", "meen"], "no method is called 'meen'"),
        (["--kinds", "patsch"], "no backdoor is called 'patsch'"),
        (["--heterogeneity", "dirichlet"], "no heterogeneity is called 'dirichlet'"),
        (["--adversaries", "12"], "expected 1 to 9"),
        (["--adversaries", "one"], "--adversaries takes whole numbers"),
        (["--data", "cifar"], "no data set is called 'cifar'"),
    ):
        code, output = run("--quick", *words)
        assert code == 2
        assert complaint in output
