"""What the pages quote is what their data say: every number of these tables is made again."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
SPLITS = {
    "IID": "iid",
    "Dirichlet 1": "dirichlet-1",
    "Dirichlet 0.1": "dirichlet-0.1",
    "one class": "one-class",
}


def data(name, **settings):
    """Return the rows of a data file that have these settings."""
    rows = json.loads((DOCS / "data" / f"{name}.json").read_text())
    return [row for row in rows if settings.items() <= row.items()]


def one(name, key, **settings):
    (row,) = data(name, **settings)
    return row[key]


def table(page, head):
    """Return the rows of the one table whose header begins like this, its header first."""
    found = [
        lines
        for lines in re.findall(r"(?:^ *\|.*\n)+", (DOCS / page).read_text(), re.MULTILINE)
        if lines.lstrip().startswith(head)
    ]
    assert len(found) == 1, f"{len(found)} tables of {page} begin with {head}"
    rows = [
        [cell.strip() for cell in line.strip(" |\n").split("|")] for line in found[0].split("\n")
    ]
    return [rows[0], *(row for row in rows[2:] if len(row) > 1)]


def same(quoted, value, digits=1):
    """Tell whether a number was rounded to so many digits, with whichever minus."""
    number = float(quoted.replace("−", "-").replace("*", ""))
    return abs(number - value) <= 0.5 * 10**-digits + 1e-9


def attacked():
    rows = data("robustness", method="pairwise", adversaries=4)
    return [row for row in rows if row["attack"] != "none" and "@" not in row["attack"]]


@pytest.mark.parametrize("page", ["robustness.md", "../README.md"])
def test_how_many_cells_of_the_grid_are_near_the_oracle(page):
    text = " ".join((DOCS / page).read_text().split())
    rows = attacked()
    assert len(rows) == 31 * 4 * 2
    assert {row["seeds"] for row in rows} == {3}
    near = {bar: sum(row["below"] >= -bar for row in rows) for bar in (1, 3)}
    if page == "robustness.md":
        words = {248: "All 248"}.get(near[3], f"{near[3]} of the 248")
        assert f"**{words} attacked cells of `pairwise` are within 3 points of the oracle**" in text
        assert f", {near[1]} ({round(100 * near[1] / 248)} %) within 1" in text
    else:
        assert f"`pairwise` loses at most 1 point in {near[1]} of the 248 cases" in text


def test_one_adversary_and_two():
    head, *rows = table("robustness.md", "| adversaries | split | momentum |")
    assert head[3:5] == ["within 1 point", "below −3"]
    for count, split, momentum, near, far, worst in rows:
        kind = {"heterogeneity": SPLITS[split], "momentum": float(momentum)}
        kind["adversaries"] = int(count)
        cells = data("robustness-few", method="pairwise", **kind)
        assert {row["seeds"] for row in cells} == {3}
        below = sorted(r["below"] for r in cells if r["attack"] != "none")
        assert len(below) == 31
        assert sum(b >= -1 for b in below) == int(near.split()[0]), split
        assert sum(b < -3 for b in below) == int(far), split
        said = re.findall(r"−[\d.]+", worst)[0]
        assert same(said, below[0], int("." in said)), split


def test_how_many_cells_of_one_adversary_and_two_are_near_the_oracle():
    text = " ".join((DOCS / "robustness.md").read_text().split())
    rows = [row for row in data("robustness-few", method="pairwise") if row["attack"] != "none"]
    mild = [row for row in rows if row["heterogeneity"] in ("iid", "dirichlet-1")]
    hard = [row for row in rows if row not in mild]
    assert len(mild) == len(hard) == 248
    assert min(row["below"] for row in mild) >= -3
    near = {f: sum(r["below"] >= -1 for r in mild if r["adversaries"] == f) for f in (1, 2)}
    assert f"of one adversary {near[1]} of 124 within 1, of two all {near[2]}." in text
    far = [row["adversaries"] for row in hard if row["below"] < -3]
    words = f"{len(far)} of 248 cells are below −3**, {far.count(1)} of them with one adversary."
    assert words in text


def test_one_adversary_beside_others():
    (_, *heads), *rows = table("robustness.md", "| method | Dirichlet 1: ALIE 1.5")
    names = {"ALIE 1.5": "alie-1.5", "min-max": "min-max", "IPM 10": "ipm-10"}
    for method, *cells in rows:
        split = ""
        for head, cell in zip(heads, cells, strict=True):
            *before, attack = head.split(": ")
            split = before[0] if before else split
            kind = {"heterogeneity": SPLITS[split], "momentum": 0.0, "attack": names[attack]}
            kind["adversaries"] = 1
            assert same(cell, one("robustness-few", "below", method=method.strip("`"), **kind))


def test_one_adversary_that_knows_the_bar():
    (_, *heads), *rows = table("robustness.md", "| method | Dirichlet 1: z = 0.6")
    for method, *cells in rows:
        split = ""
        for head, cell in zip(heads, cells, strict=True):
            *before, size = head.split(": ")
            split = before[0] if before else split
            attack = f"alie-{float(size.removeprefix('z = ')):g}"
            kind = {"heterogeneity": SPLITS[split], "attack": attack}
            assert same(cell, one("lone", "below", method=method.strip("`"), **kind))


def test_six_adversaries():
    (_, _, _, *attacks), *rows = table("robustness.md", "| six adversaries |")
    assert len(rows) == 8
    for split, momentum, *cells in rows:
        kind = {"heterogeneity": SPLITS[split], "momentum": float(momentum), "adversaries": 6}
        for attack, cell in zip(["none", *attacks], cells, strict=True):
            row = {"method": "pairwise", "attack": attack, "seeds": 3} | kind
            assert same(cell, one("robustness-six", "below", **row))


def test_beside_other_methods():
    _, *rows = table("robustness.md", "| method | IID: no attack")
    attacks = ("label-flip", "sign-flip", "ipm-10", "alie-1.5", "mimic")
    assert len(rows) == 14
    for method, *cells in rows:
        name = method.strip("`")
        file = "robustness" if name == "pairwise" else "beside"
        for split, clean, worst in zip(SPLITS.values(), cells[::2], cells[1::2], strict=True):
            kind = {"method": name, "heterogeneity": split, "momentum": 0.9, "adversaries": 4}
            kind["seeds"] = 3
            assert same(clean, one(file, "below", attack="none", **kind))
            below = {attack: one(file, "below", attack=attack, **kind) for attack in attacks}
            points, _, attack = worst.partition(" (")
            assert attack.rstrip(")") == min(below, key=lambda name: below[name])
            assert same(points, min(below.values()))


def test_adversaries_who_ask_the_aggregator():
    (_, _, *splits), *rows = table("robustness.md", "| attack | momentum | IID")
    for attack, momentum, *cells in rows:
        for split, cell in zip(splits, cells, strict=True):
            kind = {"heterogeneity": SPLITS[split], "momentum": float(momentum)}
            assert same(cell, one("robustness", "below", method="pairwise", attack=attack, **kind))
    every = [row for row in data("robustness", method="pairwise", seeds=3) if "@" in row["attack"]]
    mild = [row["below"] for row in every if row["heterogeneity"] in ("iid", "dirichlet-1")]
    hard = [row["below"] for row in every if row["heterogeneity"] in ("dirichlet-0.1", "one-class")]
    text = " ".join((DOCS / "robustness.md").read_text().split())
    assert len(mild) == len(hard) == 12
    near, worst = sum(b >= -1 for b in mild), f"{min(mild):.1f}".replace("-", "−")
    assert f"{near} of 12 cells are within 1 point**, and the worst is {worst}." in text
    assert f"{sum(b >= -3 for b in hard)} of 12 are within 3." in text


def test_byzfls_protocol():
    _, *rows = table("robustness.md", "| method | attack | f = 1")
    for method, attack, *cells in rows:
        for count, cell in enumerate(cells, start=1):
            if method.startswith("`") and cell != "–":
                kind = {"method": method.strip("`"), "attack": attack, "adversaries": count}
                (row,) = data("robustness-byzfl", **kind)
                final, best = cell.split(" / ")
                assert same(final, row["final"], 3)
                assert same(best, row["best"], 3)


def test_adversaries_who_rehearse():
    (_, _, _, *methods), *rows = table("robustness.md", "| split | momentum | adversaries who")
    quoted = 0
    for split, momentum, count, *cells in rows:
        kind = {"heterogeneity": SPLITS[split], "momentum": float(momentum)}
        kind["adversaries"] = int(count)
        for method, cell in zip(methods, cells, strict=True):
            found = data("rehearsed", method=method.strip("`"), **kind)
            assert bool(found) == (cell != "–")
            for row in found:
                values = re.findall(r"[−+]?[\d.]+", cell)
                assert len(values) == 4
                for words, value in zip(values, (row["below"], *row["of_seeds"]), strict=True):
                    assert same(words, value, int("." in words))
                quoted += 1
    assert quoted == len(data("rehearsed"))


@pytest.mark.parametrize(
    ("head", "name"), [("| backdoor |", "backdoors"), ("| on clothes |", "backdoors-fashion")]
)
def test_backdoors(head, name):
    (_, *heads), *rows = table("robustness.md", head)
    assert len(rows) == 6
    for kind, *cells in rows:
        for head, cell in zip(heads, cells, strict=True):
            split, count = head.split(", ")
            settings = {"heterogeneity": SPLITS[split], "adversaries": int(count), "kind": kind}
            (row,) = data(name, method="pairwise", **settings)
            assert row["seeds"] == 3
            success, below = cell.split(" / ")
            assert same(success, row["success"], 2)
            assert same(below, row["below"])


def test_what_one_party_alone_says():
    (_, *splits), *rows = table("robustness.md", "| what one party alone says")
    assert len(rows) * len(splits) == len(data("alone"))
    for name, *cells in rows:
        method = name.replace("`", "").replace("nobody says it (mean)", "nobody")
        for split, cell in zip(splits, cells, strict=True):
            (row,) = data("alone", method=method, heterogeneity=SPLITS[split])
            for words, key in zip(cell.split(" / "), ("knowledge", "backdoor"), strict=True):
                assert len(row[key]) == 3
                assert same(words, sum(row[key]) / 3, 2)


def test_what_can_be_promised():
    head, *rows = table("limits.md", "| split | f = 1 |")
    assert len(rows) == len(SPLITS)
    for split, *quoted in rows:
        seeds = data("promised", split=SPLITS[split])
        assert len(seeds) == 3
        keys = [*(f"promised, {f[4:]}" for f in head[1:-1]), "final"]
        for words, key in zip(quoted, keys, strict=True):
            values = [row[key] for row in seeds]
            for end, value in zip(words.split(" to "), (min(values), max(values)), strict=False):
                assert same(end, value, 2)


def test_disguises():
    (_, *splits), *rows = table("limits.md", "| means of three seeds | IID")
    momentum = 0.0
    for name, *cells in rows:
        method, *rest = name.split(", ")
        momentum = {"no momentum": 0.0, "momentum 0.9": 0.9}[rest[0]] if rest else momentum
        kind = {"method": method.strip("`").replace(" ", "-"), "momentum": momentum}
        for split, cell in zip(splits, cells, strict=True):
            digits = int("." in cell)
            value = one("disguise", "below", attack="disguise", heterogeneity=SPLITS[split], **kind)
            assert same(cell, value, digits)


SCENES = {
    "**All alike**": ("clean", ("mean",)),
    "**One is 10": ("outlier", ("mean", "coordinate-median", "geometric-median", "ivar-vb")),
    "**Three in ten": ("outliers", ("mean", "coordinate-median", "geometric-median", "ivar-vb")),
    "**Standard deviations": ("spread", ("coordinate-median", "geometric-median")),
}


@pytest.mark.parametrize("start", SCENES)
def test_few_parties_and_few_numbers(start):
    scene, others = SCENES[start]
    text = (DOCS / "sizes.md").read_text()
    lines = text[text.index(start) :].split("\n\n")[1].splitlines()
    sizes = [int(cell) for cell in lines[0].strip("|").split("|")[1:]]
    for line in lines[2:]:
        count, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for size, cell in zip(sizes, cells, strict=True):
            (row,) = data("sizes", scene=scene, parties=int(count), coordinates=size)
            assert same(cell, row["pairwise"] / min(row[other] for other in others), 2)
