"""Random long chains of pointwise operations: what the executor runs block by block, without tensors.

    generate_chain: (seed, number) -> Program

Sizes lie around multiples of the vector width and of what a thread takes, or are 0; operands broadcast, are 0-dim, or lie in
memory with gaps, transposed or expanded; values are NaN, infinite, denormal; one thread or two. Each function is called three
times.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from tests.fuzz import toolbox
from tests.fuzz.program import Block, Program, Statement
from tests.fuzz.statements import Pool

SIZES = (
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 48, 63, 64, 65, 96, 100, 127, 128, 129, 255, 256, 257, 1000, 1024,
)  # fmt: skip
LARGE = (4095, 4096, 4097, 20000, 32767, 32768, 32769, 65536, 70001)  # a thread takes 32768 elements at least
LAYOUTS = ("plain", "plain", "plain", "transposed", "gaps", "offset", "expanded")
VALUES = ("normal", "normal", "special", "special", "tiny", "large")
MOST_ELEMENTS = 140_000
UNARY = (
    "{a}.sin()", "{a}.cos()", "{a}.tanh()", "{a}.sigmoid()", "{a}.exp()", "{a}.expm1()", "{a}.log()", "{a}.log1p()",
    "{a}.sqrt()", "{a}.rsqrt()", "{a}.reciprocal()", "{a}.square()", "{a} ** 3", "{a} ** -1", "{a} ** 0.5",
    "{a}.pow(1.7)", "-{a}", "{a}.abs()", "{a}.sign()", "{a}.floor()", "{a}.ceil()", "{a}.round()", "{a}.trunc()",
    "{a}.frac()", "{a}.erf()", "{a}.relu()", "F.gelu({a})", "F.gelu({a}, approximate='tanh')", "F.silu({a})",
    "F.softplus({a})", "F.leaky_relu({a}, 0.1)", "F.elu({a})", "F.hardtanh({a})", "F.hardswish({a})", "F.mish({a})",
    "F.logsigmoid({a})", "F.softsign({a})", "{a}.clamp(-1, 1)", "{a}.clamp(min=0.5)", "{a}.nan_to_num(0.5)", "{a} * 0.5",
    "{a} + 1", "{a} - 0.25", "1 - {a}", "{a} / 3", "2 / {a}", "{a} * 1e30", "{a} * 1e-30", "F.threshold({a}, 0.1, 20)",
    "{a}.exp2()", "{a}.atan()", "{a}.sinh()", "{a}.cosh()", "{a}.asinh()", "{a}.erfc()", "{a}.lgamma()",
)  # fmt: skip
BINARY = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}", "{a} + {b}", "{a} * {b}", "torch.add({a}, {b}, alpha=0.3)",
    "torch.sub({a}, {b}, alpha=2)", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})", "torch.fmax({a}, {b})",
    "torch.where({a} > {b}, {a}, {b})", "torch.where({b} >= 0, {a}, 0.5)", "{a}.masked_fill({b} < 0, -1.5)",
    "{a} * ({b} != 0)", "torch.atan2({a}, {b})", "torch.hypot({a}, {b})",
    "torch.lerp({a}, {b}.to({a}.dtype).expand_as({a}), 0.3)", "torch.addcmul({a}, {a}, {b}.to({a}.dtype), value=0.5)",
    "torch.addcdiv({a}, {a}, {b}.to({a}.dtype), value=-0.1)", "{a} ** {b}", "{a}.remainder({b})", "{a}.copysign({b})",
    "torch.logaddexp({a}, {b}.to({a}.dtype))", "{a} * {b} + {a}", "{a} + {b} * {a}", "({a} - {b}) * 0.5",
    "F.mse_loss({a}, {b}.to({a}.dtype).expand_as({a}), reduction='none')",
    "F.smooth_l1_loss({a}, {b}.to({a}.dtype).expand_as({a}), reduction='none')",
)  # fmt: skip
IN_PLACE = (
    "{a}.mul_(0.5)", "{a}.add_({b})", "{a}.mul_({b})", "{a}.sub_(0.25)", "{a}.div_({b})", "{a}.neg_()",
    "{a}.addcmul_({b}, {b})",
)  # fmt: skip
CASTS = ("{a}.float()", "{a}.double()", "{a}.bfloat16()", "{a}.half()", "{a}.float()")
REDUCTIONS = (
    "{a}.sum({d})", "{a}.mean({d}, keepdim=True)", "{a}.amax({d})", "{a}.sum()", "{a}.mean()", "{a}.softmax({d})",
    "{a}.log_softmax({d})", "{a}.sum({d}, keepdim=True)", "F.layer_norm({a}, {a}.shape[-1:])", "{a}.norm()",
)  # fmt: skip


def generate_chain(seed: int, number: int) -> Program:
    """Program ``number`` of ``seed``; always the same."""
    rng = random.Random(f"chain {seed}/{number}")
    inputs = _inputs(rng)
    space: dict[str, Any] = {name: getattr(toolbox, name) for name in toolbox.__all__}
    torch.manual_seed(0)
    pool = Pool(rng, {name: eval(maker, space)() for name, maker in inputs.items()}, tuple(inputs), [])
    is_kept = lambda made: made.numel() <= MOST_ELEMENTS
    body = [text for _ in range(rng.randint(6, 30)) if (text := pool.add(_written(pool), space, is_kept))]
    made = [name for name in pool.values if name not in inputs] or list(inputs)
    chosen = sorted({made[-1], *rng.sample(made, min(len(made), rng.randint(0, 2)))}, key=made.index)
    outputs = dict(zip("pqr", chosen))
    options = rng.choice(("", "", "", "", "dynamic=True"))
    return Program(inputs, options, tuple(body), outputs, tuple(_driver(pool, outputs)))


def _inputs(rng: random.Random) -> dict[str, str]:
    last = rng.choice(LARGE) if rng.random() < 0.2 else 0 if rng.random() < 0.04 else rng.choice(SIZES)
    first = [rng.choice((1, 2, 3, 5, 8)) for _ in range(rng.choice((0, 0, 1, 1, 2)))] if last < 2000 else [rng.choice((1, 2))]
    shape, dtype = [*first, last], rng.choice(("float32", "float32", "float32", "float64", "bfloat16"))
    inputs = {}
    for position, name in enumerate("abcde"[: rng.randint(2, 5)]):
        own = [1 if position and rng.random() < 0.2 else size for size in shape]
        own = own[rng.randint(0, len(own)) :] if position and rng.random() < 0.3 else own
        own_dtype = dtype if rng.random() < 0.85 else rng.choice(("float32", "float64", "bfloat16", "float16"))
        is_leaf = rng.random() < 0.7
        inputs[name] = f"odd({tuple(own)}, {own_dtype!r}, {rng.choice(LAYOUTS)!r}, {rng.choice(VALUES)!r}, {is_leaf})"
    return inputs


def _written(pool: Pool) -> str | None:
    rng = pool.rng
    a = pool.pick(lambda t: t.is_floating_point())
    b = a and pool.like(a)
    if not a or not b:
        return None
    chance = rng.random()
    if chance < 0.40:
        return rng.choice(UNARY).format(a=a)
    if chance < 0.82:
        return rng.choice(BINARY).format(a=a, b=b)
    if chance < 0.88:
        a = pool.pick(lambda t: t.is_floating_point(), fresh=True)
        b = a and pool.like(a)
        return a and b and "!" + rng.choice(IN_PLACE).format(a=a, b=b)
    if chance < 0.94:
        return rng.choice(CASTS).format(a=a)
    a = pool.floating(1)
    return a and rng.choice(REDUCTIONS).format(a=a, d=pool.dim(a))


def _driver(pool: Pool, outputs: dict[str, str]) -> list[Statement]:
    keys = ", ".join(f'"{key}"' for key, name in outputs.items() if pool.values[name].requires_grad)
    call: list[Statement] = [f"out = f({', '.join(pool.inputs)})", "events.append(out)"]
    call += [f"attempt(events, lambda: loss_of(out, {keys}).backward())"] * bool(keys)
    return [Block(f"with threads({pool.rng.choice((1, 1, 2))}):", (Block("for _ in range(3):", tuple(call)),))]
