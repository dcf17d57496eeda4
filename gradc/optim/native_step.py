"""Give an optimizer of torch's a step that runs natively: the same state, hooks, schedules and bits, in one pass over memory.

    compile_optimizer: optimizer -> the same object, whose ``step`` is native

torch's own ``step`` goes on doing all but the arithmetic: closures, hooks, state made at the first step, errors. Only the
function that it calls for the arithmetic of one parameter group (``torch.optim.adam.adam`` and its kin) is another here. What
that cannot take, torch's own does, counted under ``gradc.counters["optim"]``. See Note [Optimizer steps].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.errors import ConfigError
from gradc.journal import count, log
from gradc.optim import formulas, proof
from gradc.optim.formulas import Formula, Settings
from gradc.torch_private.modes import is_any_mode_active
from gradc.torch_private.optimizers import NAMES, functional_of, step_of

Column = Sequence[Any]  # one operand: its tensor for each parameter
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FLAGS = ("foreach", "fused", "capturable", "differentiable", "has_complex", "has_sparse_grad", "grad_scale", "found_inf")


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one functional optimizer of torch's is called, and which formula its settings ask for.

    ``columns`` names its positional arguments, ``numbers`` the settings that must be plain numbers.
    """

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    formula: Callable[[Settings], Formula]


RULES = {
    "adam": Rule(
        ("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"),
        ("lr", "beta1", "beta2", "weight_decay", "eps"),
        lambda s: formulas.adam(s["amsgrad"], s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]),
    ),
    "sgd": Rule(
        ("param", "grad", "momentum_buffer"),
        ("lr", "momentum", "dampening", "weight_decay"),
        lambda s: formulas.sgd(s["momentum"] != 0, s["nesterov"], s["maximize"], s["weight_decay"] != 0),
    ),
    "rmsprop": Rule(
        ("param", "grad", "square_avg", "grad_avg", "momentum_buffer", "step"),
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        lambda s: formulas.rmsprop(s["momentum"] > 0, s["centered"], s["maximize"], s["weight_decay"] != 0),
    ),
    "adagrad": Rule(
        ("param", "grad", "state_sum", "step"),
        ("lr", "weight_decay", "lr_decay", "eps"),
        lambda s: formulas.adagrad(s["maximize"], s["weight_decay"] != 0),
    ),
    "adadelta": Rule(
        ("param", "grad", "square_avg", "acc_delta", "step"),
        ("lr", "rho", "eps", "weight_decay"),
        lambda s: formulas.adadelta(s["maximize"], s["weight_decay"] != 0),
    ),
    "adamax": Rule(
        ("param", "grad", "exp_avg", "exp_inf", "step"),
        ("lr", "beta1", "beta2", "eps", "weight_decay"),
        lambda s: formulas.adamax(s["maximize"], s["weight_decay"] != 0),
    ),
}


def compile_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let ``optimizer.step`` run natively, where it is one of those of torch's that RULES knows.

    Its parameters, state and ``state_dict`` are as torch's own step leaves them, bit for bit. Compiling twice is
    compiling once.

    Returns:
        The optimizer itself.

    Raises:
        ConfigError: for an optimizer that is none of these.
    """
    name = functional_of(optimizer)
    if not name:
        raise ConfigError(
            f"gradc.compile: no native step for {type(optimizer).__name__}. "
            f"There is one for torch.optim's {', '.join(NAMES)}.\n"
            "  Leave this optimizer as it is: inside a compiled function its step runs eagerly."
        )
    if not getattr(optimizer.step, "is_native", False):
        optimizer.step = step_of(optimizer, functools.partial(update_group, RULES[name]))  # type: ignore[method-assign]
    return optimizer


def update_group(rule: Rule, original: Callable[..., None], *columns: Column, **settings: Any) -> None:
    """Update one parameter group, natively or, where that cannot be, by ``original``, torch's own function."""
    named = dict(zip(rule.columns, columns, strict=True))
    reason = _unusual_setting(rule, settings) or _unusual_state(named)
    if not reason:
        formula = rule.formula(settings)
        operands = [named[name] for name in formula.operands]
        reason = _why_not_native(rule, original, formula, operands, named.get("step"), settings)
    if reason:
        count("optim", f"by torch: {reason}")
        log("fallbacks", f"an optimizer's step is torch's own: {reason}")
        return original(*columns, **settings)
    run(formula, operands, named.get("step"), settings)
    count("optim", "native steps")


def run(formula: Formula, operands: list[Column], steps: Column | None, settings: Settings) -> None:
    """Run ``formula`` for each parameter. Nothing is checked any more."""
    counts = [0.0] * len(operands[0]) if steps is None else native.extension.advance(steps)
    numbers = {step: formula.numbers(settings, step) for step in set(counts)}
    _prepared(formula).run(operands, [numbers[step] for step in counts])


def _unusual_setting(rule: Rule, settings: Settings) -> str:
    """The first setting that only torch's own function serves, in words; "" if there is none."""
    for flag in _FLAGS:
        if settings.get(flag) is not None and settings[flag] is not False:
            return f"{flag} is asked for"
    return next((f"{name} that is no number" for name in rule.numbers if not isinstance(settings[name], (int, float))), "")


def _unusual_state(named: dict[str, Column]) -> str:
    if not native.is_built():
        return "no extension"
    if is_any_mode_active():
        return "dispatch or function mode"
    if torch.is_grad_enabled():
        return "gradients of the step itself"
    if any(buffer is None for buffer in named.get("momentum_buffer", ())):
        return "first step, which makes the momentum buffers"
    is_plain = all(type(tensor) in _PLAIN for column in named.values() for tensor in column if tensor is not None)
    return "" if is_plain else "tensor subclass"


def _why_not_native(
    rule: Rule,
    original: Callable[..., None],
    formula: Formula,
    operands: list[Column],
    steps: Column | None,
    settings: Settings,
) -> str:
    reason = _prepared(formula).why_not(operands) or ("" if steps is None else native.extension.why_not_steps(steps))
    if reason:
        return reason
    dtypes = {param.dtype for param in operands[0]}
    is_proven = all(proof.is_proven(rule.columns, original, formula, run, settings, dtype) for dtype in dtypes)
    return "" if is_proven else "other bits than torch's on this machine"


@functools.cache
def _prepared(formula: Formula) -> native.extension.Update:
    """The native form of ``formula``."""
    position = {name: number for number, name in enumerate((*formula.operands, *formula.scratch))}
    operations, num_numbers = [], 0
    for call in formula.calls:
        number = -1 if call.number is None else num_numbers
        num_numbers += call.number is not None
        values = dict(zip("abc", (position[name] for name in call.values)))
        op = getattr(native.extension.UpdateOp, call.op)
        operations.append(native.extension.Operation(op, position[call.out], **values, number=number))
    return native.extension.Update(len(formula.operands), len(formula.scratch), operations)
