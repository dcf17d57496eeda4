"""The smallest programs of what the fuzzer of Python found, by what was wrong. Each is judged as the fuzzer judges."""

from __future__ import annotations

import textwrap

import pytest

from tests.fuzz_python.judge import judge

CALLS = ("x, 1, 0.5", "x, 1, 0.5", "x, 2, 0.25", "x, 3, 0.75")


def program(body: str, top: str = "", calls: tuple[str, ...] = CALLS, options: str = "") -> str:
    lines = ["from tests.fuzz_python.toolbox import *", textwrap.dedent(top), "def f(x, n, a):"]
    lines += [textwrap.indent(textwrap.dedent(body), "    "), "def drive(compile, call):", f"    run = compile(f{options})"]
    lines += ["    x = torch.linspace(-1, 1, 4).requires_grad_()", *(f"    call(run, {arguments})" for arguments in calls)]
    return "\n".join(lines) + "\n"


FOUND = {
    "an object is formatted before it has its attributes": program(
        """
        kept = (f"{Shown(2):.2f}", f"{Shown(n)!r:>10}", "{}".format(Shown(a)))
        return x.sin(), kept
        """,
        """
        class Shown:
            def __init__(self, n):
                self.n = n
            def __format__(self, spec):
                return f"{self.n:{spec}}"
            def __repr__(self):
                return f"Shown({self.n})"
        """,
    ),
    "a list is formatted before it changes": program(
        """
        items = [n]
        text = f"{items} {a:.1f}"
        items.append(a)
        return x.sin(), text, items
        """
    ),
    "a number that changes is formatted, and the graph ends in the same text": program(
        """
        return x * 2, f"{n:04d} {a + 0.1:.2e} {'x' * 2}"
        """,
        calls=("x, 3, 0.87", "x, 4, -0.87", "x, 5, 0.5"),
    ),
    "a range with a step that changes is asked what it holds": program(
        """
        span = range(1, 10, n % 3 + 1)
        return x * span[1], 3 in span, 4 in span, (5 in range(n)), span.count(3)
        """
    ),
    "zip is strict": program(
        """
        try:
            return x.sin(), list(zip([1, 2], [1], strict=True))
        except ValueError as error:
            return x.cos(), str(error)
        """
    ),
    "zip is strict, and the first is the shorter one": program(
        """
        try:
            return x.sin(), list(zip([1], [1, n], [3, 4], strict=True))
        except ValueError as error:
            return x.cos(), str(error)
        """
    ),
    "keyword defaults are written into": program(
        """
        scaled.__kwdefaults__["shift"] = a
        return scaled(x)
        """,
        """
        def scaled(value, factor=1.5, *, shift=0.25):
            return value * factor + shift
        """,
    ),
    "a set grows and is made a list": program(
        """
        words = {"q", "w", "e", "r", "t", "y"}
        words.add("z")
        return x.sin(), list(words), [*words], [0].extend(words)
        """
    ),
    "Dynamo's own name for is_compiling is asked in code that is left alone": program(
        """
        value = {1: 2.0, 2: 3.0}[n]
        return x.sin() * value, torch._dynamo.is_compiling()
        """,
        calls=("x, 5, 0.5", "x, 1, 0.5", "x, 2, 0.5"),
    ),
    "code over which Dynamo breaks down is called again": program(
        """
        try:
            y = x @ torch.ones(7)
        except RuntimeError as error:
            y, text = x * 2, str(error)
        return y, text
        """
    ),
    "an argument is missing": program(
        """
        try:
            y = takes_two(x)
        except TypeError as error:
            y, text = x * 2, str(error)
        return y, text
        """,
        """
        def takes_two(left, right):
            return left + right
        """,
    ),
    "a float is calculated from an int that changes": program(
        """
        rate = 0.1 * min(1.0, (n + 1) / 7) * (0.9 ** n) / (1.0 + float(n) * 0.3)
        return x * rate, rate
        """,
        options=", dynamic=True",
    ),
    "a generator goes on behind a graph": program(
        """
        talk = talks(x)
        y = next(talk) * 2
        print("between")
        z = talk.send(a)
        print("behind")
        return y + z, EVENTS
        """,
        """
        EVENTS = []
        def talks(value):
            got = yield value
            while got is not None:
                EVENTS.append("sent")
                got = yield value * got
        """,
    ),
    "objects are equal as their class says": program(
        """
        return x.sin(), len({Same(x), Same(n)}), {Same(1): a, Same(2): 3}[Same(n)]
        """,
        """
        class Same:
            def __init__(self, value):
                self.value = value
            def __eq__(self, other):
                return isinstance(other, Same)
            def __hash__(self):
                return 1
        """,
    ),
    "the local variables behind a graph": program(
        """
        y = x.sin()
        print(n)
        return y * 2, sorted(locals())
        """
    ),
    "where a float was zero there comes a tensor": program(
        """
        y = x.sin() * {1: a, 2: 3.0}[n]
        return functools.reduce(lambda total, value: total * 0.5 + value, [y.sin(), y.tanh()], 1 - a)
        """,
        calls=("x, 5, 1.0", "x, 2, 1.0", "x, 1, 1.37", "x, 1, 1.5"),
    ),
    "a leaf is followed by a tensor with a node": program(
        """
        return x * 2 if x.grad_fn is None else x * 3
        """,
        calls=("x, 1, 0.5", "x * 1, 1, 0.5", "x.detach(), 1, 0.5", "x, 1, 0.5"),
    ),
    "a set from outside grows, and is asked for its order": program(
        """
        NAMES.add(f"n{n % 3}")
        return x * len(NAMES)
        """,
        "NAMES = set()",
        calls=("x, 2, 0.5", "x, 3, 0.5", "x, 4, 0.5", "x, 5, 0.5"),
    ),
    "a set from outside shrinks": program(
        """
        WORDS.discard(("q", "w", "e")[n])
        WORDS.add("n")
        first = WORDS.pop()
        WORDS |= {first, "z"}
        return x.sin(), first
        """,
        'WORDS = {"q", "w", "e", "r", "t", "y"}',
        calls=("x, 2, 0.5", "x, 0, 0.5", "x, 1, 0.5"),
    ),
    "a set is handed out": program(
        """
        words = {"q", "w", "e", "r", "t", "y", f"n{n}"}
        words.add("z")
        print("between")
        return x.sin(), words, frozenset(words)
        """
    ),
    "a mapping proxy is written into": program(
        """
        settings = types.MappingProxyType({"a": a})
        try:
            settings["b"] = 1
        except TypeError as error:
            return x * settings["a"], str(error), list(settings)
        return x
        """
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str):
    verdict = judge(FOUND[name])
    assert verdict.status in ("ok", "in part"), verdict
    assert "is not defined" not in verdict.detail
