"""Random differentiable programs.

    generate: (seed, number, table) -> Program

The body is written statement by statement while it runs eagerly, so that shapes and dtypes are known; what raises, or
grows beyond bounds, is thrown away. The driver calls the function one to three times, under various states, and
differentiates in various ways.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch

from tests.fuzz import toolbox
from tests.fuzz.program import Block, Program, Statement
from tests.fuzz.statements import TABLE, Pool, Table

MAX_MAGNITUDE = 1e3
SCOPES = (
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", torch.float16)',
    'torch.autocast("cpu", enabled=False)',
    "torch.no_grad()",
    "torch.enable_grad()",
)
STATES = ('torch.autocast("cpu", torch.bfloat16)', 'torch.autocast("cpu", torch.float16)', "packed_as_double()")


def generate(seed: int, number: int, table: Table = TABLE) -> Program:
    """Program ``number`` of ``seed``, of the statements of ``table``; always the same."""
    rng = random.Random(f"{seed}/{number}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            program = _attempt(rng, table)
            if program is not None:
                return program


def _attempt(rng: random.Random, table: Table) -> Program | None:
    inputs = _inputs(rng)
    space: dict[str, Any] = {name: getattr(toolbox, name) for name in toolbox.__all__}
    torch.manual_seed(0)
    values = {name: eval(maker, space)() for name, maker in inputs.items()}
    pool = Pool(rng, dict(values), tuple(inputs), table)
    body = _statements(pool, space, rng.randint(2, 12), depth=0)
    outputs = _outputs(pool)
    if not outputs:
        return None
    if not _is_differentiable(pool, outputs) and rng.random() < 0.9:
        return None
    options = rng.choice(("", "", "", "dynamic=True"))
    return Program(inputs, options, tuple(body), outputs, tuple(_driver(pool, outputs)))


def _inputs(rng: random.Random) -> dict[str, str]:
    n, m = rng.choice((1, 2, 3, 4)), rng.choice((2, 3, 4))
    shapes = [(n, m), (m, m), (m,), (n, m), (2, n, m), (n, 1), ()]
    inputs = {}
    for name in "abcd"[: rng.randint(1, 4)]:
        shape = ", ".join(str(size) for size in rng.choice(shapes))
        dtype = rng.choice(("", "", "", "", "dtype=torch.float64", "dtype=torch.bfloat16", "dtype=torch.float16"))
        arguments = ", ".join(part for part in (shape, dtype) if part)
        inputs[name] = f"{'constant' if rng.random() < 0.2 else 'leaf'}({arguments})"
    if rng.random() < 0.3:
        inputs["n"] = "indices(5, high=7)"
    return inputs


def _statements(pool: Pool, space: dict[str, Any], count: int, depth: int) -> list[Statement]:
    statements: list[Statement] = []
    for _ in range(count):
        if depth < 2 and pool.rng.random() < 0.1:
            head = pool.rng.choice(SCOPES)
            with eval(head, space):
                inner = _statements(pool, space, pool.rng.randint(1, 4), depth + 1)
            if inner:
                statements.append(Block(f"with {head}:", tuple(inner)))
        elif (statement := _statement(pool, space)) is not None:
            statements.append(statement)
    return statements


def _statement(pool: Pool, space: dict[str, Any]) -> str | None:
    weights, writers = zip(*pool.table)
    return pool.add(pool.rng.choices(writers, weights)[0](pool), space, _is_tame)


def _is_tame(value: torch.Tensor) -> bool:
    if value.numel() > 500:
        return False
    return not value.is_floating_point() or value.numel() == 0 or bool(value.detach().abs().amax() < MAX_MAGNITUDE)


def _outputs(pool: Pool) -> dict[str, str]:
    names = [name for name in pool.values if name not in pool.inputs]
    if not names:
        return {}
    chosen = pool.rng.sample(names, min(len(names), pool.rng.randint(1, 4)))
    if not any(pool.values[name].requires_grad for name in chosen):
        chosen += [name for name in names if pool.values[name].requires_grad][-1:]
    if pool.rng.random() < 0.1:
        chosen.append(pool.rng.choice(pool.inputs))
    return dict(zip("pqrstu", chosen))


def _is_differentiable(pool: Pool, outputs: dict[str, str]) -> bool:
    values = [pool.values[name] for name in outputs.values() if pool.values[name].requires_grad]
    if not values:
        return False
    try:
        sum((value.float().sum() for value in values), torch.zeros(())).backward(retain_graph=True)
    except Exception:
        return False
    return True


def _driver(pool: Pool, outputs: dict[str, str]) -> list[Statement]:
    rng = pool.rng
    statements: list[Statement] = []
    for number in range(rng.choice((1, 1, 1, 2, 2, 3))):
        statements += _call(pool, outputs, number)
    return statements


def _call(pool: Pool, outputs: dict[str, str], number: int) -> list[Statement]:
    rng = pool.rng
    arguments = ", ".join(_argument(pool, name, number) for name in pool.inputs)
    call = f"out = f({arguments})"
    statements: list[Statement] = [Block(f"with {rng.choice(STATES)}:", (call,)) if rng.random() < 0.25 else call]
    statements.append("events.append(out)")
    floating = [key for key, name in outputs.items() if pool.values[name].requires_grad]
    leaves = [name for name in pool.inputs if pool.values[name].requires_grad]
    if not floating or not leaves:
        return statements
    statements += _hooks(rng, floating, leaves)
    for _ in range(rng.choice((1, 1, 1, 2))):
        backward = _backward(rng, floating, leaves)
        statements.append(Block(f"with {rng.choice(STATES[:2])}:", (backward,)) if rng.random() < 0.2 else backward)
    return statements


def _argument(pool: Pool, name: str, number: int) -> str:
    """The input itself; sometimes a non-leaf, a transposed or, in a later call, a shorter one."""
    value, chance = pool.values[name], pool.rng.random()
    if chance < 0.1 and value.is_floating_point():
        return f"{name} * 1"
    if chance < 0.15 and value.dim() >= 2:
        return f"{name}.mT.contiguous().mT"
    if chance < 0.2 and number > 0 and value.dim() >= 1 and value.shape[0] > 1:
        return f"{name}[:-1]"
    return name


def _hooks(rng: random.Random, floating: list[str], leaves: list[str]) -> list[Statement]:
    key, name = rng.choice(floating), rng.choice(leaves)
    forms = (
        f'attempt(events, lambda: out["{key}"].register_hook(doubling) and None)',
        f'attempt(events, lambda: out["{key}"].register_hook(noting(events, "{key}")) and None)',
        f'attempt(events, lambda: out["{key}"].retain_grad())',
        f'attempt(events, lambda: {name}.register_hook(noting(events, "{name}")) and None)',
        f"attempt(events, lambda: {name}.register_hook(doubling) and None)",
        f'attempt(events, lambda: out["{key}"].register_hook(events.append) and None)',
        f"attempt(events, lambda: {name}.register_post_accumulate_grad_hook(changing(events)) and None)",
        f'attempt(events, lambda: out["{key}"].mul_(2) and None)',
    )
    chosen = [rng.choice(forms) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
    # In-place ops first: a view loses its hooks then, but one that the region uses itself is no view of gradc's.
    return sorted(chosen, key=lambda form: "mul_(2)" not in form)


def _backward(rng: random.Random, floating: list[str], leaves: list[str]) -> str:
    keys = ", ".join(f'"{key}"' for key in rng.sample(floating, rng.randint(1, len(floating))))
    one, name = rng.choice(floating), rng.choice(leaves)
    inputs = ", ".join(leaves)
    loss = f"loss_of(out, {keys})"
    slope = f"torch.autograd.grad({loss}, {name}, create_graph=True)[0]"
    forms = (
        f"{loss}.backward()",
        f"{loss}.backward()",
        f"{loss}.backward(retain_graph=True)",
        f"{loss}.backward(inputs=[{name}])",
        f"torch.autograd.grad({loss}, ({inputs},), allow_unused=True)",
        f'torch.autograd.grad({loss}, (out["{one}"], {name}), allow_unused=True)',
        f"torch.autograd.grad({slope}.float().square().sum(), ({inputs},), allow_unused=True)",
        f'out["{one}"].backward(torch.ones_like(out["{one}"]))',
    )
    return f"attempt(events, lambda: {rng.choice(forms)})"
