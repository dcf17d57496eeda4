"""What a program does beside computing: printing, warnings, generators of random numbers, globals, NumPy, text."""

from __future__ import annotations

IDIOMS = r"""
## print
print("at", $n, f"{$f:.3f}")

## print of a tensor
print($t.shape, $t.sum().item() > 0)

## prints in order
print("one", end=" ")
$new = $t * 2
print("two", $new.requires_grad)

## warning
warnings.warn(f"number {$n}")
$new = $t + 1

## warnings caught
with warnings.catch_warnings(record=True) as caught$u:
    warnings.simplefilter("always")
    warnings.warn("inner", UserWarning)
    $var = $t * 2
$keep = [str(one$u.message) for one$u in caught$u]

## warning of torch's
$new = F.mse_loss($x.sum(0), torch.zeros(1))

## logging
logging.getLogger("fuzz").warning("n=%d", $n)
$new = $t * 3

## written to stdout
sys.stdout.write(f"<{$n}>\n")

## event log
EVENTS.append(("here", $n, round($f, 3)))

## event of a value
EVENTS.append($t.detach().sum().item())

## random of Python's
$new = $t * random.random() + random.randint(0, 3)

## random choice and shuffle
deck$u = [1, 2, 3]
random.shuffle(deck$u)
$new = $t * deck$u[0] + random.choice((0.5, 1.5)) + random.uniform(0, 1)

## seeded generator of Python's
rng$u = random.Random(5)
--
$new = $t * rng$u.random() + rng$u.gauss(0, 1)

## generator made inside
draw$u = random.Random($n)
$new = $t * draw$u.random()

## random seeded inside
random.seed($n)
$new = $t + random.random()

## random of NumPy's
$new = $t * np.random.rand() + np.random.randint(3)

## generator of NumPy's
nprng$u = np.random.default_rng(3)
--
noise$u = torch.as_tensor(nprng$u.random(4), dtype=torch.float32)
$new = $t * float(nprng$u.standard_normal()) + noise$u

## random of torch's
$new = $t + torch.rand(4)
$new = $t * torch.randn_like($t)

## dropout by hand
$new = torch.where(torch.rand_like($t) > 0.5, $t, torch.zeros_like($t)) if $b else $t

## generator of torch's
gen$u = torch.Generator().manual_seed(7)
--
$new = $t + torch.rand(4, generator=gen$u)

## seed of torch's set inside
torch.manual_seed($n)
$new = $t * torch.rand(())

## random state kept and put back
state$u = random.getstate()
$new = $t * random.random()
random.setstate(state$u)

## NumPy in the middle
array$u = $t.detach().numpy().copy()
array$u += $f
$new = $t + torch.from_numpy(array$u)

## NumPy's sums
$new = $t * float(np.mean([$f, $n, 0.1])) + np.float32(0.5)

## NumPy of a list of numbers
points$u = np.linspace(0, 1, 4)
$new = $t * torch.tensor(points$u, dtype=torch.float32) + np.sqrt($f * $f)

## NumPy number as an attribute
gain$u = np.float64(1.25)
--
$new = $t * gain$u

## NumPy indices
$new = $x[np.array([0, 1])].sum() + np.argmax([1, $n, 3])

## NumPy booleans
if np.any(np.array([$n, 0]) > 2):
    $var = $t * 1.25

## global written
level$u = 1.0
--
global level$u
level$u = level$u * 0.5 + 1
$new = $t * level$u

## global counter
counter$u = 0
def tick$u():
    global counter$u
    counter$u += 1
    return counter$u
--
$new = $t * tick$u() + tick$u()

## global tensor rebound
memory$u = torch.zeros(())
def store$u(value):
    global memory$u
    memory$u = memory$u + value.detach().sum()
--
store$u($t)
$new = $t + memory$u

## global list
seen$u = []
--
seen$u.append($n)
$new = $t * (seen$u[-1] + len(seen$u))

## global that a driver changes
$new = $t * SETTINGS["gain"] + len(SETTINGS)

## global switched on and off
previous$u = SETTINGS["gain"]
SETTINGS["gain"] = $f
try:
    $new = $t * SETTINGS["gain"]
finally:
    SETTINGS["gain"] = previous$u

## format of values
$keep = f"{$n:04d} {$f:.2e} {$b!s:>6} {'x' * 2}"
$keep = "%s-%d" % ("a", $n)
$keep = "{:>5}|{name}".format($n, name="b")

## format of a tensor's value
$keep = f"{$t.detach().sum().item():.2f}"
$new = $t * len(f"{$n}")

## parsing
$new = $t * float("1.5") + int("7") * int(str($n)[-1])
$keep = [part$u.strip() for part$u in "a, b ,c".split(",")]

## strings
word$u = ("alpha", "beta")[$n % 2]
$keep = (word$u.upper(), word$u[::-1], word$u.replace("a", "o"), word$u.startswith("al"), word$u.join("--"), word$u.encode())
$new = $t * len(word$u)

## name of a thing
$keep = (type($s).__name__, torch.sin.__name__, $t.dtype, str($t.device), $t.type())

## json
$keep = json.loads(json.dumps({"n": $n, "f": [1, None]}))
$new = $t + 1

## regular expressions
found$u = re.match(r"(\w+)-(\d+)", f"run-{$n}")
$new = $t * int(found$u[2])
$keep = re.sub("[aeiou]", "_", "regular")

## math
$new = $t * math.sqrt(abs($f)) + math.floor($f * 3) - math.exp(-abs($f))
$keep = (math.isclose($f, 0.5), math.gcd(12, $n), math.pi)

## floats step by step
warmup$u = min(1.0, ($s.steps + 1) / 7)
rate$u = 0.1 * warmup$u * (0.9 ** $n) / (1.0 + $f * 0.3)
$new = $t * rate$u
$keep = rate$u

## integer arithmetic
$new = $t * ($n // 2 + $n % 3) + (-$n // 2) + divmod($n, 2)[1]
$keep = ($n ** 2, $n << 1, $n & 3, ~$n, -7 % 3, round($f, 1), abs(-$n))

## float to int
$new = $t * int($f * 4) + round($f)
$keep = (float($n), int(-1.5), $f.is_integer(), $f.hex())

## beta schedule
beta$u = math.tanh($f) * math.cos($n * 0.1)
$new = $t * beta$u + torch.full((), beta$u)

## complex and infinities
$keep = (complex($f, 1) * 2, float("inf") > $f, float("nan") != float("nan"), -0.0)
$new = $t / (1 + abs(complex(3, 4)))

## is_compiling
if torch.compiler.is_compiling() or torch.jit.is_tracing():
    $var = $t * 100
$keep = (torch.compiler.is_compiling(), torch._dynamo.is_compiling())

## modes asked
$keep = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype())
$keep = torch.is_inference_mode_enabled()

## default dtype
torch.set_default_dtype(torch.float64)
$new = $t * (torch.ones(4) * 0.1).float()
torch.set_default_dtype(torch.float32)

## time passes
import time
before$u = time.perf_counter()
$new = $t.sin()
$keep = time.perf_counter() >= before$u

## ids
$keep = id($s) == id($s)
$new = $t * (1 if id($var) in {id($var): 0} else 2)

## environment of the interpreter
$keep = (sys.version_info >= (3, 8), sys.maxsize > 0, __name__ != "", callable(print))

## locals and globals
$keep = ("x" in locals(), "EVENTS" in globals())
$new = $t * 2

## eval
$keep = eval("n + 1", {"n": $n})
"""
