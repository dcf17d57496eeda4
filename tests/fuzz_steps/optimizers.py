"""Random optimizers and schedules, as text: a function ``make`` that makes one over ``MODEL``, and what changes it.

write_optimizer: rng -> Optimizer
"""

from __future__ import annotations

import dataclasses
import random

_COMMON = {"weight_decay": ("0.1", "0.01"), "maximize": ("True",)}
_ADAM = {**_COMMON, "betas": ("(0.3, 0.45)", "(0.8, 0.9)"), "eps": ("1e-3",)}
_BY_TORCH = {"foreach": ("True", "False")}
# name -> option -> its values beside the default
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "SGD": {**_COMMON, "momentum": ("0.9", "0.5"), "dampening": ("0.2",), "nesterov": ("True",), **_BY_TORCH},
    "Adam": {**_ADAM, "amsgrad": ("True",), "decoupled_weight_decay": ("True",), **_BY_TORCH, "fused": ("True",)},
    "AdamW": {**_ADAM, "amsgrad": ("True",), "foreach": ("True",)},
    "NAdam": {**_ADAM, "momentum_decay": ("0.1",), "decoupled_weight_decay": ("True",)},
    "RAdam": {**_ADAM, "decoupled_weight_decay": ("True",)},
    "Adamax": _ADAM,
    "RMSprop": {**_COMMON, "alpha": ("0.5",), "momentum": ("0.7",), "centered": ("True",), "eps": ("1e-3",)},
    "Adagrad": {**_COMMON, "lr_decay": ("0.1",), "initial_accumulator_value": ("0.5",)},
    "Adadelta": {**_COMMON, "rho": ("0.5",)},
    "ASGD": {**_COMMON, "alpha": ("0.5",)},
    "Rprop": {"etas": ("(0.4, 1.3)",), "maximize": ("True",)},
    "Adafactor": {**_COMMON, "d": ("2.0",)},
    "LBFGS": {"max_iter": ("2",), "history_size": ("3",), "line_search_fn": ('"strong_wolfe"',)},
}
_NATIVE = ("SGD", "SGD", "Adam", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
_OTHERS = ("ASGD", "Rprop", "Adafactor", "LBFGS")
_PARAMS = (
    "trained",
    "trained",
    "[p for name, p in MODEL.named_parameters() if name != 'extra']",
    "[p for p in trained if p.requires_grad]",
    "MODEL.named_parameters()",
    '[{"params": trained[:1], "lr": 0.3}, {"params": trained[1:]}]',
    '[{"params": trained[1:], "weight_decay": 0.2}, {"params": trained[:1], "weight_decay": 0.0}]',
)
_SCHEDULES = (
    "lr_scheduler.CosineAnnealingLR(OPTIMIZER, 5)",
    "lr_scheduler.StepLR(OPTIMIZER, 2)",
    "lr_scheduler.OneCycleLR(OPTIMIZER, 0.1, total_steps=20, cycle_momentum=False)",
    "lr_scheduler.LambdaLR(OPTIMIZER, lambda number: 0.9**number)",
    "lr_scheduler.ExponentialLR(OPTIMIZER, 0.9)",
    "lr_scheduler.SequentialLR(OPTIMIZER, [lr_scheduler.LinearLR(OPTIMIZER), lr_scheduler.ConstantLR(OPTIMIZER)], [2])",
    "lr_scheduler.CosineAnnealingWarmRestarts(OPTIMIZER, 3)",
)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """``text``: ``make``, ``OPTIMIZER`` and, perhaps, ``SCHEDULE``. ``options``: those there are in its parameter groups."""

    name: str
    text: str
    options: tuple[str, ...]
    has_schedule: bool

    @property
    def is_native(self) -> bool:
        return self.name in _NATIVE


def write_optimizer(rng: random.Random) -> Optimizer:
    name = rng.choice(_NATIVE) if rng.random() < 0.88 else rng.choice(_OTHERS)
    options = OPTIONS[name]
    given = {option: rng.choice(options[option]) for option in rng.sample(list(options), rng.choice((0, 1, 1, 2)))}
    if given.get("nesterov"):
        given |= {"momentum": "0.9"}
        given.pop("dampening", None)
    if "fused" in given:
        given.pop("foreach", None)
    params = "trained" if name == "LBFGS" else rng.choice(_PARAMS)
    if "weight_decay" in params and "weight_decay" not in options:
        params = "trained"
    lr = rng.choice(("0.1", "0.01", "1", "0.05", *["torch.tensor(0.1)"] * (rng.random() < 0.1)))
    if "tensor" in lr and name != "SGD":
        given.pop("foreach", None)  # torch refuses it
    settings = "".join(f", {option}={value}" for option, value in given.items())
    lines = [
        "def make():",
        '    trained = [p for name, p in MODEL.named_parameters() if name != "extra"]',
        f"    return torch.optim.{name}({params}, lr={lr}{settings})",
        "",
        "",
        "OPTIMIZER = make()",
    ]
    has_schedule = rng.random() < 0.35 and "OneCycle" not in lr and "tensor" not in lr
    if has_schedule:
        lines.append(f"SCHEDULE = {rng.choice(_SCHEDULES)}")
    return Optimizer(name, "\n".join(lines), tuple(options), has_schedule)


def change_of_options(rng: random.Random, optimizer: Optimizer) -> str:
    """An edit of a parameter group."""
    option = rng.choice(("lr", "lr", *(name for name in optimizer.options if name not in ("foreach", "fused", "amsgrad"))))
    if option == "lr":
        return f'OPTIMIZER.param_groups[0]["lr"] {rng.choice(("*= 0.5", "= 0.03", "= 0"))}'
    value = rng.choice((*OPTIONS[optimizer.name][option], "False" if option in ("maximize", "nesterov", "centered") else ""))
    return f'OPTIMIZER.param_groups[-1]["{option}"] = {value or OPTIONS[optimizer.name][option][0]}'
