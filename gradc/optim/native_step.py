"""Give an optimizer of torch's a step that runs natively: the same state, hooks, schedules and bits, in one pass over memory.

    compile_optimizer: optimizer -> the same object, whose ``step`` and ``zero_grad`` are native
    native_step_of:    the step of one of torch's classes -> the native one; None for another step

torch's own ``step`` goes on doing all but the arithmetic: closures, hooks, state made at the first step, errors. Only the
function that it calls for the arithmetic of one parameter group (``torch.optim.adam.adam`` and its kin) is another here. What
that cannot take, torch's own does, counted under ``gradc.counters["optim"]``. See Note [Optimizer steps].
"""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradc import native
from gradc.errors import ConfigError
from gradc.journal import count, log
from gradc.optim import formulas, proof
from gradc.optim.arithmetic import written_down
from gradc.optim.cards import Card, card_of, update_for, why_no_kernel
from gradc.optim.formulas import Formula, Settings
from gradc.optim.learned_groups import LearnedGroups
from gradc.optim.rules import RULES, Columns, Rule
from gradc.optim.zero_grad import zero_grad_unless_replaced
from gradc.torch_private.modes import is_any_mode_active
from gradc.torch_private.optimizers import (
    NAMES,
    Closure,
    Group,
    Step,
    asks_whether_captured,
    has_step_of_its_class,
    has_zero_grad_of_torch,
    is_seen_by_schedules,
    known_steps,
    may_have_methods_of_its_own,
    quick_of,
    seen_by_schedules,
    step_of,
    step_with,
)
from gradc.torch_private.replaced_kernels import are_kernels_replaced

_NUMBERS_OF_STATE = ("step", "mu_product")
_NO_NUMBERS = (ArithmeticError, TypeError, ValueError)  # what Python raises where settings give a formula no real numbers
_ODD_SETTINGS = "settings that give no numbers"
_FLAGS = ("foreach", "fused", "capturable", "differentiable", "has_complex", "has_sparse_grad", "grad_scale", "found_inf")


def compile_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Let ``optimizer.step`` run natively, where it is one of those of torch's that RULES knows, and ``zero_grad`` with it.

    Its parameters, state and ``state_dict`` are as torch's own step leaves them, bit for bit. Compiling twice is
    compiling once.

    Returns:
        The optimizer itself.

    Raises:
        ConfigError: for an optimizer that is none of these.
    """
    methods = native_methods(optimizer)
    if methods is None:
        raise ConfigError(
            f"gradc.compile: no native step for {type(optimizer).__name__}. "
            f"There is one for torch.optim's {', '.join(NAMES)}.\n"
            "  Leave this optimizer as it is: inside a compiled function its step runs eagerly."
        )
    give(optimizer, methods)
    return optimizer


def give(optimizer: torch.optim.Optimizer, methods: dict[str, types.FunctionType]) -> None:
    """Put ``methods`` before those of the optimizer's class."""
    for name, method in methods.items():
        setattr(optimizer, name, types.MethodType(method, optimizer))


def is_native(optimizer: torch.optim.Optimizer) -> bool:
    """True if its step is native wherever it is called."""
    return getattr(optimizer.step, "is_native", False)


def may_be_native(optimizer: torch.optim.Optimizer) -> bool:
    """True for one that nobody asked to compile, and whose step may be native all the same: it is torch's own, and not yet."""
    is_known = known_steps().get(step_of(optimizer)) is not None
    return is_known and not is_native(optimizer) and has_step_of_its_class(optimizer) and may_have_methods_of_its_own(optimizer)


def native_methods(optimizer: torch.optim.Optimizer) -> dict[str, types.FunctionType] | None:
    """What takes the place of methods that are torch's own, by their names; None where no step of it is known."""
    step = native_step_of(step_of(optimizer), lambda reason: None)
    if step is None:
        return None
    methods: dict[str, Any] = {}
    if not is_native(optimizer):
        step = _quickly(step, type(optimizer).step)
        step.is_native = True  # type: ignore[attr-defined]
        methods["step"] = seen_by_schedules(step) if is_seen_by_schedules(optimizer) else step
        if has_zero_grad_of_torch(optimizer) and "zero_grad" not in vars(optimizer):
            methods["zero_grad"] = zero_grad_unless_replaced
    return methods


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
    rule, learned = RULES[name], LearnedGroups(asks_whether_captured(step))
    arithmetic = functools.partial(update_group, rule, learned, refused)
    update_first = functools.partial(_update_first, learned) if rule.is_gathered and native.is_built() else None
    return step_with(step, name, arithmetic, around_closure, _is_observed, update_first, learned.quick)


def _quickly(step: Step, of_class: Step) -> Step:
    """``step``, for which what is quick comes first; it gives way to what replaces ``of_class``, its class's, later."""
    quick = quick_of(step)

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self).step is not of_class:
            return type(self).step(self, *args, **kwargs)
        return None if quick and quick.run((self, *args), kwargs) else step(self, *args, **kwargs)

    return call


def _update_first(learned: LearnedGroups, optimizer: torch.optim.Optimizer) -> int:
    return 0 if is_any_mode_active() or are_kernels_replaced() else learned.update(optimizer)


def _is_observed() -> bool:
    """True while a profiler or its like hears of every op, or a mode sees it: torch names the step for them."""
    return not native.is_built() or native.extension.is_observed() or is_any_mode_active()


def update_group(
    rule: Rule,
    learned: LearnedGroups,
    refused: Callable[[str], None],
    original: Callable[..., None],
    *columns: list[Any],
    **settings: Any,
) -> None:
    """Update one parameter group, natively or, where that cannot be, by ``original``, torch's own function.

    A group that torch has not read is updated without: see ``Group``.
    """
    if columns[0] and isinstance(group := columns[0][0], Group):
        columns[0].clear()
        step = _step_of_group(rule, original, group, settings)
        if step is not None and step.step(group.settings, group.state):
            count("optim", "native steps")
            return learned.learn(group, settings, step)
        settings |= group.read()
    named: Columns = dict(zip(rule.columns, columns, strict=True))
    card = _card_unseen(named["param"])
    reason = _unusual_setting(rule, settings, card) or _unusual_surroundings() or _unusual_tensors(named)
    parts, reason = ([], reason) if reason else _parts(rule, settings, named)
    reason = reason or _uneven_parts(rule, settings, card, parts)
    if reason:
        return _by_torch(reason, refused, original, columns, settings)
    for places, case in parts:
        part = {name: column[places] for name, column in named.items()}
        formula = rule.formula_for(settings, case, card is not None)
        if reason := _run_unless(rule, original, formula, part, settings):
            _by_torch(reason, refused, original, list(part.values()), settings)
        else:
            count("optim", "native steps")
        if formula.made:
            for made, column in zip(part.values(), columns, strict=True):
                column[places] = made


def _step_of_group(rule: Rule, original: Callable[..., None], group: Group, settings: Settings) -> Any:
    """The native step of a group as it lies in its optimizer; None if anything about its settings is unusual."""
    card = _card_unseen(group.params)
    if _unusual_setting(rule, settings, card) or _unusual_surroundings():
        return None
    formula = rule.formula_for(settings, False, card is not None)
    if card and why_no_kernel(formula, card, group.params):
        return None
    numbers = functools.partial(_numbers_if_real, formula, settings)
    arithmetic = written_down(lambda lr, step: formula.numbers({**settings, "lr": lr}, step)) or ()
    is_proven = functools.partial(_is_proven, rule, original, formula, settings, card)
    keys = _keys_of_state(rule, formula)
    return native.extension.GroupStep(group.settings, _update_of(formula, group.params), keys, numbers, arithmetic, is_proven)


def _keys_of_state(rule: Rule, formula: Formula) -> list[str]:
    operands = ["sum" if name == "state_sum" else name for name in formula.operands[2:]]
    return [*operands, "step"] if "step" in rule.columns else operands


def _by_torch(
    reason: str, refused: Callable[[str], None], original: Callable[..., None], columns: Sequence[list[Any]], settings: Settings
) -> None:
    count("optim", f"by torch: {reason}")
    log("fallbacks", f"an optimizer's step is torch's own: {reason}")
    refused(reason)
    original(*columns, **settings)


def _parts(rule: Rule, settings: Settings, named: Columns) -> tuple[list[tuple[slice, bool]], str]:
    """Where in the columns parameters of the same case stand, in their order; or why that cannot be told."""
    places = range(len(named["param"]))
    if rule.case is None or not places:
        return [(slice(None), False)], ""
    try:
        grouped = itertools.groupby(places, functools.partial(rule.case, settings, named))
        return [(slice(own[0], own[-1] + 1), case) for case, own in ((case, list(own)) for case, own in grouped)], ""
    except _NO_NUMBERS:
        return [], _ODD_SETTINGS


def _card_unseen(params: Sequence[Any]) -> Card | None:
    """None also where a mode would see that a parameter is asked where it lies: torch's own function serves there."""
    return None if is_any_mode_active() else card_of(params)


def _uneven_parts(rule: Rule, settings: Settings, card: Card | None, parts: list[tuple[slice, bool]]) -> str:
    """torch makes state that only some parameters have one by one: other calls than those over lists."""
    is_making = card and len(parts) > 1 and any(rule.formula_for(settings, case, True).made for _, case in parts)
    return "state that only some parameters have" if is_making else ""


def _run_unless(rule: Rule, original: Callable[..., None], formula: Formula, columns: Columns, settings: Settings) -> str:
    """Run ``formula`` for each parameter and return ""; or return why not, and nothing has happened."""
    try:
        if reason := _why_not_native(rule, original, formula, columns, settings):
            return reason
        run(formula, columns, settings)
    except _NO_NUMBERS:
        return _ODD_SETTINGS
    return ""


def run(formula: Formula, columns: Columns, settings: Settings) -> None:
    """Run ``formula`` for each parameter. The tensors are not checked any more.

    All numbers are known before the first tensor is written, and from there on Python does nothing: neither an error nor Ctrl-C
    leaves a group half updated.

    Raises:
        one of _NO_NUMBERS: and nothing has happened.
    """
    columns.update(_made(formula, columns))
    operands = [columns[name] for name in formula.operands]
    scalars = columns.get("step", [])
    values = counts = native.extension.next_counts(scalars)
    keys: list[Any] = counts or [0.0] * len(operands[0])
    if "mu_product" in columns:
        products = _next_products(settings, columns["mu_product"], counts)
        keys, scalars, values = list(zip(counts, products, strict=True)), scalars + columns["mu_product"], counts + products
    numbers = {key: _numbers(formula, settings, key) for key in set(keys)}
    is_beyond = any(map(_is_beyond, itertools.chain(*numbers.values())))
    if is_beyond and any(param.dtype != torch.float64 for param in columns["param"]):
        raise OverflowError("a number that is none in float32")
    places = {key: place for place, key in enumerate(numbers)}
    _update_of(formula, columns["param"]).run(operands, list(numbers.values()), [places[key] for key in keys], scalars, values)
    columns.update({name: [tensor.data for tensor in columns[name]] for name in formula.made})  # as new, for their versions


def _is_beyond(number: float) -> bool:
    """True for a number that torch refuses to convert to float32."""
    return math.isfinite(number) and abs(number) > torch.finfo(torch.float32).max


def _made(formula: Formula, columns: Columns) -> Columns:
    return {name: [grad.detach().clone() for grad in columns["grad"]] for name in formula.made}


def _numbers(formula: Formula, settings: Settings, key: Any) -> list[float]:
    if isinstance(key, tuple):
        step, product = key
        return _numbers(formula, {**settings, "mu_product": product}, step)
    return [float(number) for number in formula.numbers(settings, key)]  # a power of a negative number is a complex one


def _numbers_if_real(formula: Formula, settings: Settings, lr: float, step: float) -> list[float] | None:
    try:
        return _numbers(formula, {**settings, "lr": lr}, step)
    except _NO_NUMBERS:
        return None


def _next_products(settings: Settings, products: list[Any], counts: list[float]) -> list[float]:
    pairs = zip(products, counts, strict=True)
    return [(product * formulas.momentum_of_nadam(settings, step)).item() for product, step in pairs]


def _unusual_setting(rule: Rule, settings: Settings, card: Card | None) -> str:
    """The first setting that only torch's own function serves, in words; "" if there is none.

    On a card "foreach" is what torch does by itself, and what it has to be told is to do otherwise.
    """
    if card and settings.get("foreach") is False:
        return "foreach=False is asked for"
    for flag in _FLAGS[1:] if card else _FLAGS:
        if settings.get(flag) is not None and settings[flag] is not False:
            return f"{flag} is asked for"
    return next((f"{name} that is no number" for name in rule.numbers if not isinstance(settings[name], (int, float))), "")


def _unusual_surroundings() -> str:
    if not native.is_built():
        return "no extension"
    if is_any_mode_active():
        return "dispatch or function mode"
    if are_kernels_replaced():
        return "replaced kernels"
    if torch.is_grad_enabled():
        return "gradients of the step itself"
    return ""


def _unusual_tensors(named: Columns) -> str:
    if native.extension.has_subclass(list(named.values())):
        return "tensor subclass"
    return _unusual_scalars(named)


def _why_not_native(rule: Rule, original: Callable[..., None], formula: Formula, columns: Columns, settings: Settings) -> str:
    made = _made(formula, columns)
    operands = [(made if name in made else columns)[name] for name in formula.operands]
    params, dtypes = columns["param"], {param.dtype for param in columns["param"]}
    card = card_of(params)
    if reason := why_no_kernel(formula, card, params) if card else "":
        return reason
    if reason := _update_of(formula, params).why_not(operands):
        return str(reason)
    are_proven = all(_is_proven(rule, original, formula, settings, card, dtype) for dtype in dtypes)
    return "" if are_proven else "other bits than torch's on this machine"


def _unusual_scalars(columns: Columns) -> str:
    for name in _NUMBERS_OF_STATE:
        scalars = columns.get(name, [])
        if not all(isinstance(scalar, torch.Tensor) for scalar in scalars):
            return "step count that is no tensor"
        if reason := native.extension.why_not_scalars(scalars):
            return str(reason)
    return ""


def _is_proven(
    rule: Rule, original: Callable[..., None], formula: Formula, settings: Settings, card: Card | None, dtype: torch.dtype
) -> bool:
    return proof.is_proven(rule.columns, original, formula, run, settings, card, dtype)


def _update_of(formula: Formula, params: Sequence[Any]) -> Any:
    """The native form of ``formula`` for these parameters, where they lie."""
    card = card_of(params)
    return update_for(formula, card, params) if card else prepared(formula)


@functools.cache
def prepared(formula: Formula) -> Any:
    """The native form of ``formula`` on the host."""
    position = {name: number for number, name in enumerate((*formula.operands, *formula.scratch))}
    operations, num_numbers = [], 0
    for call in formula.calls:
        number = -1 if call.number is None else num_numbers
        num_numbers += call.number is not None
        values = dict(zip("abc", (position[name] for name in call.values)))
        op = getattr(native.extension.UpdateOp, call.op)
        operations.append(native.extension.Operation(op, position[call.out], **values, number=number))
    return native.extension.BlockUpdate(len(formula.operands), len(formula.scratch), operations)
