"""torch's database of optimizers and their options: each takes steps as an optimizer, and in a compiled training step.

optimizers: only -> Verdicts
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs, optim_db

import gradc
from tests.compilers import Compiler, find
from tests.oracle import compare
from tests.peers.verdict import Verdict

NUM_STEPS = 3
CPU = torch.device("cpu")


def optimizers(only: str) -> Iterator[Verdict]:
    """Every optimizer with every set of options that torch tests, its parameters and states after some steps."""
    for info in optim_db:
        for number, options in enumerate(_options(info)):
            name = f"{info.optim_cls.__name__} {number} {_shown(options)}"
            if only not in name:
                continue
            forms = [(_whole_step, "gradc"), (_whole_step, "gradc_captured")]
            if _has_native_step(info.optim_cls):
                forms.append((_step_alone, "gradc"))
            for form, way in forms:
                yield _judge(f"{name}, {form.__name__.strip('_')} under {way}", info, options, form, find(way))


def _has_native_step(optimizer: type) -> bool:
    """Of others gradc.compile says that it has none; in a compiled function they step as they are."""
    try:
        gradc.compile(optimizer([torch.ones(2, 2, requires_grad=True)]))
    except gradc.ConfigError:
        return False
    return True


def _options(info: Any) -> list[dict[str, Any]]:
    """Each once, with ``foreach`` and the like as torch's tests set them."""
    made = _get_optim_inputs_including_global_cliquey_kwargs(CPU, torch.float32, info, skip=("differentiable",))
    found = [one.kwargs for one in made if not any(isinstance(value, Tensor) for value in one.kwargs.values())]
    return [options for number, options in enumerate(found) if options not in found[:number]]


def _shown(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _judge(name: str, info: Any, options: dict[str, Any], form: Any, way: Compiler) -> Verdict:
    def step(compile: Any) -> Any:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        is_for_matrices = info.optim_cls.__name__ == "Muon"
        params = [parameter for parameter in model.parameters() if parameter.dim() == 2 or not is_for_matrices]
        optimizer = info.optim_cls(params, **options)
        form(compile, model, optimizer)
        return list(model.parameters()), [optimizer.state_dict()["state"], optimizer.state_dict()["param_groups"]]

    report = compare(step, compiler=way, compare_messages=True)
    uncompiled = () if report.eager.error is None else (f"eager raises {report.eager.error}",)
    return Verdict(name, report.differences, (*report.fallbacks, *uncompiled))


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def _step_alone(compile: Any, model: nn.Module, optimizer: Any) -> None:
    compiled, x = compile(optimizer), torch.randn(3, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, x)
        loss.backward()
        _sparsely(model, optimizer)
        return loss

    for _ in range(NUM_STEPS):
        if type(optimizer).__name__ == "LBFGS":
            compiled.step(closure)
        else:
            closure()
            compiled.step()


def _whole_step(compile: Any, model: nn.Module, optimizer: Any) -> None:
    def train(x: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = _loss(model, x)
            loss.backward()
            _sparsely(model, optimizer)
            return loss

        if type(optimizer).__name__ == "LBFGS":
            return optimizer.step(closure)
        loss = closure()
        optimizer.step()
        return loss

    run = compile(train)
    for x in itertools.repeat(torch.randn(3, 4), NUM_STEPS):
        run(x)


def _sparsely(model: nn.Module, optimizer: Any) -> None:
    if type(optimizer).__name__ == "SparseAdam":
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_sparse()
