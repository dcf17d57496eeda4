"""What a step learned of a group's settings holds as long as they are the same: any change is seen at the next step."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import gradc
from gradc import native
from gradc.bits import same_bits

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

KINDS = [optim.Adam, optim.AdamW, optim.SGD, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adamax]
Change = Callable[[Any], object]


def made(kind: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(num)) for num in (3, 17, 40)]
    return kind([{"params": params[:1]}, {"params": params[1:], **settings}], lr=0.1)


def step(optimizer: Any, number: int) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.cos(param.detach() * (number + 1))
    optimizer.step()


def left(optimizer: Any) -> list[Any]:
    """Parameters and state, of all that were there at first or at last."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return [[param, *optimizer.state[param].values()] for param in params]


def trained(optimizer: Any, change: Change) -> list[Any]:
    said: list[Any] = []
    for number in range(8):
        if number == 4:
            change(optimizer)
        try:
            step(optimizer, number)
        except Exception as error:
            said.append((type(error), str(error)))
    return [*left(optimizer), *said]


def is_run_by_torch(optimizer: Any) -> bool:
    """True if the next step runs the code of torch's own."""
    codes: list[Any] = []
    sys.setprofile(lambda frame, event, arg: codes.append(frame.f_code.co_name) if event == "call" else None)
    try:
        step(optimizer, 1)
    finally:
        sys.setprofile(None)
    return "_use_grad" in codes


def set_to(name: str, value: Any, place: int = 1) -> Change:
    return lambda optimizer: optimizer.param_groups[place].__setitem__(name, value)


class Groups(dict[str, Any]):
    """A group whose learning rate is not the one that lies in it."""

    def __getitem__(self, name: str) -> Any:
        return 0.5 if name == "lr" else super().__getitem__(name)


def replaced_group(optimizer: Any) -> None:
    optimizer.param_groups[1] = Groups(optimizer.param_groups[1])


def reordered_group(optimizer: Any) -> None:
    group = optimizer.param_groups[1]
    optimizer.param_groups[1] = dict(reversed(group.items()))


def without_learning_rate(optimizer: Any) -> None:
    del optimizer.param_groups[1]["lr"]


def doubled_gradients(optimizer: Any) -> None:
    read = optimizer._init_group

    def init_group(group: Any, *lists: Any) -> Any:
        found = read(group, *lists)
        lists[1][:] = [grad * 2 for grad in lists[1]]
        return found

    optimizer._init_group = init_group


def without_state(optimizer: Any) -> None:
    optimizer.state.clear()


def one_parameter_more(optimizer: Any) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(5))], "lr": 0.3})


def one_parameter_less(optimizer: Any) -> None:
    optimizer.param_groups[1]["params"].pop()


def loaded(optimizer: Any) -> None:
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.7
    optimizer.load_state_dict(saved)


def groups_in_another_order(optimizer: Any) -> None:
    optimizer.param_groups.reverse()


def differentiable(optimizer: Any) -> None:
    optimizer.defaults["differentiable"] = True


def state_in_another_order(optimizer: Any) -> None:
    for param in list(optimizer.state)[:2]:
        optimizer.state[param] = optimizer.state.pop(param)


def last_two(optimizer: Any) -> list[dict[str, Any]]:
    return [optimizer.state[param] for param in optimizer.param_groups[1]["params"]]


def ahead(optimizer: Any) -> None:
    """One parameter has taken more steps than the others."""
    if "step" in (state := last_two(optimizer)[0]):
        state["step"] += 3


def shared(optimizer: Any) -> None:
    """Two parameters count their steps in one tensor, which each counts up."""
    first, second = last_two(optimizer)
    if "step" in first:
        second["step"] = first["step"]


def state_in_one_tensor(optimizer: Any) -> None:
    state = last_two(optimizer)[1]
    tensors = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.dim() > 0]
    state.update(dict.fromkeys(tensors, state[tensors[0]]) if tensors else {})


CHANGES: dict[str, Change] = {
    "nothing": lambda optimizer: None,
    "learning rate": set_to("lr", 0.01),
    "learning rate, whole": set_to("lr", 1),
    "learning rate, tensor": set_to("lr", torch.tensor(0.01)),
    "learning rate, text": set_to("lr", "fast"),
    "weight decay": set_to("weight_decay", 0.1),
    "weight decay, first group": set_to("weight_decay", 0.1, place=0),
    "maximize": set_to("maximize", True),
    "foreach": set_to("foreach", True),
    "another key": set_to("name", ["of", "the", "user"]),
    "state": without_state,
    "more": one_parameter_more,
    "less": one_parameter_less,
    "loaded": loaded,
    "another dict": replaced_group,
    "order of keys": reordered_group,
    "order of groups": groups_in_another_order,
    "no learning rate": without_learning_rate,
    "own reading": doubled_gradients,
    "differentiable": differentiable,
    "state in another order": state_in_another_order,
    "a count ahead": ahead,
    "a count of two": shared,
    "state in one tensor": state_in_one_tensor,
    "a tuple": lambda optimizer: set_to("params", tuple(optimizer.param_groups[1]["params"]))(optimizer),
}
OF_ADAM: dict[str, Change] = {
    "betas": set_to("betas", (0.5, 0.6)),
    "betas of no use": set_to("betas", (1.0, 0.6)),
    "amsgrad": set_to("amsgrad", True),
    "decoupled": set_to("decoupled_weight_decay", True),
    "eps": set_to("eps", 0.1),
    "scale": lambda optimizer: setattr(optimizer, "grad_scale", torch.tensor(2.0)),
}
CASES = [(kind, name, change) for kind in KINDS for name, change in CHANGES.items()]
CASES += [(optim.Adam, name, change) for name, change in OF_ADAM.items()]


@pytest.mark.parametrize(("kind", "name", "change"), CASES)
def test_a_change_is_seen_at_the_next_step(kind: Any, name: str, change: Change) -> None:
    eager, compiled = (trained(optimizer, change) for optimizer in (made(kind), gradc.compile(made(kind))))
    assert same_bits(eager, compiled)


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_code_runs_once(kind: Any) -> None:
    """Even after ``torch.compile`` has put a layer around each class's ``_init_group``, as it does the first time."""
    torch.compile(torch.sin, backend="eager")(torch.ones(1))
    optimizer = gradc.compile(made(kind, momentum=0.9) if kind is optim.SGD else made(kind))
    for number in range(2):
        step(optimizer, number)  # makes the state; and learns
    assert not is_run_by_torch(optimizer)
    optimizer.param_groups[1]["lr"] = 0.003
    assert not is_run_by_torch(optimizer)
    optimizer.param_groups[1]["weight_decay"] = 0.003
    assert is_run_by_torch(optimizer)
    assert not is_run_by_torch(optimizer)


@pytest.mark.parametrize("change", [state_in_another_order, ahead])
def test_what_lies_otherwise_is_read_natively(change: Change) -> None:
    optimizer = gradc.compile(made(optim.Adam))
    for number in range(2):
        step(optimizer, number)
    change(optimizer)
    assert not is_run_by_torch(optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_that_is_updated_without_the_interpreters_lock(dtype: torch.dtype) -> None:
    results = []
    for compile in (lambda optimizer: optimizer, gradc.compile):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(num, dtype=dtype)) for num in (300_000, 3)]
        optimizer = compile(optim.Adam(params))
        for number in range(3):
            step(optimizer, number)
        results.append(left(optimizer))
    assert same_bits(*results)


def test_a_list_of_betas_may_change_in_place() -> None:
    def change(optimizer: Any) -> None:
        optimizer.param_groups[1]["betas"][0] = 0.3

    eager, compiled = made(optim.Adam, betas=[0.9, 0.99]), gradc.compile(made(optim.Adam, betas=[0.9, 0.99]))
    assert same_bits(trained(eager, change), trained(compiled, change))


def test_a_schedule_of_betas_and_learning_rates() -> None:
    results = []
    for compile in (lambda optimizer: optimizer, gradc.compile):
        optimizer = compile(made(optim.AdamW))
        schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
        for number in range(8):
            step(optimizer, number)
            schedule.step()
        results.append(left(optimizer))
    assert same_bits(*results)


def test_hooks_closures_and_profilers_are_served() -> None:
    optimizer, calls = gradc.compile(made(optim.Adam)), list[str]()
    for number in range(3):
        step(optimizer, number)
    handle = optimizer.register_step_post_hook(lambda *args: calls.append("hook"))
    step(optimizer, 1)
    handle.remove()
    assert optimizer.step(lambda: 3.5) == 3.5
    with torch.profiler.profile() as profile:
        step(optimizer, 2)
    assert calls == ["hook"]
    assert [event.name for event in profile.events()].count("Optimizer.step#Adam.step") == 1


def test_a_class_that_reads_its_groups_otherwise_later(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    read = optim.Adam._init_group

    @functools.wraps(read)
    def init_group(self: Any, group: Any, *lists: Any) -> Any:
        found = read(self, group, *lists)
        lists[1][:] = [grad * 2 for grad in lists[1]]
        return found

    for compile in (lambda optimizer: optimizer, gradc.compile):
        with monkeypatch.context() as patched:
            change = lambda _, patched=patched: patched.setattr(optim.Adam, "_init_group", init_group)
            results.append(trained(compile(made(optim.Adam)), change))
    assert same_bits(*results)


def test_step_counts_that_two_groups_share() -> None:
    """The second group's count is the one that the first has left."""

    def share(optimizer: Any) -> None:
        first, second, _ = (param for group in optimizer.param_groups for param in group["params"])
        optimizer.state[second]["step"] = optimizer.state[first]["step"]

    eager, compiled = made(optim.Adam), gradc.compile(made(optim.Adam))
    assert same_bits(trained(eager, share), trained(compiled, share))


def test_nothing_is_kept_alive() -> None:
    optimizer = gradc.compile(made(optim.Adam))
    for number in range(3):
        step(optimizer, number)
    seen = [weakref.ref(optimizer), weakref.ref(optimizer.param_groups[0]["params"][0])]
    del optimizer
    gc.collect()
    assert [each() for each in seen] == [None, None]


def test_a_group_of_an_ordered_dictionary() -> None:
    def change(optimizer: Any) -> None:
        optimizer.param_groups[0] = OrderedDict(optimizer.param_groups[0], lr=0.9)

    assert same_bits(trained(made(optim.SGD), change), trained(gradc.compile(made(optim.SGD)), change))
