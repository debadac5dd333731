"""What a round counts for in a memory: one unusual round does not hide what all others told."""

import numpy as np
import pytest

import consilience as cs
from consilience.evidence import Block, Evidence
from consilience.moderation import as_sampled, moderated, on_scale_of
from consilience.passes.sampling import most_read, sampled_spans

PARTIES = tuple(f"p{j}" for j in range(10))


def shares(loud, rounds, *, noise=lambda t: 1.0, size=2000):
    """Return each party's weight times the number of parties, by round, (rounds, 10); ``loud``
    tells how loud a party is in a round, ``noise`` how loud all are."""
    random, memory, found = np.random.default_rng(0), cs.Memory(seed=1), []
    for t in range(rounds):
        X = noise(t) * random.standard_normal((10, size))
        X *= np.array([loud(j, t) for j in range(10)])[:, None]
        consensus = cs.aggregate(dict(zip(PARTIES, X, strict=True)), memory=memory, seed=t)
        found.append([consensus.weights[party] * 10 for party in PARTIES])
    return np.array(found)


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e30])
def test_one_exploded_update_is_forgiven(factor):
    heard = shares(lambda j, t: factor if (j, t) == (0, 5) else 1.0, 60)[:, 0]
    assert heard[5] < 0.01
    assert heard[5 + 15] > 0.1
    assert heard[-1] > 0.8


def test_a_bad_start_is_forgiven_while_the_noise_of_all_falls():
    heard = shares(lambda j, t: 3.0 if j == 0 and t < 3 else 1.0, 90, noise=lambda t: 0.9**t)
    assert heard[2, 0] < 0.3
    assert heard[-1, 0] > 0.8


def test_who_was_good_before_a_smaller_step_is_not_excused_after_it():
    def loud(j, t):
        return 2.9 if j == 0 and t >= 20 else 1.0

    same = shares(loud, 30)[:, 0]
    smaller = shares(loud, 30, noise=lambda t: 0.1 if t >= 20 else 1.0)[:, 0]
    assert same[29] < 0.2
    assert smaller[29] < 1.5 * same[29]


def test_a_round_read_in_full_counts_as_one_that_was_sampled():
    distances = np.ones((11, 11)) - np.eye(11)
    size = 100_000_000
    sampled = sum(b - a for a, b in sampled_spans(size, 10, np.random.default_rng(0)))
    memory = cs.Memory()
    for count in (sampled, size):
        now = Evidence((Block(PARTIES, distances, float(count)),))
        recalled = memory.recall(now)
        memory.keep(now, cs.Pairwise().infer(recalled))
    (block,) = memory.evidence.blocks
    assert block.count == pytest.approx(1.9 * sampled, rel=0.02)


@pytest.mark.parametrize("parties", [2, 4, 5, 10, 50, 200, 1000])
def test_no_sample_has_more_coordinates_than_a_round_counts(parties):
    for size in (2**17 + 1, 10**6, 10**8):
        spans = sampled_spans(size, parties, np.random.default_rng(0))
        read = sum(stop - start for start, stop in spans)
        assert read <= most_read(parties) or read == size


def of(distances, count=1000.0):
    return Evidence((Block(PARTIES, distances, count),))


def random_evidence(seed=0, scale=1.0):
    points = np.random.default_rng(seed).standard_normal((11, 50)) * scale
    return of(((points[:, None] - points) ** 2).mean(axis=2))


def test_ordinary_rounds_count_as_they_are():
    now, past = random_evidence(0), random_evidence(1, 3.0)
    for found, given in (
        (as_sampled(now), now),
        (moderated(now), now),
        (on_scale_of(now, past), past),
    ):
        np.testing.assert_array_equal(found.blocks[0].distances, given.blocks[0].distances)
        assert found.blocks[0].count == given.blocks[0].count


def test_older_rounds_are_scaled_to_the_latest_and_only_down():
    now, past = random_evidence(0), random_evidence(1, 4.0)
    (found,) = on_scale_of(now, past).blocks
    assert np.median(found.typical_distances) == pytest.approx(
        np.median(now.blocks[0].typical_distances), rel=0.2
    )
    ratios = found.distances[found.distances > 0] / past.blocks[0].distances[found.distances > 0]
    np.testing.assert_allclose(ratios, ratios[0])
    (kept,) = on_scale_of(past, now).blocks
    assert kept is now.blocks[0]


def test_a_minority_cannot_have_older_rounds_scaled():
    past, now = random_evidence(1, 2.0), random_evidence(0)
    distances = now.blocks[0].distances.copy()
    distances[:4, :4] *= 1e-9  # four send nearly the same
    (kept,) = on_scale_of(of(distances), past).blocks
    assert kept is past.blocks[0]


def test_equal_parties_have_no_scale():
    past, now = random_evidence(1), of(np.zeros((11, 11)))
    assert on_scale_of(now, past).blocks[0] is past.blocks[0]
    assert on_scale_of(past, now).blocks[0] is now.blocks[0]
    np.testing.assert_array_equal(moderated(now).blocks[0].distances, 0)


def test_a_huge_party_is_kept_at_a_hundred_typical_distances():
    now = random_evidence(0)
    distances = now.blocks[0].distances.copy()
    distances[3] *= 1e12
    distances[:, 3] *= 1e12
    (found,) = moderated(of(distances)).blocks
    others = [j for j in range(11) if j != 3]
    np.testing.assert_array_equal(
        found.distances[np.ix_(others, others)], distances[np.ix_(others, others)]
    )
    assert found.typical_distances[3] == pytest.approx(100 * found.typical)
    np.testing.assert_array_equal(found.distances, found.distances.T)


def test_a_memory_of_an_exploded_round_can_be_saved_and_read(tmp_path):
    memory, random = cs.Memory(seed=1), np.random.default_rng(0)
    X = random.standard_normal((10, 500))
    for factor in (1.0, 1e30, 1.0):
        cs.aggregate(np.vstack([factor * X[:1], X[1:]]), memory=memory)
    memory.save(tmp_path / "memory.npz")
    again = cs.Memory.load(tmp_path / "memory.npz")
    (before,), (after,) = memory.evidence.blocks, again.evidence.blocks
    np.testing.assert_array_equal(after.distances, before.distances)
