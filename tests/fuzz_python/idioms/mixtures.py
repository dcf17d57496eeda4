"""Two things at once: what Python does in the middle of what torch does, and what outlives the end of a graph."""

from __future__ import annotations

IDIOMS = r"""
## set handed out
$keep = {"q", "w", "e", f"n{$n % 3}"}
$new = $t * 2

## set kept over the end of a graph
words$u = {"q", "w", "e", "r"}
words$u.add(f"n{$n % 3}")
print("between")
$new = $t * len(words$u)
$keep = list(words$u)

## set of the state that shrinks
$s.names.discard(f"n{$n % 3}")
$s.names |= {"m", f"o{$n % 2}"}
$new = $t * len($s.names)
$keep = sorted($s.names)

## first of a set
only$u = {"only"}
$keep = next(iter(only$u))
$new = $t + len(only$u.pop())

## frozenset handed out
$keep = frozenset(("a", "b", "c")) - {"b"}

## dictionary over the end of a graph
parts$u = {"b": $t, "a": $f}
print("middle")
parts$u["c"] = parts$u.pop("b") * 2
$new = parts$u["c"] + parts$u["a"]
$keep = list(parts$u)

## dictionary compared and viewed
left$u, right$u = {"a": 1, "b": $n}, {"b": 2, "c": 3}
$keep = (left$u.keys() & right$u.keys(), sorted(left$u.keys() | right$u.keys()), left$u.items() <= left$u.items())
$new = $t * len(left$u.keys() - right$u.keys())

## dictionary that changes while it is iterated
try:
    growing$u = {"a": 1}
    for key$u in growing$u:
        growing$u[key$u + "x"] = $n
    $keep = growing$u
except RuntimeError as error$u:
    $keep = str(error$u)

## mapping proxy
settings$u = types.MappingProxyType({"a": $f})
$new = $t * settings$u["a"]
try:
    settings$u["b"] = 1
except TypeError as error$u:
    $keep = str(error$u)

## defaultdict kept
groups$u = collections.defaultdict(list)
--
groups$u[$n % 2].append($f)
$new = $t * len(groups$u)
$keep = {key$u: len(group$u) for key$u, group$u in groups$u.items()}

## deque of tensors kept
window$u = collections.deque(maxlen=2)
--
window$u.append($t.detach().sum())
$new = $t + sum(window$u) / len(window$u)

## heap of pairs
queue$u = []
for step$u in range(3):
    heapq.heappush(queue$u, (abs(step$u - $n), step$u))
$new = $t * heapq.heappop(queue$u)[1]
$keep = queue$u

## generator over tensors, stopped
def each$u(values):
    for value in values:
        EVENTS.append("each")
        yield value * 2
--
for step$u, value$u in enumerate(each$u([$t, $t, $t])):
    $var = $var + value$u.sum() * 0.1
    if step$u >= $n:
        break

## generator in a with block
def inside$u(value):
    with torch.no_grad():
        yield value * 2
    yield value * 3
--
walk$u = inside$u($t)
first$u = next(walk$u)
$keep = torch.is_grad_enabled()
$new = first$u + next(walk$u)

## generator passed on and chained
$new = sum(itertools.chain((value$u * 2 for value$u in ($t, $t)), [$f]))

## generator that fails
def failing$u(number):
    yield number
    raise LookupError(f"after {number}")
--
try:
    $keep = list(failing$u($n))
except LookupError as error$u:
    $keep = error$u.args[0]

## finally behind a tensor's value
try:
    if $t.sum() > $f:
        raise ArithmeticError("large")
    $var = $t * 2
except ArithmeticError:
    $var = $t * 0.5
finally:
    EVENTS.append("finally")

## return from a loop in a try
def searched$u(values, bound):
    for number, value in enumerate(values):
        try:
            if value.sum() > bound:
                return value * 2
        finally:
            EVENTS.append(number)
    return values[-1]
--
$new = searched$u([$t, $t], $f)

## exception with notes and group
try:
    problem$u = ValueError("bad")
    problem$u.add_note(f"n={$n}")
    raise problem$u
except ValueError as error$u:
    $keep = error$u.__notes__

## exception that is raised again
try:
    try:
        raise KeyError($n)
    except KeyError:
        $s.history.append("again")
        raise
except LookupError as error$u:
    $keep = (type(error$u).__name__, error$u.args)

## sys.exc_info
try:
    raise ValueError("seen")
except ValueError:
    $keep = sys.exc_info()[0].__name__

## error inside a helper, behind a write
def writes$u(owner, number):
    owner.steps += 1
    if number > 2:
        raise OverflowError(number)
    return number
--
try:
    $keep = writes$u($s, $n)
except OverflowError as error$u:
    $keep = ("over", error$u.args[0])
$new = $t * $s.steps

## with block that swallows an error between ops
class Quiet$u:
    def __enter__(self):
        return EVENTS
    def __exit__(self, kind, value, traceback):
        return kind is not None
--
with Quiet$u() as events$u:
    $var = $t * 2
    events$u.append("in")
    {}["missing"]
    $var = $t * 100

## grad mode switched by hand
before$u = torch.is_grad_enabled()
torch.set_grad_enabled($b)
$var = $t * 2
torch.set_grad_enabled(before$u)
$keep = $var.requires_grad

## default dtype switched for a while
torch.set_default_dtype(torch.float64)
try:
    third$u = torch.ones(4) * $f
finally:
    torch.set_default_dtype(torch.float32)
$new = $t + third$u.float()
$keep = third$u

## random state forked
with torch.random.fork_rng(devices=[]):
    torch.manual_seed($n)
    noise$u = torch.rand(4)
$new = $t * noise$u + torch.rand(4)

## random numbers of all three
$new = $t * random.random() + float(np.random.rand()) * torch.rand(())

## random sample of Python's and a permutation of torch's
picked$u = random.sample(range(4), 2)
$new = $t + torch.randperm(4)[picked$u[0]]
$keep = (picked$u, random.gauss(0, 1), random.choices("abc", k=2))

## mask of NumPy's random numbers
mask$u = np.random.uniform(size=4) > 0.5
$new = $t * torch.from_numpy(mask$u)

## memory shared with NumPy
shared$u = torch.ones(4)
view$u = shared$u.numpy()
view$u[0] = $f
$new = $t * shared$u

## NumPy statistics
values$u = np.linspace(0.0, 1.0, 7) * $f
$keep = (float(values$u.std()), float(np.linalg.norm(values$u)), np.percentile(values$u, 30).item())
$new = $t + values$u.mean().item()

## number that is an array scalar
rate$u = np.float32($f)
$new = $t * float(rate$u) + int(np.int64($n))

## context variable
mode$u = __import__("contextvars").ContextVar("mode$u", default=1.0)
--
token$u = mode$u.set($f)
$new = $t * mode$u.get()
mode$u.reset(token$u)
$keep = mode$u.get()

## weak reference
import weakref as weakref$u
--
made$u = $t * 2
seen$u = weakref$u.ref(made$u)
$new = made$u + 1
$keep = seen$u() is made$u

## lock
import threading as threading$u
lock$u = threading$u.Lock()
--
with lock$u:
    $var = $t * 2
$keep = lock$u.locked()

## signature and arguments
import inspect as inspect$u
def described$u(a, *rest, b=2, **more):
    return a
--
$keep = (list(inspect$u.signature(described$u).parameters), described$u.__code__.co_argcount, described$u.__name__)
$new = described$u($t)

## annotations and doc
def told$u(value: int = 3) -> float:
    "says"
    return value * 2.0
--
$keep = (told$u.__doc__, told$u.__annotations__, told$u.__defaults__, told$u.__qualname__)
$new = $t * told$u($n)
"""
