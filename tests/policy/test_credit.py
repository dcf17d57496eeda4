"""Captures cost half a second more than they save, at most; a hit gives back a hundredth of its capture."""

from __future__ import annotations

from gradc.policy.credit import Credit


def test_captures_that_are_of_no_use_cost_half_a_second_and_the_last_of_them() -> None:
    credit = Credit()
    credit.pay(0.25)
    assert credit.allows() and not credit.is_full
    credit.pay(0.75)
    assert not credit.allows()


def test_hits_give_back_what_a_capture_took_and_no_more() -> None:
    credit = Credit()
    credit.pay(2.0)
    for _ in range(80):
        credit.earn(2.0)
    assert credit.allows() and not credit.is_full
    for _ in range(60):
        credit.earn(2.0)
    assert credit.is_full
    credit.pay(1.0)
    assert not credit.allows()
