"""Classes: data classes, named tuples, enums, properties, descriptors, special methods, modules and their attributes."""

from __future__ import annotations

IDIOMS = r"""
## data class
@dataclasses.dataclass
class Pair$u:
    left: object
    right: float = 2.0
    seen: list = dataclasses.field(default_factory=list)
    def product(self):
        return self.left * self.right
--
pair$u = Pair$u($t, right=$f)
pair$u.seen.append($n)
pair$u.left = pair$u.left + 1
$new = pair$u.product()
$keep = (pair$u.right, pair$u.seen)

## data class kept and changed
@dataclasses.dataclass
class Config$u:
    rate: float = 0.5
    steps: int = 0
config$u = Config$u()
--
config$u.steps += 1
config$u.rate *= 0.5
$new = $t * config$u.rate + config$u.steps

## frozen data class
@dataclasses.dataclass(frozen=True, order=True)
class Key$u:
    name: str
    number: int = 0
    def __post_init__(self):
        if self.number < 0:
            raise ValueError("negative")
--
key$u = Key$u("a", $n)
found$u = {key$u: $f, Key$u("b"): 1.0}
$new = $t * found$u[Key$u("a", $n)]
$keep = (repr(key$u), key$u < Key$u("b"), dataclasses.asdict(key$u))
try:
    key$u.number = 3
except dataclasses.FrozenInstanceError as error$u:
    $keep = str(error$u)

## data class replaced
@dataclasses.dataclass
class Options$u:
    by: float
    name: str = "x"
--
options$u = dataclasses.replace(Options$u($f), name="y")
$new = $t * options$u.by
$keep = ([field$u.name for field$u in dataclasses.fields(options$u)], options$u == Options$u($f, "y"))

## data class returned
@dataclasses.dataclass
class Output$u:
    loss: object
    extra: tuple = ()
--
$keep = Output$u($t, extra=($n, $t))

## named tuple
Point$u = collections.namedtuple("Point$u", "x y", defaults=(1.5,))
--
point$u = Point$u($t)
moved$u = point$u._replace(y=$f)
$new = moved$u.x * moved$u.y + point$u[1]
$keep = (moved$u._fields, len(point$u), moved$u._asdict()["y"])

## named tuple returned
class Both$u(typing.NamedTuple):
    value: object
    number: int = 3
    def sum(self):
        return self.value + self.number
--
both$u = Both$u($t, $n)
$new = both$u.sum()
$keep = both$u

## enum
class Mode$u(enum.Enum):
    SUM = 1
    MEAN = "mean"
    @property
    def is_sum(self):
        return self is Mode$u.SUM
--
mode$u = Mode$u.SUM if $b else Mode$u("mean")
$new = $t.sum() if mode$u.is_sum else $t.mean()
$keep = (mode$u, mode$u.name, [member$u.name for member$u in Mode$u])

## int enum and flags
class Level$u(enum.IntEnum):
    LOW = 1
    HIGH = 5
class Parts$u(enum.Flag):
    A = enum.auto()
    B = enum.auto()
--
$new = $t * Level$u.HIGH + Level$u(1)
$keep = (Level$u.LOW < $n, Parts$u.A | Parts$u.B, bool(Parts$u.A & Parts$u.B))

## property with setter
class Dial$u:
    def __init__(self):
        self._value, self.writes = 1.0, 0
    @property
    def value(self):
        return self._value
    @value.setter
    def value(self, new):
        self.writes += 1
        self._value = new
dial$u = Dial$u()
--
dial$u.value = dial$u.value + 0.5
$new = $t * dial$u.value + dial$u.writes

## descriptor
class Clamped$u:
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name, 0.5)
    def __set__(self, instance, value):
        setattr(instance, self.name, min(value, 2.0))
class Holder$u:
    rate = Clamped$u()
holder$u = Holder$u()
--
holder$u.rate = holder$u.rate + $f
$new = $t * holder$u.rate

## __getattr__
class Lazy$u:
    def __init__(self):
        self.asked = []
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        self.asked.append(name)
        return len(name)
lazy$u = Lazy$u()
--
$new = $t * lazy$u.abc + getattr(lazy$u, "_hidden", 0.5)
$keep = hasattr(lazy$u, "_none")

## __setattr__
class Logged$u:
    def __setattr__(self, name, value):
        EVENTS.append(name)
        object.__setattr__(self, name, value)
logged$u = Logged$u()
--
logged$u.value = $n
$new = $t * logged$u.value

## __getattribute__
class Watched$u:
    number = 2.0
    def __getattribute__(self, name):
        if name == "twice":
            return object.__getattribute__(self, "number") * 2
        return object.__getattribute__(self, name)
watched$u = Watched$u()
--
$new = $t * watched$u.twice + watched$u.number

## __call__, __len__, __getitem__, __contains__, __iter__
class Bag$u:
    def __init__(self, *items):
        self.items = list(items)
    def __call__(self, value):
        return sum(item * value for item in self.items)
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]
    def __contains__(self, item):
        return any(item is mine for mine in self.items)
    def __iter__(self):
        return iter(self.items)
    def __bool__(self):
        return len(self.items) > 1
--
bag$u = Bag$u($t, $f)
$new = bag$u(2.0) + bag$u[0] + len(bag$u)
$keep = (3 in bag$u, len(list(bag$u)), bool(bag$u))

## arithmetic of one's own
class Vec$u:
    def __init__(self, value):
        self.value = value
    def __add__(self, other):
        return Vec$u(self.value + getattr(other, "value", other))
    __radd__ = __add__
    def __rmul__(self, other):
        return Vec$u(self.value * other)
    def __eq__(self, other):
        return isinstance(other, Vec$u)
    def __hash__(self):
        return 1
    def __neg__(self):
        return Vec$u(-self.value)
--
vec$u = 2 * (Vec$u($t) + 1.5) + Vec$u($f)
$new = (-sum([vec$u, vec$u])).value
$keep = (vec$u == Vec$u(0), vec$u != 3, len({vec$u, Vec$u(1)}))

## isinstance, issubclass, type
$keep = (isinstance($n, int), isinstance($f, (int, str)), type($t) is torch.Tensor, issubclass(bool, int), type($n).__name__)
$new = $t * 2 if isinstance($t, torch.Tensor) else torch.zeros(())

## class and static methods, class attributes
class Registry$u:
    known = {}
    made = 0
    @classmethod
    def make(cls, name):
        cls.made += 1
        cls.known[name] = cls.made
        return cls()
    @staticmethod
    def twice(value):
        return value * 2
--
registry$u = Registry$u.make(f"r{$n % 2}")
$new = registry$u.twice($t) + Registry$u.made
$keep = dict(Registry$u.known)

## inheritance and super
class Base$u:
    factor = 1.5
    def apply(self, value):
        return value * self.factor
class Derived$u(Base$u):
    factor = 2.5
    def apply(self, value):
        return super().apply(value) + super().factor
--
$new = Derived$u().apply($t)
$keep = ([kind$u.__name__ for kind$u in Derived$u.__mro__][:2], isinstance(Derived$u(), Base$u))

## slots
class Slim$u:
    __slots__ = ("a", "b")
    def __init__(self, a, b=1.0):
        self.a, self.b = a, b
slim$u = Slim$u(2)
--
slim$u.a += 1
$new = $t * slim$u.a + Slim$u($f).b

## attribute of the state
$s.steps += 1
$new = $t * $s.steps

## float attribute of the state that decays
$s.scale = $s.scale * 0.5 + 0.125
$new = $t * $s.scale

## attribute that appears and goes
if hasattr($s, "extra"):
    $var = $t * $s.extra
    del $s.extra
else:
    $s.extra = $f

## attributes by name
setattr($s, "dynamic", getattr($s, "dynamic", 0) + 1)
$new = $t + $s.dynamic
$keep = vars($s).get("missing", "none")

## tensor attribute rebound
$s.last = $t.detach()
$new = $t + $s.last

## buffer in place
$s.total.add_($t.detach().sum())
$new = $t * $s.total

## buffer rebound
$s.total = $s.total * 0.5 + $t.detach().mean()
$new = $t + $s.total

## parameter used
$new = $t * $s.weight
$new = $x * $s.weight.exp()

## class created inside
class Local$u:
    shared = []
    def __init__(self, value):
        self.value = value
        Local$u.shared.append(1)
    def get(self):
        return self.value.sin()
$new = Local$u($t).get()
$keep = len(Local$u.shared)

## object made by a factory
made$u = types.SimpleNamespace(scale=$f, value=$t)
made$u.scale += 1
$new = made$u.value * made$u.scale
$keep = sorted(vars(made$u))

## object in the global state
shared$u = types.SimpleNamespace(calls=0, last=None)
--
shared$u.calls += 1
$new = $t * shared$u.calls if shared$u.last is None else $t + shared$u.last
shared$u.last = $n

## comparison protocol
@functools.total_ordering
class Rank$u:
    def __init__(self, number):
        self.number = number
    def __lt__(self, other):
        return self.number < other.number
    def __eq__(self, other):
        return self.number == other.number
--
ranks$u = sorted([Rank$u(3), Rank$u($n), Rank$u(1)])
$new = $t * ranks$u[0].number
$keep = Rank$u(2) >= Rank$u($n)

## repr and str
class Shown$u:
    def __init__(self, n):
        self.n = n
    def __repr__(self):
        return f"Shown({self.n})"
    def __format__(self, spec):
        return f"{self.n:{spec}}"
--
$keep = (repr(Shown$u($n)), str([Shown$u(1)]), f"{Shown$u($f):.2f}", f"{Shown$u(2)!r:>10}")
$new = $t + 1

## weak or strong identity
$keep = ($t is $t, $s is $s, [] is not [], None is None)
$new = $t * (1 if $s.table is $s.table else 2)

## abstract methods and mixins
class Mixin$u:
    def run(self, value):
        return self.inner(value) * 2
class Concrete$u(Mixin$u):
    def inner(self, value):
        return value.cos()
concrete$u = Concrete$u()
--
$new = concrete$u.run($t)
run$u = concrete$u.run
$new = run$u($t)

## __new__ and metaclass
class Meta$u(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__.lower()
        return made
class Tagged$u(metaclass=Meta$u):
    def __init__(self, value):
        self.value = value
--
tagged$u = Tagged$u($t)
$new = tagged$u.value * len(tagged$u.tag)

## subclass of a dictionary
class Attrs$u(dict):
    def __getattr__(self, name):
        return self[name]
    def __missing__(self, key):
        return 0.5
--
attrs$u = Attrs$u(a=$f, t=$t)
$new = attrs$u.t * attrs$u.a + attrs$u["none"]

## subclass of a dictionary kept
class Stats$u(dict):
    pass
stats$u = Stats$u(calls=0)
--
stats$u["calls"] += 1
stats$u[f"at {$n}"] = $f
$new = $t * stats$u["calls"]

## subclass of a list
class Track$u(list):
    def add(self, item):
        self.append(item)
        return self
track$u = Track$u()
--
$new = $t * len(track$u.add($n))

## layer of torch's
$new = $s.linear($x) if $x.shape[-1] == 4 else $x
$new = F.dropout($t, $s.rate, $s.training)

## named parameters
$keep = [name$u for name$u, _ in $s.named_parameters()] if isinstance($s, nn.Module) else []
$new = $t + sum(p$u.sum() for p$u in $s.parameters()) if isinstance($s, nn.Module) else $t
"""
