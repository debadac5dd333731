"""Trees of tensors in and out, and who is turned away why."""

import logging
import math
import re
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch

import consilience as cs

Layer = namedtuple("Layer", ["weight", "bias"])


@pytest.fixture
def random():
    return np.random.default_rng(7)


def honest(random, count=4):
    """Return updates of a weight and a bias by party: p0, p1, ..."""
    return {
        f"p{j}": {"weight": random.standard_normal((3, 2)), "bias": random.standard_normal(2)}
        for j in range(count)
    }


def assert_same_tree(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same_tree(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same_tree(a, b)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def mean_tree(trees):
    first = trees[0]
    if isinstance(first, dict):
        return type(first)((key, mean_tree([tree[key] for tree in trees])) for key in first)
    if isinstance(first, list | tuple):
        parts = [mean_tree(list(parts)) for parts in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return np.asarray(np.mean(trees, axis=0))


@pytest.mark.parametrize(
    "shape",
    [
        lambda a, b, c: {"x": a, "y": {"z": b, "w": [c]}},
        lambda a, b, c: [a, (b, [c])],
        lambda a, b, c: OrderedDict(last=c, first=a, middle=b),
        lambda a, b, c: Layer(a, {"deep": Layer(b, c)}),
        lambda a, b, c: (a, b, c),
        lambda a, b, c: {0: a, "0": b, (1, 2): c},
        lambda a, b, c: {"a": a, "nothing": {}, "b.c": b, "b": {"c": c}},
    ],
)
def test_nested_structures_come_back(random, shape):
    updates = [shape(*(random.standard_normal(size) for size in [(2, 3), (), 4])) for _ in range(3)]
    found = cs.aggregate({f"p{j}": update for j, update in enumerate(updates)}, "mean").value
    assert_same_tree(found, mean_tree(updates))


def test_a_mapping_not_made_from_its_items_comes_back_as_a_dict(random):
    updates = [defaultdict(list, {"a": random.standard_normal(2)}) for _ in range(3)]
    assert type(cs.aggregate(updates, "mean").value) is dict


@pytest.mark.parametrize("method", ["mean", "ivar-vb", "coordinate-median"])
def test_names_not_their_order_decide(random, method):
    updates = honest(random)
    turned = {party: dict(reversed(update.items())) for party, update in updates.items()}
    turned["p0"] = updates["p0"]
    expected = cs.aggregate(updates, method).value
    found = cs.aggregate(turned, method).value
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def batchnorm(seed, batches):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    for _ in range(batches):
        model(torch.randn(8, 3))
    return model


def test_a_batchnorm_counter_is_voted_on():
    models = {f"p{j}": batchnorm(j, batches=j + 1) for j in range(3)}
    states = {party: model.state_dict() for party, model in models.items()}
    found = cs.aggregate(states, "mean", sample_counts={"p0": 1, "p1": 5, "p2": 2})
    counter = found.value["1.num_batches_tracked"]
    assert counter.dtype == torch.int64
    assert counter.shape == ()
    assert counter == 2
    assert max(found.weights, key=found.weights.get) == "p1"
    batchnorm(9, 0).load_state_dict(found.value)
    expected = sum(w * states[p]["0.weight"] for p, w in found.weights.items())
    torch.testing.assert_close(found.value["0.weight"], expected)
    counter += 1
    assert states["p1"]["1.num_batches_tracked"] == 2


def test_a_counter_of_another_width_is_converted():
    def update(value, count):
        return {"w": np.full(4, value), "n": count}

    close = {
        "a": update(0.50, np.arange(3, dtype=np.int32)),
        "b": update(0.51, np.arange(5, 8)),
        "c": update(9.00, np.arange(5, 8)),
    }
    found = cs.aggregate(close, "krum")
    assert found.weights["a"] == 1
    assert found.value["n"].dtype == np.int64
    np.testing.assert_array_equal(found.value["n"], [0, 1, 2])


def test_the_majority_of_booleans():
    """Whatever one party says it has samples of."""
    updates = [{"w": np.full(2, float(j)), "mask": np.array([j == 1, j > 0])} for j in range(3)]
    found = cs.aggregate(updates, "mean", sample_counts=[1, 5, 1]).value["mask"]
    assert found.dtype == bool
    np.testing.assert_array_equal(found, [False, True])


def test_the_commonest_dtypes_are_the_results():
    updates = {"a": np.ones(3), "b": np.ones(3, np.float32), "c": np.ones(3, np.float32)}
    assert cs.aggregate(updates, "mean").value.dtype == np.float32


def test_dtypes_are_compared_by_name_not_by_place():
    def update(a, b, turned=False):
        items = [("a", np.ones(2, a)), ("b", np.ones(2, b))]
        return dict(reversed(items) if turned else items)

    updates = [update("f4", "f8"), update("f8", "f4")] + [update("f4", "f8", turned=True)] * 2
    found = cs.aggregate(updates, "mean").value
    assert (found["a"].dtype, found["b"].dtype) == (np.float32, np.float64)


def spoil(update, name, value):
    return {**update, name: value}


BAD = {
    "nan": (lambda u: spoil(u, "weight", np.full((3, 2), np.nan)), r"'weight' holds nan"),
    "one nan": (
        lambda u: spoil(u, "bias", np.array([0, np.nan])),
        r"tensor 'bias' holds nan at position 1$",
    ),
    "inf": (lambda u: spoil(u, "bias", np.array([-np.inf, 0])), r"'bias' holds -inf at position 0"),
    "missing": (lambda u: {"weight": u["weight"]}, r"^tensor 'bias' is missing$"),
    "extra": (lambda u: spoil(u, "more", np.ones(1)), r"^tensor 'more' is not expected$"),
    "misnamed": (
        lambda u: {"weight": u["weight"], "bais": u["bias"]},
        r"^tensor 'bias' is missing, tensor 'bais' is not expected$",
    ),
    "misshapen": (
        lambda u: spoil(u, "weight", u["weight"].T),
        r"'weight' has shape \(2, 3\), expected \(3, 2\)",
    ),
    "integer": (
        lambda u: spoil(u, "bias", np.array([1, 2])),
        r"'bias' is int64, expected float",
    ),
    "complex": (
        lambda u: spoil(u, "bias", u["bias"] + 0j),
        r"'bias' is complex128, expected float",
    ),
    "overflow": (lambda u: spoil(u, "bias", np.full(2, 1e200)), r"holds 1e\+200 at position 0"),
    "none": (lambda u: spoil(u, "bias", None), r"'bias': expected a tensor, found NoneType"),
    "text": (lambda u: spoil(u, "bias", "0.5"), r"'bias': expected a tensor, found str"),
    "float8": (
        lambda u: spoil(u, "bias", torch.zeros(2, dtype=torch.float8_e4m3fn)),
        r"'bias': .*float8_e4m3fn",
    ),
    "no data": (lambda u: spoil(u, "bias", torch.zeros(2, device="meta")), r"'bias': .*meta"),
    "one tensor": (
        lambda u: u["weight"],
        r"expected a container with tensor 'weight', found one tensor",
    ),
    "nothing": (lambda u: {}, r"'weight' is missing, tensor 'bias' is missing"),
    "no update": (lambda u: None, r"the update: expected a tensor, found NoneType"),
}


@pytest.mark.parametrize("method", ["mean", "ivar-vb", "trimmed-mean"])
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_update_is_rejected_by_name_with_a_reason(random, caplog, case, method, first):
    """The round goes on as if the party had sent nothing, wherever it stands in the order."""
    change, reason = BAD[case]
    updates = honest(random)
    eve = "a-eve" if first else "z-eve"
    bad = {**updates, eve: change(honest(random, 1)["p0"])}
    with caplog.at_level(logging.WARNING, "consilience"):
        found = cs.aggregate(bad, method)
    assert list(found.rejected) == [eve]
    assert re.search(reason, found.rejected[eve]), found.rejected[eve]
    assert found.weights[eve] == 0
    assert np.isnan(found.noise[eve])
    assert found.parties == tuple(updates)
    assert f"party {eve} rejected" in caplog.text
    expected = cs.aggregate(updates, method)
    for name in expected.value:
        np.testing.assert_array_equal(found.value[name], expected.value[name])
    assert {p: found.weights[p] for p in updates} == expected.weights


@pytest.mark.parametrize(
    ("eve", "reason"),
    [
        ([1, 2], "the update has shape (2,), expected (3,)"),
        ((1, 2.0, 3, 4.5), "the update has shape (4,), expected (3,)"),
        ([], "the update has shape (0,), expected (3,)"),
        ([1, math.nan, 3], "the update holds nan at position 1"),
        ([1, 2, [3]], "expected one tensor, found a container with tensor '0'"),
    ],
)
def test_a_list_of_numbers_is_one_tensor(eve, reason):
    updates = {"ann": [1, 2, 3], "bob": np.array([1.0, 2.0, 4.0]), "eve": eve}
    assert cs.aggregate(updates, "mean").rejected == {"eve": reason}
    inner = {party: {"w": update} for party, update in updates.items()}
    said = cs.aggregate(inner, "mean").rejected["eve"]
    if "container" in reason:
        assert said.startswith("tensor 'w' is missing, tensor 'w.0' is not expected")
    elif not eve:  # no tensor at all
        assert said == "tensor 'w' is missing"
    else:
        assert said == reason.replace("the update", "tensor 'w'")


def test_a_list_of_numbers_comes_back_as_one():
    found = cs.aggregate({"ann": {"w": (1, 2)}, "bob": {"w": (1, 3)}}, "mean")
    assert repr(found.value) == "{'w': (1.0, 2.5)}"
    assert repr(cs.aggregate([[1, 2], [1, 4]], "mean").value) == "[1.0, 3.0]"


def test_a_list_of_numpys_numbers_is_one_tensor_too():
    row = np.array([1.0, 2.0, 3.0])
    updates = {"ann": [1, 2, 3], "bob": list(row), "cat": [1, np.float32(2), np.int64(3)]}
    found = cs.aggregate(updates, "mean", center=list(row))
    assert not found.rejected
    assert found.value == [1.0, 2.0, 3.0]


def test_an_empty_list_in_an_update_is_no_tensor():
    updates = {"ann": {"w": np.ones(3), "m": []}, "bob": {"w": np.ones(3)}}
    assert not cs.aggregate(updates, "mean").rejected


def test_lists_of_different_lengths_are_no_model():
    """Nobody keeps the tensors of a model in lists: the odd ones are rejected by name."""
    found = cs.aggregate({"ann": [1, 2, 3], "bob": [1, 2]}, "mean")
    assert found.rejected == {"bob": "the update has shape (2,), expected (3,)"}


def test_an_update_that_cannot_be_read_does_not_differ_from_the_centre():
    good = {"w": np.ones(3)}
    with pytest.raises(cs.UpdateError, match="every update was rejected"):
        cs.aggregate({"ann": "x.pt", "bob": {"v": np.ones(3)}}, center=good)
    with pytest.raises(cs.UpdateError, match="every update differs from the centre"):
        cs.aggregate({"ann": {"u": np.ones(3)}, "bob": {"v": np.ones(3)}}, center=good)


def test_many_differences_are_counted(random):
    updates = [{str(n): np.ones(1) for n in range(9)} for _ in range(3)]
    updates[2] = {"other": np.ones(1)}
    assert cs.aggregate(updates, "mean").rejected["2"].endswith("and 7 more differ")


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (-2, "-2"), (np.nan, "nan"), (np.inf, "inf"), (None, "None"), ("many", "'many'")],
)
def test_a_bad_sample_count_is_rejected(random, count, shown):
    updates = honest(random)
    counts = dict.fromkeys(updates, 10)
    found = cs.aggregate(updates, "mean", sample_counts={**counts, "p1": count})
    assert found.rejected == {"p1": f"its sample count is {shown}, expected a positive number"}
    assert found.weights == pytest.approx({"p0": 1 / 3, "p1": 0, "p2": 1 / 3, "p3": 1 / 3})


def test_missing_and_superfluous_sample_counts(random):
    updates = honest(random, 3)
    found = cs.aggregate(updates, "mean", sample_counts={"p0": 1, "p2": 3, "p9": 5})
    assert found.rejected == {}
    assert found.weights == pytest.approx({"p0": 0.2, "p1": 0.2, "p2": 0.6})  # p1 as the median
    with pytest.raises(cs.ConsilienceError, match="3 updates but 2 sample counts"):
        cs.aggregate(updates, "mean", sample_counts=[1, 2])


def test_huge_sample_counts_do_not_overflow(random):
    found = cs.aggregate(honest(random, 2), "mean", sample_counts=[1.7e308, 1.7e308])
    assert found.weights == {"p0": 0.5, "p1": 0.5}


@pytest.mark.parametrize("method", ["mean", "ivar-vb", "trimmed-mean"])
def test_nobody_left(method):
    with pytest.raises(cs.UpdateError, match=r"every update was rejected.*ann: .*nan.*bob: .*inf"):
        cs.aggregate({"ann": np.array([np.nan]), "bob": np.array([np.inf])}, method)


def test_nobody_left_names_five_at_most():
    with pytest.raises(cs.UpdateError, match=r"4: .* and 3 more\)"):
        cs.aggregate([None] * 8)


@pytest.mark.parametrize("updates", [{}, [], np.zeros((0, 3))], ids=str)
def test_nobody_at_all(updates):
    with pytest.raises(cs.UpdateError, match="no updates"):
        cs.aggregate(updates)


@pytest.mark.parametrize("updates", [None, "updates", 5.0, np.array(5.0), 7])
def test_what_are_no_updates(updates):
    with pytest.raises(cs.UpdateError, match="expected"):
        cs.aggregate(updates)


@pytest.mark.parametrize(
    "update", [np.arange(3), np.zeros(0), {}, [True], {"a": np.zeros(2, complex)}], ids=str
)
def test_no_coordinate_to_aggregate(update):
    with pytest.raises(cs.UpdateError, match="no floating-point coordinate"):
        cs.aggregate([update, update])


def test_the_centre_decides_the_structure(random):
    """Even against a majority that agrees on another one."""
    updates = {p: np.ones(2) for p in "abc"} | {"d": np.arange(3.0)}
    found = cs.aggregate(updates, "mean", center=np.zeros(3))
    assert found.rejected == dict.fromkeys("abc", "the update has shape (2,), expected (3,)")
    np.testing.assert_array_equal(found.value, [0, 1, 2])


def test_without_a_centre_the_majority_decides():
    updates = {p: np.full(2, 2.0) for p in "bcd"} | {"a": np.ones(3), "e": np.ones(3)}
    found = cs.aggregate(updates, "mean")
    assert list(found.rejected) == ["a", "e"]
    np.testing.assert_array_equal(found.value, [2, 2])


def test_a_bad_centre_is_the_callers_mistake(random):
    for center, problem in [
        (np.array([0, np.nan]), "NaN, inf"),
        ("zero", "expected a tensor, found str"),
        (np.zeros(3), r"every update differs from the centre.*expected \(3,\)"),
        (np.full(2, 1e200), r"above 1e\+50"),
    ]:
        with pytest.raises(cs.UpdateError, match=problem):
            cs.aggregate(random.standard_normal((3, 2)), center=center)


def test_ids_are_text():
    found = cs.aggregate({7: np.ones(2), "x": np.zeros(2)}, "mean", sample_counts={7: 3, "x": 1})
    assert found.weights == {"7": 0.75, "x": 0.25}
    assert found.parties == ("7", "x")
    assert cs.aggregate([np.ones(2), np.ones(2)]).parties == ("0", "1")


def test_ids_that_read_the_same():
    with pytest.raises(cs.UpdateError, match="the id '1'"):
        cs.aggregate({1: np.ones(2), "1": np.zeros(2)})


def test_a_generator_of_updates(random):
    X = random.standard_normal((4, 3))
    np.testing.assert_allclose(cs.aggregate((x for x in X), "mean").value, X.mean(axis=0))


def test_a_subclass_of_ndarray_is_read_row_by_row(random):
    X = random.standard_normal((4, 3))
    found = cs.aggregate(np.ma.masked_array(X), "mean").value
    np.testing.assert_allclose(found, X.mean(axis=0))


@pytest.mark.parametrize("method", cs.methods())
@pytest.mark.parametrize("form", ["stack", "list", "torch", "strided"])
def test_input_is_never_changed(random, method, form):
    """Read-only arrays are accepted, and writable ones keep every byte."""
    X = random.standard_normal((5, 40)).astype(np.float32)
    X[4] *= 30
    center = random.standard_normal(40).astype(np.float32)
    updates = {
        "stack": X,
        "list": [{"a": x[:30], "b": x[30:], "n": np.int64(j)} for j, x in enumerate(X)],
        "torch": torch.from_numpy(X),
        "strided": X[:, ::2],
    }[form]
    guess = {"list": {"a": center[:30], "b": center[30:], "n": np.int64(9)}}.get(
        form, center[:: 2 if form == "strided" else 1]
    )
    before = X.tobytes(), center.tobytes()
    if form != "torch":
        X.flags.writeable = center.flags.writeable = False
    found = cs.aggregate(updates, method, center=guess)
    assert (X.tobytes(), center.tobytes()) == before
    value = found.value["a"] if form == "list" else found.value
    value[...] = 0  # the result is the caller's own
    assert X.tobytes() == before[0]


@pytest.mark.parametrize("kind", [list, tuple])
def test_plain_numbers_in_a_list_are_real_numbers(kind):
    """[1, 2, 3] is what a newcomer sends; of a mapping or an array, whole numbers stay whole."""
    sent = {"ann": kind([1, 2, 3]), "bob": kind([1.1, 2, 2.9]), "eve": kind([5, -3, 9])}
    found = cs.aggregate(sent, "mean")
    assert found.rejected == {}
    np.testing.assert_allclose(found.value, [7.1 / 3, 1 / 3, 14.9 / 3])
    steps = {party: {"w": [float(j)], "steps": 5 + j} for j, party in enumerate(sent)}
    assert cs.aggregate(steps, "mean").value["steps"] == 6


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"memory": "m.npz"},
            r"memory: expected a Memory \(a file: Memory.load\(path\)\), found str",
        ),
        ({"require": {"parties": 3}}, r"require: expected a Require, .* found dict"),
        ({"record": 5}, "record: expected a Record or a path, found int"),
        ({"method": "Pairwise"}, "unknown method 'Pairwise': did you mean 'pairwise'"),
        ({"method": "coordinate_median"}, "did you mean 'coordinate-median'"),
        ({"method": "fedavg"}, "did you mean 'mean'"),
    ],
)
def test_a_mistaken_argument_is_named_with_what_was_meant(more, expected):
    with pytest.raises(cs.ConsilienceError, match=expected):
        cs.aggregate([[1, 2], [1, 3], [1, 4]], **more)


@pytest.mark.parametrize(
    ("updates", "more", "expected"),
    [
        ([np.zeros(0)] * 3, {}, "the updates are empty"),
        ([[1, 2]] * 3, {"center": [1, 2, 3]}, "every update differs from the centre"),
        ({1: [1, 2], "1": [1, 2]}, {}, "two parties have the id '1' once written as text"),
        ([torch.nn.Linear(2, 2)] * 2, {}, r"found Linear: give its state_dict\(\)"),
        ([torch.nn.Linear(2, 2).parameters()] * 2, {}, r"found generator: give a list of it"),
        (["a.npz", "b.npz"], {}, "found str; models in files: aggregate_files"),
    ],
)
def test_what_cannot_be_meant_is_told_with_what_can(updates, more, expected):
    with pytest.raises(cs.ConsilienceError, match=expected):
        cs.aggregate(updates, "mean", **more)


def test_a_number_beyond_the_limit_is_told_with_the_limit():
    found = cs.aggregate([[1.0, 2], [1.0, 2], [1.0, 1e300]], "mean")
    assert found.rejected == {"2": "the update holds 1e+300 at position 1, beyond 1e+50"}


def test_counts_of_parties_that_sent_nothing_are_told(caplog):
    cs.aggregate({"ann": [1, 2], "bob": [1, 3]}, "mean", sample_counts={"ann": 3, "zed": 1})
    assert "sample counts of parties without an update: zed" in caplog.text
