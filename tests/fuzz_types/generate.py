"""One expression or statement about a value of one of Python's own types.

    generate: (seed, number) -> Program        Program.source: -> the text of ``f(x, given)``

The value is made inside of the function, given to it, or a global; what raises does so inside of a ``try``, or not.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple


class Pair(NamedTuple):
    a: Any
    b: Any


NAMES: dict[str, Any] = {
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
    "deque": deque,
    "Pair": Pair,
}
VALUES = (
    ("0", "5", "-3", "True", "2**70"),
    ("0.0", "-1.5", "float('nan')", "float('inf')", "2.0"),
    ("1+2j", "0j"),
    ("''", "'abc'", "'Hello World'", "' a b '", "'12'", "'a,b,,c'"),
    ("b'abc'", "b''"),
    ("[]", "[1]", "[3, 1, 2]", "['a', 'b']", "[1, 'a', None]", "[[1], [2]]"),
    ("()", "(1,)", "(3, 1, 2)", "('a', 1)"),
    ("{}", "{'a': 1}", "{'a': 1, 'b': [2]}", "{1: 'x', 2: 'y'}"),
    ("set()", "{1}", "{1, 2, 3}", "{'a', 'b'}"),
    ("frozenset()", "frozenset({1, 2})"),
    ("range(0)", "range(5)", "range(1, 10, 3)", "range(5, 0, -2)"),
    ("slice(1, 5, 2)", "slice(None)"),
    ("OrderedDict()", "OrderedDict(a=1, b=2)"),
    ("defaultdict(list)", "defaultdict(int, a=1)", "defaultdict(None, a=2)"),
    ("Counter()", "Counter('aab')", "Counter(a=2, b=-1)"),
    ("deque()", "deque([1, 2, 3])", "deque([1, 2, 3], 3)", "deque([1, 2], maxlen=1)"),
    ("Pair(1, 2)", "Pair('a', [1])"),
    ("None",),
)
_ALL = [value for values in VALUES for value in values]


def _split(text: str, by: str = "|") -> list[str]:
    return [each.strip() for line in text.strip().split("\n") for each in line.split(by)]


_GIVEN = _split("""
0|1|-1|2|5|10|-2|None|True|1.5|1j|'a'|'b'|','|''|'abc'|b'a'|[1]|[]|[3, 4]|[('a', 1)]|(1, 2)|(1,)|{'a': 5}|{1, 2}
frozenset({1})|range(2)|slice(0, 2)|deque([9])|Counter('ab')|OrderedDict(a=3)|len|str|int
""")
_FUNCTIONS = _split("""
len|abs|str|repr|int|float|bool|list|tuple|set|frozenset|dict|sorted|reversed|sum|min|max|any|all|iter|enumerate|next|callable
round|bin|hex|oct|chr|ord|ascii|divmod|pow|isinstance|zip|map|filter|range|type|complex|bytes|format|hasattr|OrderedDict|Counter
deque|list(zip|copy.copy|copy.deepcopy
""")
_OPERATORS = _split("+ - * / // % ** << >> & | ^ < <= == != > >= in and or", " ") + ["not in", "is not"]
_IN_PLACE = _split("+= -= *= /= //= %= **= &= |= ^=", " ")
_FORMS = _split("""
f'{v}'|f'{v!r:>10}'|f'{v:5}'|f'{v:.2f}'|'%s' % (v,)|'%d' % v|'%r %s' % (v, v)|'{0} {0!r}'.format(v)|-v|+v|~v|not v
[*v]|(*v,)|{*v}|{**v}|dict(**v)|[x for x in v]|{x: 1 for x in v}|sum(1 for x in v)|[(i, x) for i, x in enumerate(v)]
list(map(str, v))|list(filter(None, v))|list(zip(v, v))|max(v, default=None)|sorted(v, reverse=True)|sorted(v, key=str)
min(v, key=str)|list(reversed(v))|a if (a := v) else 7|type(v).__name__|isinstance(v, (int, str))|next(iter(v), 'none')|v == v
(lambda *a: a)(*v)|(lambda **k: k)(**v)|len(v) and v[0]|str(v) + repr(v)|v.nothing|v[::-1]|v[1:]|v[:-1]|v[-1]
""")
_BY_HAND = ("__iter__", "__reversed__", "__len__", "__contains__", "__getitem__", "__bool__")  # of the methods with such names


@dataclasses.dataclass(frozen=True)
class Program:
    """``act`` is a statement about ``v``, which is ``value``; ``place``: of _PLACES."""

    value: str
    act: str
    place: str
    is_caught: bool

    def source(self) -> str:
        lines = ["r = None", _PLACES[self.place].format(self.value)]
        lines += ["try:", f"    {self.act}", "except Exception as error:", "    r = error"] if self.is_caught else [self.act]
        return "def f(x, given):\n" + "".join(f"    {line}\n" for line in [*lines, "return x * 2, r, v"])


_PLACES = {"made": "v = {}", "given": "v = given", "global": "v = outside"}


def generate(seed: int, number: int) -> Program:
    """See the module's docstring."""
    rng = random.Random(f"{seed} {number}")
    value = rng.choice(rng.choice(VALUES))
    make = rng.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
    return Program(value, make(rng, value), rng.choice(list(_PLACES)), rng.random() < 0.6)


def _method(rng: random.Random, value: str) -> str:
    kind = type(eval(value, dict(NAMES)))
    names = [name for name in dir(kind) if not name.startswith("_") or (name in _BY_HAND and kind not in (int, float, complex))]
    names = [name for name in names if callable(getattr(kind, name))] or ["__str__"]
    return f"r = v.{rng.choice(names)}({_some(rng, (0, 1, 1, 1, 2, 2, 3))})"


def _operator(rng: random.Random, value: str) -> str:
    other = rng.choice(_GIVEN) if rng.random() < 0.5 else rng.choice(_ALL)
    left, right = ("v", other) if rng.random() < 0.7 else (other, "v")
    return f"r = {left} {rng.choice(_OPERATORS)} {right}"


def _function(rng: random.Random, value: str) -> str:
    name = rng.choice(_FUNCTIONS)
    others = _some(rng, (0, 0, 0, 1, 1, 2))
    return f"r = {name}({', '.join(filter(None, ('v', others)))}){')' * name.count('(')}"


def _item(rng: random.Random, value: str) -> str:
    index = rng.choice(("{0}", "{0}:{1}", "{0}:{1}:{2}", "1:", ":1", "::2", ":")).format(*rng.choices(_GIVEN, k=3))
    return rng.choice(("r = v[{0}]", "v[{0}] = {1}", "del v[{0}]")).format(index, rng.choice(_GIVEN))


def _in_place(rng: random.Random, value: str) -> str:
    return f"v {rng.choice(_IN_PLACE)} {rng.choice(_GIVEN)}"


def _form(rng: random.Random, value: str) -> str:
    return f"r = {rng.choice(_FORMS)}"


def _some(rng: random.Random, numbers: tuple[int, ...]) -> str:
    return ", ".join(rng.choices(_GIVEN, k=rng.choice(numbers)))


_KINDS: dict[Callable[[random.Random, str], str], int] = {
    **{_method: 45, _operator: 20, _function: 15},
    **{_item: 12, _in_place: 5, _form: 10},
}
