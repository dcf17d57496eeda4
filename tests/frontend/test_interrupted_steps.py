"""An error or Ctrl-C anywhere in a whole compiled step leaves what it leaves in eager, and the next step goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim

import gradc
from gradc.bits import same_bits

PLACES = ("forward", "backward", "accumulated", "before the update", "between groups", "behind the update", "schedule", "end")
NUM_STEPS, BROKEN = 5, 2


class Groups(list[Any]):
    """Parameter groups that call ``between`` before the second is come to."""

    between: Callable[..., None]

    def __iter__(self) -> Iterator[Any]:
        for number, group in enumerate(super().__iter__()):
            if number:
                self.between()
            yield group


def train(compile: Any, place: str, error: type[BaseException], kind: Any) -> list[Any]:
    """What there is after each step, one of which breaks at ``place``."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = kind([{"params": net[0].parameters()}, {"params": net[3].parameters(), "weight_decay": 0.1}], lr=0.1)
    broken, seen = [""], list[Any]()

    def act(here: str, result: Any = None) -> Any:
        if broken[0] == here:
            raise error(here)
        return result

    schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda number: act("schedule", 0.9**number))
    net[0].register_forward_hook(lambda *_: act("forward"))
    net[0].weight.register_hook(lambda grad: act("backward"))
    net[3].weight.register_post_accumulate_grad_hook(lambda p: act("accumulated"))
    optimizer.register_step_pre_hook(lambda *_: act("before the update"))
    optimizer.register_step_post_hook(lambda *_: act("behind the update"))
    optimizer.param_groups = Groups(optimizer.param_groups)
    optimizer.param_groups.between = lambda: act("between groups") if torch.is_grad_enabled() is False else None

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        act("end")
        return loss.detach()

    run = compile(step)
    for number in range(NUM_STEPS):
        x = torch.randn(3, 4)
        broken[0] = place if number == BROKEN else ""
        try:
            seen.append(run(x))
        except error as raised:
            seen.append(str(raised))
        seen += [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        seen += [p.detach().clone() for p in net.parameters()]
        seen += [_copy(value) for p in net.parameters() for value in optimizer.state[p].values()]
        seen += [[group["lr"] for group in optimizer.param_groups], schedule.last_epoch, torch.get_rng_state()]
    return seen


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def momentum(groups: Any, lr: float) -> optim.Optimizer:
    return optim.SGD(groups, lr=lr, momentum=0.9)


@pytest.mark.parametrize(("error", "kind"), [(ValueError, optim.Adam), (KeyboardInterrupt, momentum)])
@pytest.mark.parametrize("place", PLACES)
def test_it_is_as_in_eager(place: str, error: type[BaseException], kind: Any) -> None:
    eager = train(lambda step: step, place, error, kind)
    assert place in [value for value in eager if isinstance(value, str)]
    gradc.reset()
    assert same_bits(eager, train(gradc.compile, place, error, kind))
    assert gradc.counters["stats"]["unique_graphs"] and gradc.counters["optim"]["native steps"]
