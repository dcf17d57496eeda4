"""Compiling spares the garbage collector what was alive before, and leaves it as it was."""

import gc

import pytest
import torch

import gradc
from gradc import garbage as collector


@pytest.fixture(autouse=True)
def unfrozen():
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_frozen_inside_only():
    with collector.set_aside():
        assert gc.get_freeze_count() > 0
        with collector.set_aside():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_what_is_old_is_collected_less_often_inside_only():
    before = gc.get_threshold()
    with collector.set_aside():
        assert gc.get_threshold()[:2] == before[:2] and gc.get_threshold()[2] > before[2]
    assert gc.get_threshold() == before


def test_a_threshold_set_meanwhile_stays():
    before = gc.get_threshold()
    try:
        with collector.set_aside():
            gc.set_threshold(500, 5, 5)
        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)


def test_what_the_user_froze_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector.set_aside():
        pass
    assert gc.get_freeze_count() >= frozen // 2


def test_a_user_without_collector_gets_none():
    gc.disable()
    try:
        with collector.set_aside():
            assert gc.get_freeze_count() == 0
    finally:
        gc.enable()


def test_compiling_sets_aside_also_after_a_reset():
    for _ in range(2):
        torch._dynamo.reset()
        seen = []
        compiled = gradc.compile(torch.nn.Linear(2, 2))
        torch._dynamo.callback.callback_handler.register_start_callback(lambda _: seen.append(gc.get_freeze_count()))
        compiled(torch.ones(1, 2)).sum().backward()
        assert seen and seen[0] > 0
        assert gc.get_freeze_count() == 0
    torch._dynamo.reset()


def test_a_captured_backward_pass_is_spared_too():
    seen = []
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        hidden = x.sin()
        hidden.register_hook(lambda grad: seen.append(gc.get_freeze_count() > 0))
        with gradc.compiled_autograd.enable():
            hidden.sum().backward()
        x.grad = None
    assert seen == [True, False]  # captured, replayed
    assert gc.get_freeze_count() == 0
