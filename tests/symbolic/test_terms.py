"""Numbers as products of symbols: what differs between points gets as few symbols as can be."""

from __future__ import annotations

import pytest
import sympy

from gradc.errors import UnsupportedError
from gradc.symbolic.terms import FIXED, Term, fit, term_of


def holds(points: list[list[int]]) -> bool:
    """Does the fit give back every point from its own symbols?"""
    found = fit(points)
    return all(found.numbers_at(found.values_in(point)) == point for point in points)


def test_what_never_changes_needs_no_symbol() -> None:
    found = fit([[3, 5], [3, 5]])
    assert found.terms == (Term(3), Term(5)) and not found.sources
    assert found.numbers_at([]) == [3, 5]
    assert not FIXED.terms and not FIXED.sources


def test_multiples_and_products_of_one_size() -> None:
    found = fit([[4, 32, 7, 16], [7, 56, 7, 49]])
    assert found.terms == (Term(1, (0,)), Term(8, (0,)), Term(7), Term(1, (0, 0)))
    assert found.sources == (0,)


def test_two_sizes_that_change_apart() -> None:
    points = [[2, 3, 6], [2, 5, 10], [4, 5, 20]]
    found = fit(points)
    assert len(found.sources) == 2 and found.terms[2] == Term(1, (0, 1))
    assert holds(points)


@pytest.mark.parametrize("points", [[[4, 1], [7, 2]], [[0, 0], [3, 9], [5, 15]], [[-4, 4], [-6, 6]], [[8, 12, 3], [6, 9, 5]]])
def test_every_point_is_given_back(points: list[list[int]]) -> None:
    assert holds(points)


def test_equal_columns_are_one_symbol() -> None:
    assert len(fit([[4, 4, 4], [9, 9, 9]]).sources) == 1


def test_a_product_of_a_trace_is_a_term() -> None:
    names = sympy.symbols("a b", positive=True, integer=True)

    class Number:
        def __init__(self, expr: sympy.Expr) -> None:
            self.node = type("Node", (), {"expr": expr})

    a, b = names
    assert term_of(12, names) == Term(12)
    found = term_of(Number(3 * a**2 * b), names)
    assert found.coefficient == 3 and sorted(found.symbols) == [0, 0, 1]
    with pytest.raises(UnsupportedError, match="not a product"):
        term_of(Number(a + 1), names)
