"""Branches, loops, exceptions, with blocks, matching, generators."""

from __future__ import annotations

IDIOMS = r"""
## branch
if $b:
    $BODY
else:
    $BODY

## branch that rebinds
if $b:
    $var = $t
elif $b:
    $var = $t * 2

## conditional expression
$new = $t if $b else $t

## branch on a tensor's value
if $t.sum() > $f:
    $var = $t.sin()
else:
    $var = $t.cos()

## loop over a range
for step$u in range($n % 4):
    $BODY

## loop with break and else
for step$u in range(5):
    if step$u >= $n:
        break
    $var = $var * 0.5 + $t
else:
    $var = $var + 1

## loop with continue
for step$u, weight$u in enumerate((0.5, $f, 2.0)):
    if step$u == $n:
        continue
    $var = $var + $t * weight$u

## loop that ends on a tensor's value
norm$u = $t.detach().abs().sum()
count$u = 0
while norm$u.item() > 1.0 and count$u < 3:
    norm$u = norm$u * 0.25
    count$u += 1
$new = $t * count$u

## loop that ends on a tensor
left$u = $t.detach().abs().sum() + 1
while left$u > 2:
    left$u = left$u / 4
$new = $t * left$u

## while with counter
number$u = $n
while number$u > 0:
    number$u -= 2
    $var = $var + number$u * 0.125
$keep = number$u

## short circuits
$new = ($b and $t) or $t
$keep = ($b and $n) or $f

## walrus in a condition
if (total$u := $n + 1) > 2:
    $var = $t * total$u
$keep = total$u

## item of a tensor
value$u = $t.sum().item()
$new = $t + (value$u if value$u > $f else $f)

## bool of a tensor
$keep = bool(($t > 0).any())

## branch on what is looked for
if $t.isnan().any() or not ($t == $t).all():
    $var = $t + 1
$keep = (($t > -50).all().item(), bool($t.abs().max() >= 0))

## branch on a buffer that counts
if $s.total <= $n:
    $s.total += 1
    $var = $t * 2
$keep = bool($s.total > 1)

## branch on a mask that is made inside
mask$u = torch.ones_like($t, dtype=torch.long)
if $b:
    mask$u.view(-1)[:1] = 0
$new = $t * 2 if mask$u.sum() == mask$u.numel() else $t

## branch behind a write
$s.total.data.fill_($n % 2)
$new = $t * 3 if $s.total.bool() else $t

## try that catches
try:
    if $b:
        raise ValueError(f"no {$n}")
    $var = $t * 2
except ValueError as error$u:
    $var = $t - 1
    $keep = error$u.args
else:
    $var = $t + 0.5
finally:
    $s.steps += 1

## finally with return
def leaves$u(value):
    try:
        if $b:
            return value * 2
        value = value + 1
    finally:
        $s.history.append("left")
    return value - 1
$new = leaves$u($t)

## exception that passes
if $n > 3:
    raise RuntimeError(f"too many: {$n}, {$f:.3f}")

## exception behind an effect
$s.history.append($n)
if $b and $n > 2:
    raise KeyError("gone")

## exception of a class of one's own
class Refused$u(ValueError):
    def __init__(self, number, text):
        super().__init__(text)
        self.number = number
--
try:
    raise Refused$u($n, "refused")
except ValueError as error$u:
    $new = $t * error$u.number
    $keep = (type(error$u).__name__, str(error$u))

## exception of torch's
try:
    $new = $x @ torch.ones(7)
except RuntimeError as error$u:
    $keep = str(error$u)
    $new = $t

## index out of range that is caught
try:
    $BODY
    $new = $t.flatten()[torch.tensor([$n * 2])]
except IndexError as error$u:
    $new = $t.mean()
    $keep = str(error$u)
$var = $var + $new

## matrix that is not positive
jitter$u = 0.01
while True:
    try:
        $new = torch.linalg.cholesky(torch.eye(2) * (jitter$u - $n) + $t.detach().square().mean())
        break
    except torch.linalg.LinAlgError:
        jitter$u *= 10
$keep = jitter$u

## error by value behind a suppress
$new = $t * 2
with contextlib.suppress(IndexError, RuntimeError):
    $s.steps += 1
    $new = F.nll_loss($t.reshape(-1, 4)[:1], torch.tensor([$n + 2]))
    $s.history.append("counted")

## error by value of what writes
try:
    $s.total += 1
    $var = $var + F.embedding(torch.tensor($n), torch.ones(3, 4)).sum()
except IndexError:
    $var = $var - 1
finally:
    $s.history.append($n)

## error by value in a function that is called in a try
def picks$u(value, number):
    with torch.no_grad():
        weights = F.one_hot(torch.tensor([number]), 3).float()
    return value.sum() * weights
--
try:
    $new = picks$u($t, $n)
except RuntimeError as error$u:
    $new = $t.sum() * 0
    $keep = type(error$u).__name__

## exception of Python's
try:
    $keep = {"a": 1}["b"] if $b else [1, 2][5]
except (KeyError, IndexError) as error$u:
    $keep = repr(error$u)
except Exception:
    raise

## exception from a cause
try:
    try:
        $keep = 1 / ($n - $n)
    except ZeroDivisionError as error$u:
        raise ValueError("cause") from error$u
except ValueError as outer$u:
    $keep = (str(outer$u), type(outer$u.__cause__).__name__)

## nested try
try:
    try:
        $BODY
    finally:
        $s.history.append("inner")
except Exception as error$u:
    $s.history.append(type(error$u).__name__)

## suppress
with contextlib.suppress(KeyError, ValueError):
    $var = $t * 2
    if $b:
        raise KeyError("x")
    $var = $t * 3

## no_grad
with torch.no_grad():
    $BODY
    $var = $t * 2

## enable_grad inside no_grad
with torch.no_grad():
    with torch.enable_grad():
        $var = $t.sin()

## set_grad_enabled
with torch.set_grad_enabled($b):
    $var = $t.exp()

## autocast
with torch.autocast("cpu", torch.bfloat16, enabled=$b):
    $new = $t @ torch.eye(4) if $t.dim() else $t * 2

## context manager of one's own
class Scope$u:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        EVENTS.append(("enter", self.name))
        return self
    def __exit__(self, kind, value, traceback):
        EVENTS.append(("exit", self.name, kind and kind.__name__))
        return kind is ValueError
--
with Scope$u("a") as scope$u:
    $BODY
    if $b:
        raise ValueError("in scope")
    $var = $t + len(scope$u.name)

## context manager of a generator
@contextlib.contextmanager
def opened$u(owner, amount):
    before = owner.scale
    owner.scale = before + amount
    try:
        yield owner.scale
    finally:
        owner.scale = before
--
with opened$u($s, 0.5) as scale$u:
    $var = $t * scale$u * $s.scale
$new = $t * $s.scale

## exit stack
with contextlib.ExitStack() as stack$u:
    stack$u.callback($s.history.append, "called")
    if $b:
        stack$u.enter_context(torch.no_grad())
    $var = $t.cos()

## match of values
match $n:
    case 0:
        $new = $t
    case 1 | 2:
        $new = $t * 2
    case number$u if number$u > 4:
        $new = $t - number$u
    case _:
        $new = $t + 1

## match of structures
class Node$u:
    __match_args__ = ("left", "right")
    def __init__(self, left, right):
        self.left, self.right = left, right
--
match Node$u($n, [$f, $t, "c"]):
    case Node$u(0, [first$u, *_]):
        $new = $t * first$u
    case Node$u(left$u, [_, value$u, str(text$u)]):
        $new = value$u + left$u + len(text$u)

## match of a mapping
match {"kind": ("sin", "cos")[$n % 2], "by": $f}:
    case {"kind": "sin", "by": by$u}:
        $new = $t.sin() * by$u
    case {"kind": kind$u, **rest$u}:
        $new = $t.cos() + len(rest$u) + len(kind$u)

## generator used up
def rows$u(value, number):
    for step in range(number):
        yield value * step
    EVENTS.append("rows done")
--
$new = sum(rows$u($t, 3)) + $t

## generator used in part
def parts$u(value):
    yield value + 1
    EVENTS.append("second part")
    yield value * 2
    EVENTS.append("never")
--
parts_of$u = parts$u($t)
$new = next(parts_of$u)
$new = next(parts_of$u)

## generator with send and return
def talks$u(value):
    got = yield value
    while got is not None:
        got = yield value * got
    return "end"
--
talk$u = talks$u($t)
$new = next(talk$u)
$new = talk$u.send($f)
try:
    talk$u.send(None)
except StopIteration as stop$u:
    $keep = stop$u.value

## generator closed
def closing$u(value):
    try:
        yield value
        yield value * 2
    finally:
        EVENTS.append("closed")
--
closing_of$u = closing$u($t)
$new = next(closing_of$u)
closing_of$u.close()

## yield from
def outer$u(values):
    yield from values
    yield from (value * 2 for value in values)
--
$new = sum(outer$u([$t, $t]))

## generator kept between calls
def endless$u():
    number = 0
    while True:
        number += 1
        yield number
endless_of$u = endless$u()
--
$new = $t * next(endless_of$u)

## for else with generator expression
if any(value$u > 1 for value$u in ($n, $f)):
    $var = $t * 1.5

## assert
assert $n < 40, f"n is {$n}"
assert isinstance($t, torch.Tensor)

## asking forgiveness
for given$u in ($t, [1, $n], None, "ab", 5):
    try:
        $var = $var + given$u.shape[0]
    except AttributeError:
        $var = $var * 0.5

## what Python says of its errors
for act$u in (lambda: [].nothing, lambda: (1, 2)[$n % 2 + 5], lambda: [1].index(7), lambda: len($n), lambda: next([1])):
    try:
        act$u()
    except Exception as error$u:
        $keep = (type(error$u).__name__, str(error$u))
        $var = $var + 1

## keywords that meet
kwargs$u = {"a": $n}
try:
    $keep = dict(a=1, **kwargs$u) if $b else dict(b=1, **kwargs$u)
except TypeError:
    $var = $t * 3

## loop over the rows of a tensor
total$u = 0.0
for row$u in $x:
    total$u = total$u + row$u.sin()
$new = total$u

## star expression in a loop
for first$u, *rest$u in [(1, 2, 3), (4,)]:
    $var = $var + first$u * len(rest$u)

## deletion
doomed$u = $t
$new = doomed$u * 2
del doomed$u
try:
    doomed$u
except NameError as error$u:
    $keep = type(error$u).__name__
"""
