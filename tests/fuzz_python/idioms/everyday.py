"""Everyday training code between tensors: traits asked, states and schedules, tables, text, numbers, loops that stop early."""

from __future__ import annotations

IDIOMS = r"""
## class of a thing, asked and compared
$keep = ($t.__class__ is torch.Tensor, type($f) is float, type($n) in (int, float), callable($s), $s.__class__.__name__)

## __dict__ of the state
$keep = ("scale" in vars($s), len($s.history), getattr($s, "nothing", None), $s.__dict__.get("rate"))
$new = $t * vars($s)["scale"]

## attribute deleted and set
$s.temporary = $n
$new = $t + $s.temporary
delattr($s, "temporary")
$keep = hasattr($s, "temporary")

## class attribute that changes
class Shared$u:
    count = 0
    items = []
--
Shared$u.count += 1
Shared$u().items.append($n)
mine$u = Shared$u()
mine$u.count = $f
$new = $t * mine$u.count + Shared$u.count
$keep = len(Shared$u.items)

## property that counts
class Meter$u:
    def __init__(self):
        self.reads = 0
    @property
    def value(self):
        self.reads += 1
        return self.reads * 0.5
meter$u = Meter$u()
--
$new = $t * meter$u.value + meter$u.value

## cached property on the state
class Lazy$u:
    def __init__(self, base):
        self.base = base
    @functools.cached_property
    def doubled(self):
        EVENTS.append("computed")
        return self.base * 2
lazy$u = Lazy$u(1.5)
--
$new = $t * lazy$u.doubled + lazy$u.doubled

## lru_cache of a tensor's shape
@functools.lru_cache(maxsize=4)
def window$u(size):
    EVENTS.append(size)
    return torch.hann_window(size)
--
$new = $t * window$u(4)

## table made once
cache$u = {}
--
if $n not in cache$u:
    cache$u[$n] = torch.arange(4) * 0.1 + $n
$new = $t + cache$u[$n]
$keep = len(cache$u)

## closure over the loop and the argument
makers$u = []
for step$u in range(3):
    def made$u(value, by=step$u):
        return value * by + step$u
    makers$u.append(made$u)
$new = sum(make$u($t) for make$u in makers$u)

## closure that outlives the call
callbacks$u = []
--
factor$u = $f
callbacks$u.append(lambda value: value * factor$u)
$new = callbacks$u[0]($t)
$keep = len(callbacks$u)

## nonlocal counter that is returned
def counter$u():
    count = 0
    def tick(by=1):
        nonlocal count
        count += by
        return count
    return tick
tick$u = counter$u()
--
$new = $t * tick$u() + tick$u($n)

## recursive structure
node$u = {"value": $f}
node$u["self"] = node$u
$new = $t * node$u["self"]["self"]["value"]

## nested functions with defaults and keywords only
def outer$u(value, /, *, scale=2.0, **options):
    def inner(*args, offset=options.get("offset", 0)):
        return sum(args) * scale + offset
    return inner(value, 1)
--
$new = outer$u($t) + outer$u($t, scale=$f, offset=$n)

## data class with field factories and post-init
@dataclasses.dataclass(order=True)
class Step$u:
    number: int
    values: list = dataclasses.field(default_factory=list, compare=False)
    total: float = dataclasses.field(init=False, default=0.0)
    def __post_init__(self):
        self.total = self.number * 0.5
--
step$u = Step$u($n)
step$u.values.append($t)
$new = step$u.values[0] * step$u.total
$keep = (step$u < Step$u(3), dataclasses.replace(step$u, number=9).total, dataclasses.asdict(Step$u(1)))

## enum with methods, kept in a table
class Kind$u(enum.Enum):
    SIN = "sin"
    COS = "cos"
    def __call__(self, value):
        return getattr(torch, self.value)(value)
uses$u = {kind: 0 for kind in Kind$u}
--
kind$u = Kind$u.SIN if $b else Kind$u.COS
uses$u[kind$u] += 1
$new = kind$u($t)
$keep = [uses$u[each$u] for each$u in Kind$u]

## string building
lines$u = [f"{name$u}={value$u:.3g}" for name$u, value$u in (("a", $f), ("b", $n), ("c", 0.1))]
$keep = ("; ".join(lines$u), "%d-%05.2f" % ($n, $f), "{:>4}|{:<4}|{:^4}".format($n, "x", True), str($f), repr(($n,)))
$new = $t * len(lines$u)

## text of a tensor's traits
$keep = (str($x.shape), f"{$x.dtype}", str($x.device), f"{tuple($x.shape)!r}", "{0.ndim}".format($x))

## bytes and numbers
$keep = ((300 + $n).to_bytes(2, "big"), int("1f", 16) + $n, bin($n), round($f, 1), divmod(7, $n + 1), hex(255))
$new = $t * (($n << 2 | 1) ^ 3) + (-7 // 2) + (-7 % 3)

## floats and their corners
$keep = (math.isclose($f, 0.5), float("inf") > $f, math.nan != math.nan, math.copysign(1, -$f), math.floor($f), math.frexp($f))
$new = $t * math.sqrt(abs($f)) + math.exp(-abs($f)) + math.hypot($f, 1)

## schedule with warmup
$s.steps += 1
rate$u = 0.1 * min(1.0, $s.steps / 3) * 0.5 * (1 + math.cos(math.pi * $s.steps / 10))
$new = $t * rate$u
$keep = rate$u

## moving average in the state
$s.scale = 0.9 * $s.scale + 0.1 * $f
$new = $t * $s.scale / (1 - 0.9 ** ($s.steps + 1))

## moving average of a tensor's value
$s.rate = 0.5 * $s.rate + 0.5 * float($t.detach().mean())
$new = $t * $s.rate

## loss that grows by parts
loss$u = 0
for part$u, weight$u in {"a": ($t, 1.0), "b": ($t, $f)}.values():
    loss$u += weight$u * part$u.square().mean()
$new = $t + loss$u

## early stop on a tensor, with state
for step$u in range(4):
    $s.last = $t.detach().mean()
    if $s.last > step$u * $f:
        $s.history.append(step$u)
        break
$new = $t * len($s.history)

## fixed point
guess$u = torch.ones(4)
for _ in range(6):
    following$u = (guess$u + $t.detach().abs() / guess$u) / 2
    if torch.allclose(following$u, guess$u, atol=1e-2):
        break
    guess$u = following$u
$new = $t + guess$u

## in-place ops through an alias across a print
base$u = $t * 2
alias$u = base$u.view_as(base$u)
print("alias")
alias$u.add_($f)
$new = base$u.sin()

## view of an intermediate that needs no gradient, written into
plain$u = ($t.detach() * 2)
window$u = plain$u.view(plain$u.shape)
window$u.mul_(3)
$keep = (window$u, plain$u)
$new = $t + plain$u

## tensor that is rebound in a container
pair$u = [$t * 1, $t]
pair$u[0] += 1
pair$u[1] = pair$u[0] * $f
$new = pair$u[1]

## shape arithmetic
flat$u = $x.reshape(-1, 4)
rows$u, columns$u = flat$u.shape
$new = flat$u.reshape(rows$u * columns$u).view(rows$u, -1).mean() * (rows$u // 2 + 1) / columns$u + $t
$keep = (rows$u, columns$u, rows$u % 2 == 0, torch.Size([rows$u]) + (1,))

## size as a float and in a range
$new = $t * ($x.shape[0] ** 0.5) + sum(step$u for step$u in range($x.shape[0]))
$keep = [$x.shape[0] / 2] * min($x.shape[0], 2)

## slices by numbers
$new = $x[..., : $n % 3 + 1].sum() + $x[..., -($n % 2 + 1)].mean() + $t

## indices of Python's
order$u = sorted(range(4), key=lambda number: (number * 3 + $n) % 4)
$new = $x[..., order$u] + $t

## repr of numbers from tensors
total$u = $t.detach().sum()
$keep = (f"{total$u.item():.2f}", int(total$u), round(float(total$u), 2), bool(total$u > 0))

## eval mode by name
for name$u in ("sin", "cos", "tanh")[: $n % 3 + 1]:
    $var = getattr($var, name$u)()
$new = getattr(torch, "exp" if $b else "sigmoid")($t)

## partial of a method
bound$u = functools.partial(torch.clamp, min=-1)
$new = bound$u($t, max=$n + 0.5)

## star keywords into torch
options$u = {"dim": -1, "keepdim": $b}
$new = $x.sum(**options$u).sum() + $t

## logging of a value at a level
logger$u = logging.getLogger("fuzz$u")
--
logger$u.debug("value %s", $n)
$new = $t * 2
$keep = logger$u.isEnabledFor(logging.DEBUG)

## warn once
warned$u = []
--
if not warned$u:
    warned$u.append(True)
    warnings.warn(f"first call with {$n}")
$new = $t + len(warned$u)

## timer
started$u = __import__("time").perf_counter()
$new = $t * 2
$keep = __import__("time").perf_counter() >= started$u

## call of an object in a global table
TABLE$u = {}
def register$u(name):
    def add(function):
        TABLE$u[name] = function
        return function
    return add
@register$u("double")
def doubled$u(value):
    return value * 2
--
register$u(f"plus{$n}")(lambda value: value + 1)
$new = TABLE$u["double"]($t)
$keep = len(TABLE$u)

## iterator class with state
class Stepping$u:
    def __init__(self, end):
        self.now, self.end = 0, end
    def __iter__(self):
        return self
    def __next__(self):
        if self.now >= self.end:
            raise StopIteration
        self.now += 1
        return self.now
stepping$u = Stepping$u(20)
--
$new = $t * next(stepping$u) + sum(itertools.islice(stepping$u, 2))
$keep = sum(Stepping$u($n % 4))
"""
