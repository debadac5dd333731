"""ByzFL's aggregators through our door, against formulas written out here."""

import subprocess
import sys

import numpy as np
import pytest

from consilience.lab.models import torch
from consilience.lab.peers import peer, peers

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
