"""ByzFL's aggregators through our door, against formulas written out here."""

import subprocess
import sys

import numpy as np
import pytest

import consilience as cs
from consilience.estimators.catalogue import Method
from consilience.lab.models import torch
from consilience.lab.peers import byzfl, peer, peers

F = 2


@pytest.fixture
def updates() -> np.ndarray:
    rng = np.random.default_rng(0)
    honest = 1 + rng.standard_normal((7, 40))
    return np.vstack([honest, 30 * rng.standard_normal((F, 40))]).astype(np.float32)


def trimmed(rows: np.ndarray) -> np.ndarray:
    return np.array([np.mean(sorted(column)[F:-F]) for column in rows.T])


def mixed(rows: np.ndarray) -> np.ndarray:
    """Clip to norm 2, then replace each by the mean of its J - f nearest, itself among them."""
    clipped = [row * min(1, 2 / np.linalg.norm(row)) for row in rows.astype(np.float64)]
    result = []
    for row in clipped:
        near = sorted(clipped, key=lambda other: np.linalg.norm(row - other))
        result.append(np.mean(near[: len(rows) - F], axis=0))
    return np.array(result)


def test_the_trimmed_mean(updates: np.ndarray) -> None:
    assert np.allclose(peer("byzfl-trmean", F)(updates), trimmed(updates), atol=1e-5)
    assert not np.allclose(peer("byzfl-trmean", 1)(updates), trimmed(updates), atol=1e-2)


def test_mixing_comes_first(updates: np.ndarray) -> None:
    found = peer("byzfl-nnm-trmean", F)(updates)
    assert np.allclose(found, trimmed(mixed(updates)), atol=1e-5)
    median = peer("byzfl-nnm-median", F)(updates)
    assert np.allclose(median, np.median(mixed(updates), axis=0), atol=1e-5)


@pytest.mark.parametrize("name", peers())
def test_every_peer_answers_and_leaves_its_input_alone(name: str, updates: np.ndarray) -> None:
    before, state = updates.copy(), torch.random.get_rng_state()
    answer = peer(name, F)(updates)
    assert answer.shape == (40,)
    assert np.isfinite(answer).all()
    assert np.array_equal(updates, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(5)  # the global generator has no say
    assert np.array_equal(peer(name, F)(updates), answer)


def test_a_peer_that_does_not_end_is_stopped(updates: np.ndarray) -> None:
    updates[-1] = 1e6
    endless = peer("byzfl-caf", F)
    endless.limit = 0.2
    with pytest.raises(TimeoutError, match=r"no answer in 0\.2 seconds"):
        endless(updates)


def test_an_unknown_peer_is_told_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'byzfl-mode'.*byzfl-nnm-trmean"):
        peer("byzfl-mode", F)


def ours(method: Method, rows: np.ndarray) -> np.ndarray:
    return cs.aggregate(rows, method, exact=True).value


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("f", [1, 3])
def test_ours_equal_byzfl(f: int, seed: int) -> None:
    """In float64, to rounding: what is mixed or clipped, and what is made of it."""
    rules, before = byzfl("aggregators.aggregators"), byzfl("aggregators.preaggregators")
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal(60) + rng.standard_normal((9, 60))
    rows[-f:] = [-rows[:-f].mean(axis=0), 9 * rng.standard_normal(60)][seed % 2]
    radius = float(np.linalg.norm(rows, axis=1).mean())

    def mixed(rows: np.ndarray) -> np.ndarray:
        return before.NNM(f)(rows.copy())

    def clipped(rows: np.ndarray) -> np.ndarray:
        return before.ARC(f)(rows.copy())

    about = cs.CentredClipping(radius / np.sqrt(60), 3)
    for found, expected in (
        (ours(cs.NNM(cs.Mean(), f), rows), mixed(rows).mean(axis=0)),
        (ours(cs.ARC(cs.Mean(), f), rows), clipped(rows).mean(axis=0)),
        (ours(cs.ARC(cs.NNM(cs.Mean(), f), f), rows), mixed(clipped(rows)).mean(axis=0)),
        (ours(cs.MDA(f), rows), rules.MDA(f)(rows)),
        (ours(cs.ARC(cs.MDA(f), f), rows), rules.MDA(f)(clipped(rows))),
        (ours(about, rows), rules.CenteredClipping(L=3, tau=radius)(rows)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_our_caf_equals_byzfl_where_its_direction_is_exact() -> None:
    """In one coordinate; in more, ByzFL takes one step towards it from a random one. And where two
    means are enough; beyond, parties without weight still set the scale of ByzFL's steps."""
    rows = np.array([-1.6, -1.4, -1.3, -1.2, -0.6, 0.9, 1.3, 1.4])[:, None]
    found = ours(cs.CAF(2), rows)
    np.testing.assert_allclose(found, byzfl("aggregators.aggregators").CAF(2)(rows), rtol=1e-12)
    assert abs(found[0] - rows.mean()) > 0.3


def python(script: str) -> str:
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_torchvision_is_not_needed_and_byzfl_not_left_half_imported() -> None:
    script = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from consilience.lab.peers import peer; peer('byzfl-nnm-krum', 1)\n"
        "print('byzfl' in sys.modules, 'byzfl.aggregators.aggregators' in sys.modules)"
    )
    assert python(script) == "False True\n"


def test_a_missing_byzfl_is_named_with_the_extra() -> None:
    script = (
        "import sys; sys.modules['byzfl'] = None\n"
        "from consilience.cli.commands import app\n"
        "try: app(['bench', 'robustness', '--methods', 'byzfl-krum'])\n"
        "except SystemExit as end: print(end.code)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "2\n"
    assert "consilience[bench]" in found.stderr.replace("\n", "")
