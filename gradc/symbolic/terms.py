"""The numbers of a backward pass (sizes, strides, constants) as products of a few symbols.

fit: numbers met so far -> Fit           what differs, by as few symbols as can be
fit_sizes: Walk -> Fit                   from one pass: every size that no leaf has is a symbol
Term.at: values of symbols -> a number
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sympy

from gradc.errors import UnsupportedError
from gradc.torch_private.autograd import storage_key

if TYPE_CHECKING:
    from gradc._C import Walk

Numbers = Sequence[Any]  # ints, or SymInts while tracing
Values = Sequence[int]
Column = tuple[int, ...]  # one number as it was at each point


class Term(NamedTuple):
    """coefficient * the product of some symbols; without symbols, a number that stays."""

    coefficient: int
    symbols: tuple[int, ...] = ()

    def at(self, values: Numbers) -> Any:
        """The number that this is, where the symbols have these values."""
        number: Any = self.coefficient
        for symbol in self.symbols:
            number = number * values[symbol]
        return number


@dataclasses.dataclass(frozen=True)
class Fit:
    """The numbers of a walk as Terms of some symbols; ``sources`` says which number each symbol is."""

    terms: tuple[Term, ...] = ()
    sources: tuple[int, ...] = ()

    def values_in(self, numbers: Values) -> list[int]:
        """The symbols' values where the walk's numbers are these."""
        return [numbers[source] for source in self.sources]

    def numbers_at(self, values: Numbers) -> list[Any]:
        """The walk's numbers where the symbols have these values."""
        return [term.at(values) for term in self.terms]


FIXED = Fit()  # of a recording that serves one set of numbers


def fit(points: Sequence[Values]) -> Fit:
    """Express what differs between the points by as few symbols as can be; the smallest numbers become symbols."""
    columns = list(zip(*points, strict=True))
    changing = sorted({column for column in columns if len(set(column)) > 1}, key=lambda c: [(abs(n), n < 0) for n in c])
    symbols: list[Column] = []
    known: dict[Column, Term] = {}
    for column in changing:
        term = _product_of(symbols, column)
        if term is None:
            symbols.append(column)
            term = Term(1, (len(symbols) - 1,))
        known[column] = term
    terms = tuple(known.get(column, Term(column[0])) for column in columns)
    return Fit(terms, tuple(columns.index(symbol) for symbol in symbols))


def fit_sizes(walk: Walk) -> Fit:
    """As ``fit``, from one point: what leaves have stays fixed, every other size of a tensor becomes a symbol."""
    numbers, leaves = walk.numbers, [walk.variable(node) for node in range(walk.num_nodes) if walk.is_leaf(node)]
    # Live tensors, which no recorded call made: there is nothing that ir.aliases could know of them.
    leaf_storages = {storage_key(leaf) for leaf in leaves}
    fixed = {0, 1, -1}.union(*({*leaf.shape, *leaf.stride(), leaf.numel()} for leaf in leaves))
    others = [tensor for tensor in walk.tensors if storage_key(tensor) not in leaf_storages]
    sizes = {size for tensor in others for size in tensor.shape} - fixed
    symbols: list[Column] = [(size,) for size in sorted(sizes)]
    known = {number: None if number in fixed else _product_of(symbols, (number,)) for number in set(numbers)}
    terms = tuple(known[number] or Term(number) for number in numbers)
    return Fit(terms, tuple(numbers.index(symbol) for (symbol,) in symbols))


def term_of(number: Any, names: Sequence[sympy.Symbol]) -> Term:
    """A number of a trace as a Term of ``names``.

    Raises:
        UnsupportedError: if it is no product of them.
    """
    if isinstance(number, int):
        return Term(number)
    coefficient, rest = number.node.expr.as_coeff_Mul()
    symbols: list[int] = []
    for factor in sympy.Mul.make_args(rest):
        base, power = factor.as_base_exp()
        if base not in names or not power.is_Integer or power < 1:
            raise UnsupportedError("result of a live node whose sizes are not a product")
        symbols += [names.index(base)] * int(power)
    return Term(int(coefficient), tuple(symbols))


def _product_of(symbols: Sequence[Column], column: Column) -> Term | None:
    """coefficient * a symbol, or two, that is right at every point; None if there is no such product."""
    for count in (1, 2):
        for chosen in itertools.combinations_with_replacement(range(len(symbols)), count):
            products = [_product([symbols[number][point] for number in chosen]) for point in range(len(column))]
            ratio = next((value // product for value, product in zip(column, products) if product), None)
            if ratio and all(ratio * product == value for value, product in zip(column, products)):
                return Term(ratio, chosen)
    return None


def _product(values: Values) -> int:
    product = 1
    for value in values:
        product *= value
    return product
