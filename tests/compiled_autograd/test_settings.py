"""The stack of settings: nesting, threads, errors, and what counts as the same wish."""

from __future__ import annotations

import threading

import pytest
import torch

import gradc
from gradc import compiled_autograd
from gradc.compiled_autograd.settings import OFF, ON, present, setting_of


def test_the_innermost_holds() -> None:
    assert present() is OFF
    with compiled_autograd.enable(dynamic=True):
        assert present().is_on and present().dynamic is True
        with compiled_autograd.disable():
            assert not present().is_on
        assert present().dynamic is True
    assert present() is OFF


def test_the_default_yields_to_what_was_said() -> None:
    with compiled_autograd.enable_by_default(fullgraph=True):
        assert present().is_on and present().fullgraph
    with compiled_autograd.disable(), compiled_autograd.enable_by_default():
        assert not present().is_on


def test_an_error_restores() -> None:
    with compiled_autograd.enable():
        with pytest.raises(RuntimeError), compiled_autograd.enable(dynamic=True):
            raise RuntimeError
        assert present().dynamic is None
    assert present() is OFF


def test_a_thread_has_a_stack_of_its_own() -> None:
    seen = []
    with compiled_autograd.enable():
        thread = threading.Thread(target=lambda: seen.append(present()))
        thread.start()
        thread.join()
    assert seen == [OFF]


def test_without_a_stack_the_configuration_decides() -> None:
    with gradc.config.patch(compiled_autograd=True):
        assert present() is ON
        with compiled_autograd.disable():
            assert present() is OFF


def test_as_a_decorator() -> None:
    @compiled_autograd.enable()
    def inside() -> bool:
        return present().is_on

    assert inside() and inside() and not present().is_on


def test_equal_wishes_have_equal_keys() -> None:
    assert setting_of(None, None).key is None
    assert setting_of(gradc.compile(backend="eager"), None).key == setting_of(gradc.compile(backend="eager"), None).key
    keys = [
        setting_of(compiler, dynamic).key
        for compiler in (None, gradc.compile(backend="eager"), torch.compile)
        for dynamic in (None, True, False)
    ]
    assert len(set(keys)) == 7  # a compiler of GraphModules serves one size each, whatever was asked


def test_what_gradc_compile_was_asked_for_holds() -> None:
    setting = setting_of(gradc.compile(backend="eager", fullgraph=True, dynamic=False), None)
    assert (setting.fullgraph, setting.dynamic) == (True, False)
    assert setting_of(gradc.compile(dynamic=False), True).dynamic is True
    assert setting_of(gradc.compile(), None).compiler is None  # the default backend needs none
