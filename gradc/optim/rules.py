"""How each of torch's optimizers calls the function that does its arithmetic, and which formula that stands for.

RULES: name of the function (torch.optim.adam.adam and its kin) -> Rule
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gradc.optim import formulas
from gradc.optim.formulas import Formula, Settings

Columns = dict[str, list[Any]]  # each operand's tensor for each parameter


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one functional optimizer of torch's is called, and which formula its settings ask for.

    ``columns`` names its positional arguments, ``numbers`` the settings that must be plain numbers. Where parameters of one
    group need different formulas, ``case`` tells them apart: of settings, columns and a parameter's place. ``is_gathered`` says
    that settings alone tell the formula of a group whose state is complete, and a step count its numbers. ``foreach`` is the
    formula where torch updates lists of tensors, if it is another one.
    """

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    formula: Callable[[Settings, bool], Formula]
    foreach: Callable[[Settings, bool], Formula] | None = None
    case: Callable[[Settings, Columns, int], bool] | None = None
    is_gathered: bool = True

    def formula_for(self, settings: Settings, case: bool, is_foreach: bool) -> Formula:
        return (self.foreach if is_foreach and self.foreach else self.formula)(settings, case)


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
        lambda s, _: formulas.foreach_nadam(s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]),
        is_gathered=False,
    ),
    "radam": Rule(
        ("param", "grad", "exp_avg", "exp_avg_sq", "step"),
        ("lr", "beta1", "beta2", "weight_decay", "eps"),
        lambda s, is_rectified: formulas.radam(
            is_rectified, s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]
        ),
        lambda s, is_rectified: formulas.foreach_radam(
            is_rectified, s["maximize"], s["weight_decay"] != 0, s["decoupled_weight_decay"]
        ),
        _is_rectified,
        is_gathered=False,
    ),
    "sgd": Rule(
        ("param", "grad", "momentum_buffer"),
        ("lr", "momentum", "dampening", "weight_decay"),
        lambda s, is_first: (
            formulas.first_sgd(s["nesterov"], s["maximize"], s["weight_decay"] != 0)
            if is_first
            else formulas.sgd(s["momentum"] != 0, s["nesterov"], s["maximize"], s["weight_decay"] != 0)
        ),
        lambda s, is_first: (
            formulas.foreach_first_sgd(s["nesterov"], s["maximize"], s["weight_decay"] != 0)
            if is_first
            else formulas.foreach_sgd(s["momentum"] != 0, s["nesterov"], s["maximize"], s["weight_decay"] != 0)
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
        lambda s, _: formulas.foreach_adagrad(s["maximize"], s["weight_decay"] != 0),
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
