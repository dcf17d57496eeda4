"""Closures, arguments, decorators, recursion, what functools makes of functions."""

from __future__ import annotations

IDIOMS = r"""
## cell rebound by an inner function
factor$u = $f
def inner$u(value):
    nonlocal factor$u
    factor$u = factor$u + 0.5
    return value * factor$u
$new = inner$u($t) + inner$u($t)
$keep = factor$u

## cell rebound behind the closure
shift$u = $t
late$u = lambda value: value + shift$u
shift$u = $t
$new = late$u($t)

## cell of a factory, kept between calls
def make_counter$u():
    count = 0
    def counter(value):
        nonlocal count
        count += 1
        return value * count
    return counter
counter$u = make_counter$u()
--
$new = counter$u($t)

## tensor kept in a cell
def make_mean$u():
    mean = None
    def update(value):
        nonlocal mean
        mean = value.detach() if mean is None else mean * 0.5 + value.detach() * 0.5
        return mean
    return update
mean$u = make_mean$u()
--
$new = $t - mean$u($t.sum())

## lambdas of a loop that capture one variable
acts$u = [lambda value: value * step$u for step$u in range(3)]
$new = sum(act$u($t) for act$u in acts$u)

## lambdas of a loop with defaults
acts$u = []
for step$u in range(3):
    acts$u.append(lambda value, step=step$u: value + step)
$new = acts$u[0]($t) * acts$u[-1]($t)

## mutable default argument
def remember$u(value, seen=[]):
    seen.append(len(seen))
    return value * len(seen)
--
$new = remember$u($t)

## mutable default that keeps tensors
def smooth$u(value, cache={}):
    cache["last"] = value.detach() + cache.get("last", 0)
    return value * cache["last"]
--
$new = smooth$u($t.mean())

## defaults changed from outside
def scaled$u(value, factor=1.5, *, shift=0.25):
    return value * factor + shift
--
scaled$u.__defaults__ = (scaled$u.__defaults__[0] + 1,)
$new = scaled$u($t)
scaled$u.__kwdefaults__["shift"] = $f
$new = scaled$u($t)

## args and kwargs
def collect$u(first, *rest, factor=2.0, **named):
    total = first * factor
    for value in rest:
        total = total + value
    for name, value in named.items():
        total = total * value if name.startswith("m") else total - value
    return total
--
$new = collect$u($t, $t, $n, factor=$f, m=$t, other=$f)

## arguments from a tuple and a dictionary
def joined$u(a, b, *, c=1.0):
    return a * b + c
--
pack$u, named$u = ($t, $t), {"c": $f}
$new = joined$u(*pack$u, **named$u)

## missing argument
def needs_two$u(a, b):
    return a + b
--
try:
    $new = needs_two$u($t)
except TypeError as error$u:
    $keep = str(error$u)
    $new = $t

## partial
def weighted$u(weight, value, power=1):
    return weight * value ** power
--
half$u = functools.partial(weighted$u, $f, power=2)
$new = half$u($t)
$keep = half$u.keywords

## partial kept outside
scale_by$u = functools.partial(torch.mul, other=2.0)
--
$new = scale_by$u($t)

## reduce
$new = functools.reduce(lambda total, value: total * 0.5 + value, [$t, $t, $t], $f)

## lru_cache of numbers
@functools.lru_cache(maxsize=2)
def table$u(number):
    EVENTS.append(("table", number))
    return number * 1.5
--
$new = $t * table$u($n) + table$u($n)

## cached_property
class Lazy$u:
    def __init__(self, start):
        self.start = start
    @functools.cached_property
    def value(self):
        EVENTS.append("computed")
        return self.start * 2
lazy$u = Lazy$u(1.5)
--
$new = $t * lazy$u.value + lazy$u.value

## decorator that counts
def counted$u(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs)
    wrapper.calls = 0
    return wrapper
@counted$u
def shifted$u(value, by=1.0):
    return value + by
--
$new = shifted$u($t) * shifted$u($t, by=$f)
$keep = (shifted$u.calls, shifted$u.__name__)

## decorator with arguments
def repeat$u(times):
    def wrap(function):
        def again(value):
            for _ in range(times):
                value = function(value)
            return value
        return again
    return wrap
@repeat$u(2)
def halved$u(value):
    return value * 0.5
--
$new = halved$u($t)

## recursion
def power$u(value, number):
    return value if number <= 0 else power$u(value, number - 1) * 0.5 + number
--
$new = power$u($t, min($n, 4))

## recursion over a tree
def fold$u(tree):
    if isinstance(tree, torch.Tensor):
        return tree.sin()
    if isinstance(tree, dict):
        return sum(fold$u(value) for value in tree.values())
    if isinstance(tree, (list, tuple)):
        return sum(map(fold$u, tree))
    return tree
--
$new = fold$u({"a": [$t, ($t, $f)], "b": $n, "c": {}})

## recursion among inner functions
def even$u(value, number):
    return value if number == 0 else odd$u(value + 1, number - 1)
def odd$u(value, number):
    return value * 2 if number == 0 else even$u(value - 1, number - 1)
$new = even$u($t, abs($n) % 4)

## function as a value in a table
acts$u = {"sin": torch.sin, "half": lambda value: value / 2, "relu": F.relu}
$new = acts$u[("sin", "half", "relu")[$n % 3]]($t)

## singledispatch
@functools.singledispatch
def kind$u(value):
    return 1.0
@kind$u.register
def _(value: int):
    return 2.0 + value
@kind$u.register
def _(value: torch.Tensor):
    return value.cos()
--
$new = $t * kind$u($n) + kind$u($t) + kind$u($f)

## attributes of a function
def stepper$u(value):
    stepper$u.calls = getattr(stepper$u, "calls", 0) + 1
    return value / stepper$u.calls
--
$new = stepper$u($t)

## functions compared and asked their names
def plain$u(value: float, other: int = 2) -> float:
    "What it does."
    return value * other
--
$keep = (plain$u.__name__, plain$u.__doc__, plain$u.__code__.co_argcount, callable(plain$u), sorted(plain$u.__annotations__))
$new = plain$u($t)

## immediately called lambda and walrus
$new = (lambda value: (twice$u := value * 2) + twice$u.sin())($t)

## operator functions
$new = operator.add(operator.mul($t, $f), operator.neg($t))
$keep = operator.itemgetter(1, 0)(("a", "b"))

## methodcaller and attrgetter
$new = operator.methodcaller("clamp", min=0.1)($t) * operator.attrgetter("weight")($s)

## star-args only positional
def positional$u(a, b, /, c=2, *, d=3):
    return a * b + c - d
--
$new = positional$u($t, $f, d=$n)
"""
