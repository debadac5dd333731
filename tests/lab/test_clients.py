"""The study of very many clients, in small."""

from consilience.lab.studies.clients import run


def test_rounds_cost_no_more_for_those_who_are_not_there():
    found = run(0, rounds=75, many=3000, few=20)
    assert found["remembered"] > 1000
    assert found["returned"] > 200
    assert found["mean error"] < 1.1
    assert found["loud and back"] > 5
    assert found["their weight over strangers'"] < 0.3
