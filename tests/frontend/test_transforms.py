"""Function transforms inside a region: its graph enters them by plain calls, and what fails between leaves them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import gradc
from gradc.torch_private.modes import transforms
from tests.oracle import check, leaf


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), nn.BatchNorm1d(6), layer)


def per_sample(net: nn.Module, x: Tensor) -> Any:
    slopes = grad(lambda weights, row: functional_call(net, weights, (row,)).square().mean())
    return vmap(slopes, in_dims=(None, 0))(dict(net.named_parameters()), x)


TRANSFORMED: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "per-sample gradients": per_sample,
    "grad of grad": lambda net, x: vmap(grad(lambda row: grad(lambda z: net(z).sin().sum())(row).square().sum()))(x),
    "hessian": lambda net, x: hessian(lambda row: net(row).sin().sum())(x[0]),
    "jacfwd": lambda net, x: vmap(jacfwd(net))(x),
    "jacrev": lambda net, x: vmap(jacrev(net))(x),
    "jvp": lambda net, x: jvp(net, (x,), (torch.ones_like(x),)),
    "vjp": lambda net, x: vjp(net, x)[1](torch.ones(5, 4)),
    "wrong shape in grad": lambda net, x: vmap(grad(lambda row: (net(row) @ torch.ones(3)).sum()))(x),
    "wrong shape in jvp": lambda net, x: jvp(lambda z: net(z) @ torch.ones(3), (x,), (torch.ones_like(x),)),
    "wrong index in grad": lambda net, x: vmap(grad(lambda row: net(row)[torch.tensor([7])].sum()))(x),
    "wrong index in jvp": lambda net, x: jvp(lambda z: net(z)[:, torch.tensor([7])], (x,), (torch.ones_like(x),)),
}


def total(found: Any) -> Tensor:
    return sum((part.square().sum() for part in torch.utils._pytree.tree_leaves(found)), torch.zeros(()))


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transform_inside(name: str) -> None:
    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        run, seen = compile(lambda net, x: total(TRANSFORMED[name](net, x))), []
        for _ in range(2):
            try:
                loss = run(net, x)
                loss.backward()
                seen.append(loss)
            except (RuntimeError, IndexError) as error:
                seen.append(type(error))
            assert transforms() == (0, -1, True, False, None)
            seen.append(jvp(net, (x,), (x,)))
        return seen

    check(step, net, leaf(5, 6, requires_grad=False), allow_fallback=True)


def test_reason() -> None:
    gradc.reset()
    gradc.compile(per_sample)(net(), torch.randn(5, 6))
    assert dict(gradc.counters["fallbacks"]) == {"function transform": 1}


@pytest.mark.parametrize("make", [net, tied], ids=["plain", "tied"])
def test_functional_call_is_compiled(make: Callable[[], nn.Module]) -> None:
    """It looks for tensors in dictionaries, and goes through sets of names."""

    def step(compile: Any, module: nn.Module, x: Tensor) -> Any:
        parameters = {name: parameter * 2 for name, parameter in module.named_parameters()}
        return compile(lambda x: torch.func.functional_call(module, parameters, (x,)))(x)

    check(step, make, leaf(5, 6))
    assert not gradc.counters["uncompiled"]
