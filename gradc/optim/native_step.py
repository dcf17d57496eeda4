"""Give an optimizer of torch's a step that runs natively: the same state, hooks, schedules and bits, in one pass over memory.

    compile_optimizer: optimizer -> the same object, whose ``step`` is native
    native_step_of:    the step of one of torch's classes -> the native one; None for another step

torch's own ``step`` goes on doing all but the arithmetic: closures, hooks, state made at the first step, errors. Only the
function that it calls for the arithmetic of one parameter group (``torch.optim.adam.adam`` and its kin) is another here. What
that cannot take, torch's own does, counted under ``gradc.counters["optim"]``. See Note [Optimizer steps].
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.errors import ConfigError
from gradc.journal import count, log
from gradc.optim import formulas, proof
from gradc.optim.formulas import Formula, Settings
from gradc.torch_private.modes import is_any_mode_active
from gradc.torch_private.optimizers import NAMES, Closure, Step, known_steps, step_of, step_with

Columns = dict[str, list[Any]]  # each operand's tensor for each parameter
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NUMBERS_OF_STATE = ("step", "mu_product")
_FLAGS = ("foreach", "fused", "capturable", "differentiable", "has_complex", "has_sparse_grad", "grad_scale", "found_inf")


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one functional optimizer of torch's is called, and which formula its settings ask for.

    ``columns`` names its positional arguments, ``numbers`` the settings that must be plain numbers. Where parameters of one
    group need different formulas, ``case`` tells them apart: of settings, columns and a parameter's place.
    """

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    formula: Callable[[Settings, bool], Formula]
    case: Callable[[Settings, Columns, int], bool] | None = None


def _has_no_buffer(settings: Settings, columns: Columns, place: int) -> bool:
    return settings["momentum"] != 0 and columns["momentum_buffer"][place] is None


def _is_rectified(settings: Settings, columns: Columns, place: int) -> bool:
    return formulas.rho_of_radam(settings, columns["step"][place].item() + 1)[1] > 5.0


RULES = {
    "adam": Rule(
        ("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"),
        ("lr", "beta1", "beta2", "weight_decay", "eps"),
        lambda s, _: formulas.adam(s["amsgrad"], s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]),
    ),
    "nadam": Rule(
        ("param", "grad", "exp_avg", "exp_avg_sq", "mu_product", "step"),
        ("lr", "beta1", "beta2", "weight_decay", "momentum_decay", "eps"),
        lambda s, _: formulas.nadam(s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]),
    ),
    "radam": Rule(
        ("param", "grad", "exp_avg", "exp_avg_sq", "step"),
        ("lr", "beta1", "beta2", "weight_decay", "eps"),
        lambda s, is_rectified: formulas.radam(
            is_rectified, s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]
        ),
        _is_rectified,
    ),
    "sgd": Rule(
        ("param", "grad", "momentum_buffer"),
        ("lr", "momentum", "dampening", "weight_decay"),
        lambda s, is_first: (
            formulas.first_sgd(s["nesterov"], s["maximize"], s["weight_decay"] != 0)
            if is_first
            else formulas.sgd(s["momentum"] != 0, s["nesterov"], s["maximize"], s["weight_decay"] != 0)
        ),
        _has_no_buffer,
    ),
    "rmsprop": Rule(
        ("param", "grad", "square_avg", "grad_avg", "momentum_buffer", "step"),
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        lambda s, _: formulas.rmsprop(s["momentum"] > 0, s["centered"], s["maximize"], s["weight_decay"] != 0),
    ),
    "adagrad": Rule(
        ("param", "grad", "state_sum", "step"),
        ("lr", "weight_decay", "lr_decay", "eps"),
        lambda s, _: formulas.adagrad(s["maximize"], s["weight_decay"] != 0),
    ),
    "adadelta": Rule(
        ("param", "grad", "square_avg", "acc_delta", "step"),
        ("lr", "rho", "eps", "weight_decay"),
        lambda s, _: formulas.adadelta(s["maximize"], s["weight_decay"] != 0),
    ),
    "adamax": Rule(
        ("param", "grad", "exp_avg", "exp_inf", "step"),
        ("lr", "beta1", "beta2", "eps", "weight_decay"),
        lambda s, _: formulas.adamax(s["maximize"], s["weight_decay"] != 0),
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
    step = native_step_of(step_of(optimizer), lambda reason: None)
    if step is None:
        raise ConfigError(
            f"gradc.compile: no native step for {type(optimizer).__name__}. "
            f"There is one for torch.optim's {', '.join(NAMES)}.\n"
            "  Leave this optimizer as it is: inside a compiled function its step runs eagerly."
        )
    if not getattr(optimizer.step, "is_native", False):
        step.is_native = True  # type: ignore[attr-defined]
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


def native_step_of(
    step: Step, refused: Callable[[str], None], around_closure: Callable[[Closure], Closure] = lambda closure: closure
) -> Step | None:
    """The native form of ``step``, a class's step without its hooks; it takes the optimizer as that does.

    ``refused`` is called with the reason where torch's own function has to do the arithmetic. A closure is called as what
    ``around_closure`` makes of it.
    """
    name = known_steps().get(step)
    if name is None:
        return None
    return step_with(step, name, functools.partial(update_group, RULES[name], refused), around_closure)


def update_group(
    rule: Rule, refused: Callable[[str], None], original: Callable[..., None], *columns: list[Any], **settings: Any
) -> None:
    """Update one parameter group, natively or, where that cannot be, by ``original``, torch's own function."""
    named: Columns = dict(zip(rule.columns, columns, strict=True))
    reason = _unusual_setting(rule, settings) or _unusual_state(named)
    if reason:
        return _by_torch(reason, refused, original, columns, settings)
    for places, case in _parts(rule, settings, named):
        part = {name: column[places] for name, column in named.items()}
        formula = rule.formula(settings, case)
        if reason := _why_not_native(rule, original, formula, part, settings):
            _by_torch(reason, refused, original, list(part.values()), settings)
        else:
            run(formula, part, settings)
            count("optim", "native steps")
        if formula.made:
            for made, column in zip(part.values(), columns, strict=True):
                column[places] = made


def _by_torch(
    reason: str, refused: Callable[[str], None], original: Callable[..., None], columns: Sequence[list[Any]], settings: Settings
) -> None:
    count("optim", f"by torch: {reason}")
    log("fallbacks", f"an optimizer's step is torch's own: {reason}")
    refused(reason)
    original(*columns, **settings)


def _parts(rule: Rule, settings: Settings, named: Columns) -> Iterable[tuple[slice, bool]]:
    """Where in the columns parameters of the same case stand, in their order."""
    places = range(len(named["param"]))
    if rule.case is None:
        return [(slice(None), False)]
    grouped = itertools.groupby(places, functools.partial(rule.case, settings, named))
    return [(slice(own[0], own[-1] + 1), case) for case, own in ((case, list(own)) for case, own in grouped)]


def run(formula: Formula, columns: Columns, settings: Settings) -> None:
    """Run ``formula`` for each parameter. Nothing is checked any more."""
    columns.update(_made(formula, columns))
    operands = [columns[name] for name in formula.operands]
    counts = native.extension.advance(columns["step"]) if "step" in columns else [0.0] * len(operands[0])
    keys: list[Any] = counts
    if "mu_product" in columns:
        keys = list(zip(counts, _advance_products(settings, columns["mu_product"], counts), strict=True))
    numbers = {key: _numbers(formula, settings, key) for key in set(keys)}
    _prepared(formula).run(operands, [numbers[key] for key in keys])
    columns.update({name: [tensor.data for tensor in columns[name]] for name in formula.made})  # as new, for their versions


def _made(formula: Formula, columns: Columns) -> Columns:
    return {name: [grad.detach().clone() for grad in columns["grad"]] for name in formula.made}


def _numbers(formula: Formula, settings: Settings, key: Any) -> list[float]:
    if isinstance(key, tuple):
        step, product = key
        return formula.numbers({**settings, "mu_product": product}, step)
    return formula.numbers(settings, key)


def _advance_products(settings: Settings, products: list[Any], counts: list[float]) -> list[float]:
    for product, step in zip(products, counts, strict=True):
        product *= formulas.momentum_of_nadam(settings, step)
    return [product.item() for product in products]


def _unusual_setting(rule: Rule, settings: Settings) -> str:
    """The first setting that only torch's own function serves, in words; "" if there is none."""
    for flag in _FLAGS:
        if settings.get(flag) is not None and settings[flag] is not False:
            return f"{flag} is asked for"
    return next((f"{name} that is no number" for name in rule.numbers if not isinstance(settings[name], (int, float))), "")


def _unusual_state(named: Columns) -> str:
    if not native.is_built():
        return "no extension"
    if is_any_mode_active():
        return "dispatch or function mode"
    if torch.is_grad_enabled():
        return "gradients of the step itself"
    is_plain = all(type(tensor) in _PLAIN for column in named.values() for tensor in column if tensor is not None)
    return "" if is_plain else "tensor subclass"


def _why_not_native(rule: Rule, original: Callable[..., None], formula: Formula, columns: Columns, settings: Settings) -> str:
    made = _made(formula, columns)
    operands = [(made if name in made else columns)[name] for name in formula.operands]
    reason = _prepared(formula).why_not(operands)
    for name in _NUMBERS_OF_STATE:
        reason = reason or native.extension.why_not_steps(columns.get(name, []))
    if reason:
        return str(reason)
    dtypes = {param.dtype for param in columns["param"]}
    is_proven = all(proof.is_proven(rule.columns, original, formula, run, settings, dtype) for dtype in dtypes)
    return "" if is_proven else "other bits than torch's on this machine"


@functools.cache
def _prepared(formula: Formula) -> Any:
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
