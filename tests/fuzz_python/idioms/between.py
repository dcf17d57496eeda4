"""What the driver changes between two calls: which keys and attributes there are, in which order, and what is one object."""

from __future__ import annotations

IDIOMS = r"""
## key that may be missing
try:
    factor$u = $s.table["late"]
except KeyError:
    factor$u = 1.5
$new = $t * factor$u

## key of one of several dictionaries
$new = $t * collections.ChainMap($s.table, SETTINGS, {"late": 0.5})["late"]

## attribute that may be missing
try:
    late$u = $s.late
except AttributeError:
    late$u = 0.5
$new = $t * late$u

## attribute that may be missing, suppressed
$new = $t
with contextlib.suppress(AttributeError, KeyError):
    $new = $new + $s.late
    $new = $new * $s.table["late"]

## attribute made at first use
if not hasattr($s, "cached"):
    $s.cached = $t.detach() * 2
$new = $t + $s.cached.sum()

## keys as they come
names$u = [*$s.words]
$new = $t * $s.words[names$u[0]]
$keep = (names$u, tuple($s.words), dict($s.words))

## keyword arguments as they come
def joined$u(tensor, **factors):
    for number, factor in enumerate(factors.values()):
        tensor = tensor * factor + number
    return tensor
--
$new = joined$u($t, **$s.words)

## keyword arguments, merged
$keep = {"first$u": $n, **$s.words, **SETTINGS}
$new = $t * list($keep)[-1].count("g") + len($keep)

## keys listed by functions
$keep = (sorted($s.words, key=len), max($s.words, key=lambda name: 0), ",".join($s.words), list($s.ordered))
$new = $t * len($keep[2])

## ordered dictionary
$new = $t
for name$u, factor$u in $s.ordered.items():
    $new = $new * factor$u if name$u == "first" else ($new + factor$u).sin()

## ordered dictionary that turns
$s.ordered.move_to_end("first", last=$b)
$new = $t * next(iter($s.ordered.values()))

## list that may be another's
$s.other.append($n)
$new = $t * (len($s.history) + 1)
$keep = $s.other is $s.history

## dictionary that may be another's
$s.words["second"] = $f
$new = $t * $s.shared["second"]

## modules that may be one
$new = $t * len({$s.linear, $s.twin}) + len(list($s.twin.parameters()))
$keep = ($s.twin is $s.linear, $s.twin.weight is $s.linear.weight, $s.twin == $s.linear)

## module of a shared weight
$new = $s.twin($s.linear($t.expand(4) if $t.dim() < 1 else $t.reshape(-1, 1).expand(-1, 4)))

## attribute of a module that may be two
$s.twin.count = getattr($s.twin, "count", 0) + 1
$new = $t * getattr($s.linear, "count", 3)

## what is empty at first
$new = $t * 2 if $s.history or $s.table or $s.other else $t.sin()
"""
