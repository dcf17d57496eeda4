"""Which call of eager's a call of a graph is: the same one in order, and none rather than a wrong one."""

from gradc.reporting.aligned import align, places
from gradc.reporting.calls import Call, Made
from gradc.reporting.model import Phase

SMALL, LARGE = Made("float32", (2,), 8), Made("float32", (4,), 16)


def call(op: str, made: Made = SMALL, phase: Phase = Phase.FORWARD) -> Call[None]:
    return Call(op, phase, 0.0, (made,), None)


def aligned(calls, eager, lines=None, eager_lines=None):
    return align(calls, eager, lines or [""] * len(calls), eager_lines or [""] * len(eager))


def test_in_order_where_there_are_as_many():
    calls = [call("mm"), call("t"), call("mm")]
    assert aligned(calls, [call("mm"), call("mm"), call("t")]) == {0: 0, 2: 1, 1: 2}


def test_shapes_lines_and_phases_tell_calls_apart():
    assert aligned([call("mm", LARGE)], [call("mm"), call("mm", LARGE)]) == {0: 1}
    assert aligned([call("mm")], [call("mm"), call("mm")], ["a.py:2"], ["a.py:1", "a.py:2"]) == {0: 1}
    assert aligned([call("mm", phase=Phase.BACKWARD)], [call("mm"), call("mm", phase=Phase.BACKWARD)]) == {0: 1}


def test_a_line_that_is_told_otherwise_does_not_matter_where_it_is_clear():
    assert aligned([call("mm")], [call("mm")], ["a.py:2"], ["a.py:3"]) == {0: 0}


def test_none_rather_than_a_wrong_one():
    assert aligned([call("mm")], [call("mm"), call("mm")]) == {}
    assert aligned([call("mm")], [call("addmm")]) == {}


def test_each_call_of_eager_stands_at_its_partner_or_between_its_neighbours():
    assert places({0: 0, 1: 3}, 2, 4) == [0.0, 1 / 3, 2 / 3, 1.0]
    assert places({2: 0, 0: 1}, 3, 2) == [2.0, 2.0]  # eager ran them in another order: nothing goes back
    assert places({}, 3, 0) == [] and places({}, 3, 3) == [0.0, 1.0, 2.0]
