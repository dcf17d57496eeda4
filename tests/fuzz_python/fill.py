"""Idioms, and the places in them: what a place may be filled with, and what is known from there on.

parse: text -> idioms          Writer.write(idiom) -> lines of the function

$t   a tensor of up to two dimensions that broadcasts with all others     $x   one that has a dimension
$n   an int     $f   a float     $b   a bool, or what is taken for one     $s   the state: attributes that live on
$new        a tensor's name, new in the idiom, known behind it            $var   a known tensor's name, to be bound anew
$keep       what the function returns beside its tensors; each another    $u   a number: this use of the idiom
$BODY       other idioms; what they make is known in there alone
"""

from __future__ import annotations

import dataclasses
import random
import re
import textwrap

_PLACE = re.compile(r"\$(new|var|keep|BODY|[txnfbsu])")
_TENSORS = ("{}", "{}", "{}", "{}.sin()", "({} * 2)", "torch.tanh({})", "F.relu({})", "({} - 0.5)", "{}.abs()", "({} / 3)")
_INTS = ("n", "n", "n", "1", "2", "(n + 1)", "len($s.history)", "$s.steps", "int(a * 2)", "abs(n - 3)")
_FLOATS = ("a", "a", "a", "0.5", "1.25", "(a + 0.1)", "(n * 0.3)", "$s.scale", "(a * a)", "float(n)", "(1 - a)")
_BOOLS = (
    "flag",
    "flag",
    "n > 1",
    "n % 2 == 0",
    "a > 0.4",
    "not flag",
    "$s.training",
    "torch.is_grad_enabled()",
    "torch.compiler.is_compiling()",
    "isinstance(n, int)",
    "len($s.history) < 2",
    "x.requires_grad",
    "$t.sum() > 0",
    "$s.steps > 1",
    "x.shape[0] > 3",
)


@dataclasses.dataclass(frozen=True)
class Idiom:
    """``top``: what it defines for the module. ``lines``: what it does in the function."""

    title: str
    top: tuple[str, ...]
    lines: tuple[str, ...]


def parse(text: str) -> tuple[Idiom, ...]:
    """The idioms of a text: each begins with ``## title``; ``--`` stands between what is for the module and the rest."""
    return tuple(_idiom(*part.split("\n", 1)) for part in textwrap.dedent(text).split("## ")[1:])


def _idiom(title: str, text: str) -> Idiom:
    top, _, lines = text.rpartition("\n--\n")
    assert not re.search(r"\$(?![u_])", top), f"{title}: a place that only the function can fill"
    return Idiom(title, tuple(top.splitlines()), tuple(lines.strip("\n").splitlines()))


class Writer:
    """Fills idioms, at random.

    Attributes:
        tensors: names of tensors that are known at this place.
        top: lines of the module that the idioms so far asked for.
    """

    def __init__(self, rng: random.Random, idioms: tuple[Idiom, ...], state: str) -> None:
        self.rng, self.idioms, self.state = rng, idioms, state
        self.tensors = ["x", "y"]
        self.top: list[str] = []
        self._num_used, self._num_kept, self._depth = 0, 0, 0

    def write_some(self, number: int) -> list[str]:
        """The lines of ``number`` idioms."""
        return [line for _ in range(number) for line in self.write(self.rng.choice(self.idioms))]

    def write(self, idiom: Idiom) -> list[str]:
        """The lines of one idiom."""
        self._num_used += 1
        used = self._num_used
        self.top += [line.replace("$u", str(used)) for line in idiom.top]
        lines: list[str] = []
        for line in idiom.lines:
            lines += self._body(line) if "$BODY" in line else [self._filled(line, used)]
        if any("$new" in line for line in idiom.lines):
            self.tensors.append(f"t{used}")
        return lines

    def _body(self, line: str) -> list[str]:
        margin, known = line[: line.index("$BODY")], list(self.tensors)
        self._depth += 1
        lines = self.write_some(self.rng.choice((1, 1, 2))) if self._depth < 3 else ["pass"]
        self._depth -= 1
        self.tensors = known
        return [margin + inner for inner in lines]

    def _filled(self, text: str, used: int) -> str:
        return _PLACE.sub(lambda found: self._fill(found[1], used), text)

    def _fill(self, place: str, used: int) -> str:
        match place:
            case "u":
                return str(used)
            case "s":
                return self.state
            case "new":
                return f"t{used}"
            case "var":
                return self.rng.choice(self.tensors)
            case "t":
                return self._tensor(self.tensors[-3:] + ["x"])
            case "x":
                return self._tensor(["x", "x", "x", "y"])
            case "keep":
                self._num_kept += 1
                return f'kept["k{self._num_kept}"]'
            case _:
                return self._filled(self.rng.choice({"n": _INTS, "f": _FLOATS, "b": _BOOLS}[place]), used)

    def _tensor(self, names: list[str]) -> str:
        return self.rng.choice(_TENSORS).format(self.rng.choice(names))
