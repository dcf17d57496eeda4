"""Guards of an object that died are still in memory: a thread may be in the middle of asking them (pytorch#195355)."""

from __future__ import annotations

import collections
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from torch._dynamo import guards
from torch._dynamo.guards import CheckFunctionManager

import gradc
from gradc.torch_private.dynamo_patches import dying_guards
from gradc.torch_private.ours import users_settings


def step_of(optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()

    return step


def roots_of_what_dies(compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Compile a step, drop its optimizer; the trees of guards that Dynamo has dropped with it."""
    roots: list[weakref.ref[Any]] = []

    def invalidate(self: Any, obj_str: str) -> None:
        roots.append(weakref.ref(self.guard_manager.root))
        drop(self, obj_str=obj_str)

    weight = torch.nn.Parameter(torch.ones(2))
    compiled = compiler(step_of(torch.optim.SGD([weight], lr=0.1)))
    compiled()  # patches are applied by now
    drop = CheckFunctionManager.invalidate
    monkeypatch.setattr(CheckFunctionManager, "invalidate", invalidate)
    compiled = compiler(step_of(torch.optim.SGD([weight], lr=0.1)))
    weight.grad = torch.ones(2)
    compiled()
    assert weight.grad is None
    roots.clear()
    del compiled
    gc.collect()
    assert roots
    return roots


def compiled_by_gradc(function: Callable[..., Any]) -> Any:
    return gradc.compile(function, options={"compare_with_eager": False})


def test_guards_of_what_died_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(root() is not None for root in roots_of_what_dies(compiled_by_gradc, monkeypatch))


def test_kept_guards_go_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dying_guards, "SECONDS_KEPT", -1.0)
    assert all(root() is None for root in roots_of_what_dies(compiled_by_gradc, monkeypatch))


def test_young_guards_are_not_walked_through() -> None:
    """A process that ended with some 10,000 guarded objects took minutes: each that died walked through all before it."""

    class Kept(collections.deque[Any]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("walked through")

    kept, now = Kept(), time.monotonic()
    kept.extend([(now - 2 * dying_guards.SECONDS_KEPT, "old", None), (now, "young", None), (now, "younger", None)])
    dying_guards._drop_the_old(kept)
    assert [kept.popleft()[1] for _ in range(len(kept))] == ["young", "younger"]


def test_guards_of_other_compilers_go_as_without_gradc(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_by_gradc(torch.sin)(torch.ones(2))  # applies the patches
    roots = roots_of_what_dies(lambda function: torch.compile(function, backend="eager"), monkeypatch)
    assert all(root() is None for root in roots)


def test_why_guards_failed_that_died_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo read the guards when they were there, and the code when it was gone."""
    compiled_by_gradc(torch.sin)(torch.ones(2))
    token = users_settings.set({})
    try:
        assert guards.get_guard_fail_reason(object(), None, {}, None, None) == "what was guarded died"
    finally:
        users_settings.reset(token)
