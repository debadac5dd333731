"""Nothing on the word of one: who is heard how far, and where nobody is asked for a witness."""

import numpy as np
import pytest

import consilience as cs
from consilience.passes.corroborate import (
    Corroboration,
    Witnesses,
    _shares_alone,
    corroborated,
    witnesses_of,
)

SIZE = 20_000


def noisy(parties=11, size=SIZE, seed=0):
    X = np.random.default_rng(seed).standard_normal((parties, size), np.float32)
    return {f"p{j:02}": x for j, x in enumerate(X)}


def lone_knowers(parties=10, size=SIZE, seed=0):
    """Each party alone knows a tenth of the coordinates; of the others it has noise."""
    updates = noisy(parties, size, seed)
    for x, mine in zip(updates.values(), np.array_split(np.arange(size), parties), strict=True):
        x[mine] += 10
    return updates


def test_sparse_poison_moves_nothing_and_is_named():
    for seed in range(3):
        updates = noisy(seed=seed, size=200_000)
        at = np.random.default_rng(seed).choice(200_000, 100, replace=False)
        updates["p00"][at] += 40
        consensus = cs.aggregate(updates)
        before = cs.aggregate(updates, cs.Pairwise(corroborate=False))
        assert consensus.value[at].mean() < 0.7
        assert before.value[at].mean() > 1.5
        assert "its word alone" in consensus.reasons["p00"]
        assert list(consensus.reasons) == ["p00"]


def test_who_is_heard_less_for_what_it_alone_says_is_told():
    """A few large numbers, anew in every round, are no quarter of a party's difference."""
    memory, random = cs.Memory(seed=0), np.random.default_rng(0)
    for seed in range(10):
        updates = noisy(10, 5000, seed)
        updates["p09"][random.choice(5000, 8, replace=False)] += 20
        found = cs.aggregate(updates, memory=memory, seed=0)
    assert found.weights["p09"] < 0.1 * found.weights["p00"]
    assert found.uncorroborated["p09"] < 0.25
    assert found.reasons.keys() == {"p09"}
    assert found.reasons["p09"].endswith("% of its difference is its word alone: heard less")


def test_the_honest_lose_next_to_nothing():
    consensus = cs.aggregate(noisy())
    assert max(consensus.uncorroborated.values()) < 0.002
    assert not consensus.reasons
    plain = cs.aggregate(noisy(), cs.Pairwise(corroborate=False))
    assert not plain.uncorroborated
    assert np.square(consensus.value).mean() < 1.002 * np.square(plain.value).mean()


def test_where_each_knows_something_of_its_own_nobody_needs_a_witness():
    consensus = cs.aggregate(lone_knowers())
    assert not consensus.uncorroborated
    assert consensus.value.mean() == pytest.approx(1.0, abs=0.05)
    strict = cs.aggregate(lone_knowers(), cs.Pairwise(corroborate=True))
    assert strict.value.mean() < 0.7  # ten beyond zero is cut to two spans beyond the second
    assert min(strict.uncorroborated.values()) > 0.1


def test_a_few_parties_are_nobodys_witnesses():
    updates = noisy(6)
    assert not cs.aggregate(updates).uncorroborated
    assert cs.aggregate(updates, cs.Pairwise(corroborate=True)).uncorroborated


def test_what_is_cut_is_told_of_the_usable_alone():
    updates = noisy(12)
    updates["p03"] = np.full(SIZE, np.nan, np.float32)
    consensus = cs.aggregate(updates)
    assert set(consensus.uncorroborated) == set(updates) - {"p03"}


def test_infinity_where_no_sample_looks_is_found_all_the_same():
    updates = noisy(12, 400_000)
    updates["p03"][271_828] = np.inf
    consensus = cs.aggregate(updates)
    assert list(consensus.rejected) == ["p03"]
    assert consensus.uncorroborated


def test_the_heavy_are_one_witness_each_and_copies_are_none():
    assert (
        witnesses_of(np.array([0.4, *[0.1] * 6, *[0.01] * 3])).tolist() == [True] * 7 + [False] * 3
    )
    assert witnesses_of(np.array([-0.1, 0.5, 0.6])).tolist() == [False, True, True]


def test_copies_do_not_bear_each_other_out():
    """Six copies weigh as much as one other party, and must not silence it as one voice."""
    first, other = np.random.default_rng(0).standard_normal((2, 5000))
    updates = {f"copy{j}": first for j in range(6)} | {"other": other}
    consensus = cs.aggregate(updates)
    assert len(consensus.groups[0]) == 6
    assert not consensus.uncorroborated
    expected = consensus.weights["other"] * (other - first) + first
    np.testing.assert_allclose(consensus.value, expected, rtol=1e-6, atol=1e-9)


def test_of_a_group_one_is_a_witness():
    sample = np.array(list(noisy(12, 4096).values()))
    weights, alone = np.full(12, 1 / 12), np.arange(12) < 9
    assert corroborated(sample, weights, Corroboration())[1].there == b"\1" * 12
    assert corroborated(sample, weights, Corroboration(), alone)[1].there == b"\1" * 9 + b"\0" * 3
    assert corroborated(sample, weights, Corroboration(), alone & (np.arange(12) < 6))[1] is None


def test_who_is_singled_out_counts_less_where_parties_are_known_to_differ_mildly():
    sample = np.array(list(noisy(11, 4096).values()))
    sample[0, :200] += 30
    weights = np.full(11, 1 / 11)
    kept, found = corroborated(sample, weights, Corroboration(mild=True))
    assert found is not None
    assert kept.sum() == pytest.approx(1.0)
    assert kept[0] < 0.1 / 11
    assert np.ptp(kept[1:]) == 0
    same, found = corroborated(sample, weights, Corroboration())
    assert found is not None
    assert (same == weights).all()


def test_a_memory_of_errors_that_fade_makes_who_is_singled_out_count_less():
    memory, weight = cs.Memory(seed=0), []
    for seed in range(12):
        updates = noisy(seed=seed, size=5000)
        updates["p00"][seed * 100 : seed * 100 + 60] += 12
        weight.append(cs.aggregate(updates, memory=memory).weights["p00"])
    assert weight[-1] < 0.6 * weight[0]


def test_asked_for_it_is_done_with_few_coordinates_too():
    updates = {name: x[:40] for name, x in noisy(9).items()}
    updates["p00"][7] = 500.0
    consensus = cs.aggregate(updates, cs.Pairwise(corroborate=True))
    assert abs(consensus.value[7]) < 2
    assert not cs.aggregate(updates).uncorroborated


def test_corroborate_is_true_false_or_none():
    with pytest.raises(cs.ConsilienceError, match="True, False or None, found 'yes'"):
        cs.Pairwise(corroborate="yes")


def test_who_is_left_has_no_more_than_half():
    sample = np.array(list(noisy(7, 4096).values()))
    sample[1, :200] += 30
    weights = np.array([0.49, *[0.085] * 6])
    kept, found = corroborated(sample, weights, Corroboration(mild=True))
    assert found is not None
    assert kept[1] < 0.05
    assert kept.max() <= 0.5
    assert kept.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("mild", [False, True])
def test_most_parties_are_no_lone_voices(mild):
    """Few who are near each other, and believed, do not cut off the many."""
    sample = np.array(list(noisy(17, 4096).values()))
    sample[10:] = sample[10] + 0.05 * sample[10:]
    weights = np.array([0.01] * 10 + [0.9 / 7] * 7)
    kept, found = corroborated(sample, weights, Corroboration(mild=mild))
    assert found is None
    np.testing.assert_array_equal(kept, weights)


@pytest.mark.parametrize("scale", [1e-26, 1e-15, 1.0, 1e25])
def test_what_squares_beyond_single_precision_show_is_the_same(scale):
    sample = np.array(list(noisy(9, 4096).values()), np.float32)
    sample[1, :200] += 30
    weights = np.full(9, 1 / 9)
    kept, _ = corroborated(np.float32(scale) * sample, weights, Corroboration(mild=True))
    expected, _ = corroborated(sample.astype(float), weights, Corroboration(mild=True))
    np.testing.assert_allclose(kept, expected, rtol=1e-4)
    assert kept[1] < 0.05


@pytest.mark.parametrize("mild", [False, True])
def test_where_several_stand_alone_nobody_is_cut_off_nor_loses_weight(mild):
    """However much of their errors fades: a class that is cut off is forgotten."""
    sample = np.array(list(noisy(10, 4096).values()))
    for j in range(4):
        sample[j, 100 * j : 100 * j + 20] += 30
    kept, found = corroborated(sample, np.full(10, 0.1), Corroboration(mild=mild))
    assert found is None
    np.testing.assert_array_equal(kept, np.full(10, 0.1))


@pytest.mark.parametrize("lone", [1, 2])
def test_where_errors_are_settled_two_lone_voices_are_heard(lone):
    sample = np.array(list(noisy(11, 4096).values()))
    for j in range(lone):
        sample[j, 100 * j : 100 * j + 20] += 30
    weights, rule = np.full(11, 1 / 11), Corroboration(settled=True)
    assert corroborated(sample, weights, Corroboration())[1] is not None
    assert (corroborated(sample, weights, rule)[1] is None) == (lone == 2)
    one = np.arange(11) != 1  # the two move together: one voice
    assert corroborated(sample, weights, rule, one)[1] is not None


@pytest.mark.parametrize(("by", "heard"), [(9, False), (30, True)])
def test_a_backdoor_is_not_heard_for_the_sake_of_one_that_hardly_stands_alone(by, heard):
    """An honest party knows a class a little better: it loses 3 %, the backdoor 60 %."""
    sample = np.array(list(noisy(11, 4096).values()))
    sample[0, :20] += 30
    sample[1, 100:120] += by
    weights = np.full(11, 1 / 11)
    shares = _shares_alone(sample, weights, Witnesses(bytes([1]) * 11, 2.0))
    assert shares[0] > 0.5
    assert shares[1] > Corroboration().alone
    found = corroborated(sample, weights, Corroboration(settled=True))[1]
    assert (found is None) == heard


def test_who_is_hardly_believed_is_no_lone_voice():
    """Two broken machines beside a backdoor: they do not make it look like knowledge."""
    sample = np.array(list(noisy(13, 4096).values()))
    sample[0, :20] += 30
    sample[11:] = 10 * np.random.default_rng(5).standard_t(2, (2, 4096))
    weights = np.full(13, 1 / 11.02)
    weights[11:] = 0.01 / 11.02
    kept, found = corroborated(sample, weights, Corroboration(settled=True))
    assert found is not None
    np.testing.assert_array_equal(kept, weights)


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_a_memory_of_errors_that_stay_lets_two_be_the_only_ones_to_know(momentum):
    """Their errors are the same in every round, or fresh."""
    memory = cs.Memory(seed=0)
    for seed in range(8):
        updates = noisy(seed=0 if momentum else seed, size=5000)
        updates["p00"][:60] += 12
        updates["p01"][100:160] += 12
        found = cs.aggregate(updates, memory=memory)
    assert bool(found.uncorroborated) == (not momentum)
