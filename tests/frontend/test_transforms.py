"""Function transforms inside a region: its graph enters them by plain calls, and what fails between leaves them all."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn import functional

from gradc.torch_private.modes import transforms
from tests.oracle import check, constant, leaf


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), nn.BatchNorm1d(6), layer)


def per_sample(net: nn.Module, x: Tensor) -> Any:
    slopes = grad(lambda weights, row: functional_call(net, weights, (row,)).square().mean())
    return vmap(slopes, in_dims=(None, 0))(dict(net.named_parameters()), x)


def stepped(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The parameters after one step of gradient descent, which is differentiated."""
    weights = dict(net.named_parameters())
    slopes = grad(lambda weights: functional_call(net, weights, (x,)).square().mean())(weights)
    return {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}


def ensemble(nets: list[nn.Module], x: Tensor) -> Tensor:
    weights, buffers = stack_module_state(nets)
    found = vmap(lambda weights, buffers: functional_call(nets[0], (weights, buffers), (x,)))(weights, buffers)
    assert isinstance(found, Tensor)
    return found


TRANSFORMED: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "per-sample gradients": per_sample,
    "grad of grad": lambda net, x: vmap(grad(lambda row: grad(lambda z: net(z).sin().sum())(row).square().sum()))(x),
    "hessian": lambda net, x: hessian(lambda row: net(row).sin().sum())(x[0]),
    "jacfwd": lambda net, x: vmap(jacfwd(net))(x),
    "jacrev": lambda net, x: vmap(jacrev(net))(x),
    "jvp": lambda net, x: jvp(net, (x,), (torch.ones_like(x),)),
    "vjp": lambda net, x: vjp(net, x)[1](torch.ones(5, 4)),
    "a step inside": lambda net, x: functional_call(net, stepped(net, x), (x,)),
    "ensemble": lambda net, x: ensemble([net, copy.deepcopy(net)], x),
    "dropout": lambda net, x: vmap(grad(lambda row: functional.dropout(net(row)).sum()), randomness="different")(x),
    "Laplacian": lambda net, x: vmap(lambda row: jacrev(grad(lambda z: net(z).sin().sum()))(row).diagonal().sum())(x),
    "forward over reverse": lambda net, x: vmap(lambda row: jacfwd(jacrev(lambda z: net(z)[0]))(row))(x),
    "product with the hessian": lambda net, x: jvp(grad(lambda x: net(x).sin().sum()), (x,), (x.cos(),))[1],
    "wrong shape in grad": lambda net, x: vmap(grad(lambda row: (net(row) @ torch.ones(3)).sum()))(x),
    "wrong shape in jvp": lambda net, x: jvp(lambda z: net(z) @ torch.ones(3), (x,), (torch.ones_like(x),)),
    "wrong index in grad": lambda net, x: vmap(grad(lambda row: net(row)[torch.tensor([7])].sum()))(x),
    "wrong index in jvp": lambda net, x: jvp(lambda z: net(z)[:, torch.tensor([7])], (x,), (torch.ones_like(x),)),
}


COMPILED = ["per-sample gradients", "grad of grad", "jacrev", "vjp", "a step inside", "ensemble", "dropout", "Laplacian"]
# Backward reads zeros that take no memory: forward mode's derivatives of what does not change.
IN_EAGER = ["hessian", "jacfwd", "jvp", "forward over reverse", "product with the hessian"]


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

    found = check(step, net, constant(5, 6), allow_fallback=True).fallbacks
    if name in COMPILED or name in IN_EAGER:
        assert found == ({} if name in COMPILED else {"function transform": 2})


def test_gradients_of_a_transform_under_autocast_are_for_eager() -> None:
    """Autocast keeps copies of weights, across the levels of transforms."""

    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return compile(per_sample)(net, x)

    assert check(step, net, constant(5, 6), allow_fallback=True).fallbacks == {"function transform": 1}


@pytest.mark.parametrize("is_checkpoint", [False, True], ids=["of the user's", "of checkpoint's"])
def test_gradients_of_a_transform_under_saved_tensors_hooks_raise_as_in_eager(is_checkpoint: bool) -> None:
    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        run = compile(lambda x: total(per_sample(net, x)))
        found = [run(x)]
        try:
            if is_checkpoint:
                found.append(torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False))
            else:
                with torch.autograd.graph.save_on_cpu():
                    found.append(run(x))
        except RuntimeError as error:
            found.append(str(error).split(".")[0])
        return found, transforms()

    assert check(step, net, leaf(5, 6), allow_fallback=True).fallbacks == {"saved-tensors hooks": 1}


@pytest.mark.parametrize("fullgraph", [False, True])
def test_hooks_that_refuse_a_transform_are_allowed_again(fullgraph: bool) -> None:
    """Dynamo disables them while it traces a transform; where that raises, they stayed disabled for good."""

    def step(compile: Any, net: nn.Module, x: Tensor) -> Any:
        run = compile(lambda x: total(per_sample(net, x)), fullgraph=fullgraph)
        try:
            with torch.autograd.graph.save_on_cpu():
                run(x)
        except Exception as error:
            return "don't yet support saved tensor hooks" in str(error), transforms()

    check(step, net, leaf(5, 6), allow_fallback=True)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "vmap": lambda x, w: vmap(lambda one: one @ w)(x),
    "vmap of the single matrix": lambda x, w: vmap(lambda w: x[0] @ w)(torch.stack([w, w * 2])),
    "grad": lambda x, w: grad(lambda x: (x @ w).square().sum())(x[0]),
    "vmap of grad": lambda x, w: vmap(grad(lambda x: (x @ w).square().sum()))(x),
    "grad of vmap": lambda x, w: grad(lambda x: vmap(lambda one: one @ w)(x).square().sum())(x),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_inside_a_transform_is_folded_where_eager_folds_it(name: str) -> None:
    """Kernels take fake tensors for subclasses, and so what a transform has wrapped; in eager only the latter."""

    def step(compile: Any, x: Tensor, w: Tensor) -> Any:
        found = compile(PRODUCTS[name])(x, w)
        found.square().sum().backward()
        return found

    check(step, leaf(2, 6, 5, 9), constant(1, 9, 7))


ENDED: dict[str, Callable[[Tensor], Any]] = {
    "prod": lambda x: x.prod(),
    "prod of a dimension": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "vander": lambda x: torch.linalg.vander(x),
    "masked cumprod": lambda x: torch.masked.cumprod(x, 1, mask=x != 0.5),
    "prod, vmapped": lambda x: vmap(lambda row: row.cumsum(0).prod())(x),
    "trace": lambda x: (x.exp() @ x.mT).trace(),
    "matrix_exp": lambda x: torch.matrix_exp(x @ x.mT),
}


def with_zeros(x: Tensor) -> list[Tensor]:
    """Eager takes another formula for each."""
    return [x * (torch.arange(x.numel()).view(x.shape) >= num_zeros) for num_zeros in range(3)]


@pytest.mark.parametrize("name", ENDED)
def test_a_vjp_pulled_back_takes_the_formulas_of_plain_tensors(name: str) -> None:
    """A tape is recorded as if all tensors were wrapped; once the transform has ended, what a call returns is not."""

    def step(compile: Any, x: Tensor) -> Any:
        def pulled(x: Tensor) -> Any:
            found, pull = vjp(ENDED[name], x)
            return pull(found.cos())

        return [*map(compile(pulled), with_zeros(x))]

    check(step, constant(3, 4))


WRAPPED: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(lambda x: x.prod(1).sum())(x),
    "grad of vmap": lambda x: grad(lambda x: vmap(torch.prod)(x).sum())(x),
    "grad of a vjp": lambda x: grad(lambda x: vjp(torch.prod, x)[1](x[0, 0])[0].sum())(x),
    "vmap of a vjp": lambda x: vmap(lambda row: vjp(torch.prod, row)[1](row[0])[0])(x),
    "jacrev of cumprod": lambda x: jacrev(lambda x: x.cumprod(1))(x),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_gradient_inside_of_a_transform_takes_the_formulas_of_wrapped_tensors(name: str) -> None:
    check(lambda compile, x: [*map(compile(WRAPPED[name]), with_zeros(x))], constant(3, 4))


@pytest.mark.parametrize("name", ["prod", "cumprod"])
def test_what_is_recorded_of_a_vjp_of_a_product_is_for_eager(name: str) -> None:
    """Backward through a vjp: eager records the calls of plain tensors."""

    def step(compile: Any, x: Tensor) -> Any:
        found = compile(lambda x: vjp(ENDED[name], x)[1](ENDED[name](x).cos())[0])(x)
        found.square().sum().backward()
        return found

    assert check(step, leaf(3, 4), allow_fallback=True).fallbacks == {"function transform": 1}


@pytest.mark.parametrize("make", [net, tied], ids=["plain", "tied"])
def test_functional_call_is_compiled(make: Callable[[], nn.Module]) -> None:
    """It looks for tensors in dictionaries, and goes through sets of names."""

    def step(compile: Any, module: nn.Module, x: Tensor) -> Any:
        parameters = {name: parameter * 2 for name, parameter in module.named_parameters()}
        return compile(lambda x: torch.func.functional_call(module, parameters, (x,)))(x)

    assert check(step, make, leaf(5, 6)).num_graphs == 1


def test_what_vmap_warns_of_is_said_at_each_call() -> None:
    """Of an op that it has no rule for: while it was recorded alone, before."""
    index = torch.tensor([0, 1, 2])

    def step(compile: Any, x: Tensor) -> Any:
        function = compile(jacrev(lambda x: nn.functional.multi_margin_loss(x, index).reshape(-1)))
        return [function(x), function(x)]

    assert "batching rule" in str(check(step, constant(3, 4)).eager.warned)
