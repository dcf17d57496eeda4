"""What a user may change behind a step whose forward and backward are one plan: from the next call on it is eager's again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradc import native
from tests.oracle import check, leaf

pytestmark = pytest.mark.skipif(not native.is_built(), reason="joined plans are the extension's")
NUM_BEFORE, NUM_BEHIND = 6, 3


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        y = F.silu(self.second(y)) + y * 0.5
        return self.last(y).square().mean()


class Passing(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def as_set(set_to: Callable[[Any], Any], value: Any, now: Callable[[], Any]) -> Callable[..., None]:
    """A setting of the process, put back where the test ends."""

    def change(model: Any, log: list[Any], stack: contextlib.ExitStack) -> None:
        stack.callback(set_to, now())
        set_to(value)

    return change


def around(make: Callable[[list[Any]], Any]) -> Callable[..., None]:
    def change(model: Any, log: list[Any], stack: contextlib.ExitStack) -> None:
        stack.enter_context(make(log))

    return change


def saved_tensors_hooks(log: list[Any]) -> Any:
    def pack(value: Tensor) -> Tensor:
        log.append(value.shape)
        return value

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value * 1)


def accumulate_node(model: Any) -> Any:
    weight = model.second.weight
    model.node = weight.view_as(weight).grad_fn.next_functions[0][0]
    return model.node


def all_frozen_but_one(model: Any, *_: Any) -> None:
    model.requires_grad_(False)
    model.last.bias.requires_grad_(True)


def tied(model: Any, *_: Any) -> None:
    model.first.bias = model.second.bias


def gradients_of_another_layout(model: Any, *_: Any) -> None:
    model.second.weight.grad = torch.ones(32, 32).t()


def gradients_that_require_grad(model: Any, *_: Any) -> None:
    model.second.weight.grad = torch.ones(32, 32).requires_grad_()


def sparse_gradients(model: Any, *_: Any) -> None:
    model.second.weight.grad = torch.zeros(32, 32).to_sparse()


def not_finite(model: Any, *_: Any) -> None:
    with torch.no_grad():
        model.second.weight[0, 0], model.first.weight[1, 1] = float("nan"), float("-inf")


def swapped(model: Any, *_: Any) -> None:
    torch.utils.swap_tensors(model.second.weight, nn.Parameter(model.second.weight.detach() * 2))


def of_another_class(model: Any, *_: Any) -> None:
    model.second.__class__ = Doubling


def gradient_inputs(log: list[Any]) -> Callable[..., None]:
    return lambda module, of_inputs, of_outputs: log.append([value.clone() for value in of_inputs])


CHANGES: dict[str, Callable[..., Any]] = {
    "a hook on the gradient": lambda model, log, _: model.second.weight.register_hook(lambda grad: grad * 3),
    "a hook behind accumulation": lambda model, log, _: model.second.weight.register_post_accumulate_grad_hook(
        lambda leaf: (log.append(leaf.grad.clone()), leaf.grad.mul_(2))[0]
    ),
    "a hook on several": lambda model, log, _: torch.autograd.graph.register_multi_grad_hook(
        [*model.parameters()], lambda grads: log.append([grad.clone() for grad in grads])
    ),
    "a hook on the node": lambda model, log, _: accumulate_node(model).register_hook(lambda *_: log.append("node")),
    "a hook before the node": lambda model, log, _: accumulate_node(model).register_prehook(lambda grads: (grads[0] * 2,)),
    "a forward hook": lambda model, log, _: model.second.register_forward_hook(lambda module, args, out: out * 2),
    "a backward hook": lambda model, log, _: model.second.register_full_backward_hook(gradient_inputs(log)),
    "saved tensors' hooks": around(saved_tensors_hooks),
    "anomaly mode": around(lambda log: torch.autograd.detect_anomaly(check_nan=False)),
    "autocast": around(lambda log: torch.autocast("cpu", torch.bfloat16)),
    "a function mode": around(lambda log: Passing()),
    "a dispatch mode": around(lambda log: Dispatched()),
    "no oneDNN": around(lambda log: torch.backends.mkldnn.flags(enabled=False)),
    "one thread for the engine": around(lambda log: torch.autograd.set_multithreading_enabled(False)),
    "two threads": as_set(torch.set_num_threads, 2, torch.get_num_threads),
    "deterministic": as_set(torch.use_deterministic_algorithms, True, torch.are_deterministic_algorithms_enabled),
    "another precision": as_set(torch.set_float32_matmul_precision, "medium", torch.get_float32_matmul_precision),
    "denormals flushed": as_set(torch.set_flush_denormal, True, lambda: False),
    "another default dtype": as_set(torch.set_default_dtype, torch.float64, torch.get_default_dtype),
    "one frozen": lambda model, log, _: model.second.weight.requires_grad_(False),
    **{
        function.__name__.replace("_", " "): function
        for function in (
            all_frozen_but_one, tied, gradients_of_another_layout, gradients_that_require_grad, sparse_gradients, not_finite,
            swapped, of_another_class,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_as_eager(name: str) -> None:
    num_joined = 0

    def run(compile: Any, x: Tensor) -> list[Any]:
        nonlocal num_joined
        torch.manual_seed(0)
        model, log = Model(), list[Any]()

        @compile
        def step(x: Tensor) -> Tensor:
            loss = model(x)
            loss.backward()
            return loss.detach()

        before, seen = native.extension.StraightLoss.num_joined(), []
        with contextlib.ExitStack() as stack:
            for number in range(NUM_BEFORE + NUM_BEHIND):
                if number == NUM_BEFORE:
                    num_joined = native.extension.StraightLoss.num_joined() - before
                    CHANGES[name](model, log, stack)
                seen.append(step(x))
                grads = [parameter.grad for parameter in (x, *model.parameters())]
                seen += [grad if grad is None or grad.is_sparse else grad.clone() for grad in grads]
                if number % 3:
                    model.zero_grad()
        return [*seen, *log]

    check(run, leaf(5, 16), allow_fallback=True)
    assert num_joined > 0  # in the compiled run, which comes behind eager's
