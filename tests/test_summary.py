"""What objects show of themselves."""

import numpy as np

import consilience as cs
from consilience.summary import MOST_ROWS


def few():
    return {"ann": [1.0, 2, 3], "bob": [1.1, 2.1, 2.9], "eve": [5.0, -3, 9], "zoe": [np.nan] * 3}


def test_a_consensus_says_who_weighs_what_and_why_the_suspects_first():
    lines = repr(cs.aggregate(few())).splitlines()
    assert lines[0] == "Consensus of 3 parties, 1 rejected"
    assert lines[1].split() == ["party", "weight", "noise", "why"]
    assert [line.split()[0] for line in lines[2:6]] == ["eve", "zoe", "ann", "bob"]
    assert lines[3].endswith("holds nan at position 0")


def test_caveats_are_shown():
    found = cs.aggregate({"ann": [1.0, 2], "bob": [1.0, 3]})
    assert repr(found).endswith("only 2 usable parties: neither can be judged by the other")


def test_of_many_parties_a_few_are_shown_and_the_rest_counted():
    found = cs.aggregate(np.random.default_rng(0).standard_normal((100, 50)))
    lines = repr(found).splitlines()
    assert len(lines) == MOST_ROWS + 3
    assert lines[-1] == f"and {100 - MOST_ROWS} more"


def test_names_of_strangers_reach_neither_terminal_nor_notebook_raw():
    found = cs.aggregate({"\x1b[2J": [1.0, 2, 3], "<b>": [1.0, 2, 4], "ann": [1.0, 2, 5]})
    assert "\x1b" not in repr(found)
    assert "\x1b" not in found._repr_html_()
    assert "<b>" not in found._repr_html_()
    assert "&lt;b&gt;" in found._repr_html_()


def test_a_memory_says_how_much_it_knows():
    memory = cs.Memory()
    assert repr(memory) == "Memory of 0 rounds and 0 parties (decay=0.9, max_parties=10000)"
    cs.aggregate(few(), memory=memory)
    assert repr(memory).startswith("Memory of 1 round and 3 parties")


def test_an_inference_says_what_is_known_of_the_parties():
    table = {
        (party, task): task + (party == "eve") * 9 * (task % 2)
        for party in ("ann", "bob", "cat", "dan", "eve")
        for task in range(20)
    }
    party, task = zip(*table, strict=True)
    columns = {"task": task, "party": party, "value": list(table.values())}
    found = cs.infer(columns, task="task", party="party", value="value")
    assert repr(found).startswith("Inference of 20 tasks from 5 parties\nparty")
    assert "<table>" in found._repr_html_()
