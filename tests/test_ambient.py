"""The ambient state has one definition in Python and one in C++: both say the same, and both make new keys of it."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradc
from gradc import native
from gradc.ambient import Ambient, AutocastState, ambient, autocast_state, unsupported_mode
from gradc.backward.key import BackwardKey

needs_extension = pytest.mark.skipif(not native.is_built(), reason="the extension is not built")


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def matmul_precision(precision):
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextlib.contextmanager
def no_mkldnn():
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags leaves other settings behind
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


@contextlib.contextmanager
def both(first, second):
    with first, second:
        yield


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


# By field of Ambient: settings that are not the default.
SETTINGS = {
    "autocast to bfloat16": ("autocast", lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast to float16": ("autocast", lambda: torch.autocast("cpu", torch.float16)),
    "autocast of another machine's device": ("autocast", lambda: torch.autocast("xpu", torch.bfloat16)),
    "autocast of two devices": ("autocast", lambda: both(torch.autocast("xpu", torch.bfloat16), torch.autocast("cpu"))),
    "deterministic": ("is_deterministic", deterministic),
    "matmul precision": ("matmul_precision", lambda: matmul_precision("medium")),
    "no mkldnn": ("is_mkldnn_enabled", no_mkldnn),
    "default dtype": ("default_dtype", lambda: default_dtype(torch.float64)),
    "no layout enforcement": ("is_layout_enforced", lambda: torch.autograd.enforce_grad_layout_policy(False)),
}


def each_setting(test):
    return pytest.mark.parametrize(("field", "setting"), SETTINGS.values(), ids=SETTINGS)(test)


def seen_in_cpp():
    """The ambient state as C++ sees it, with its names and their order."""
    fields = native.extension.ambient()
    return {name: AutocastState(value) if name == "autocast" else value for name, value in fields.items()}


def seen_in_python():
    state = ambient(autocast_state())
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(Ambient)}


def test_every_field_has_a_setting_here():
    assert {field for field, _ in SETTINGS.values()} == {field.name for field in dataclasses.fields(Ambient)}


@each_setting
def test_one_setting_changes_one_field(field, setting):
    before = seen_in_python()
    with setting():
        now = seen_in_python()
    assert {name for name in before if before[name] != now[name]} == {field}
    assert seen_in_python() == before


@needs_extension
@each_setting
def test_python_and_cpp_say_the_same(field, setting):
    assert list(seen_in_cpp().items()) == list(seen_in_python().items())
    with setting():
        assert list(seen_in_cpp().items()) == list(seen_in_python().items())


@needs_extension
@each_setting
def test_python_and_cpp_use_the_same_words(field, setting):
    x = torch.randn(3, requires_grad=True)
    loss = torch.tanh(x).sum()
    with setting():
        walk = native.extension.Walk([loss], [torch.ones_like(loss)], False, None, True)
        parts = BackwardKey(ambient(autocast_state()), (), ()).parts()
    said = dict(line.split(": ", 1) for line in walk.describe().splitlines())
    assert {name: said[name] for name in seen_in_python()} == {name: parts[name] for name in seen_in_python()}


def walk_key(setting):
    x = torch.randn(3, requires_grad=True)
    loss = torch.tanh(x).sum()
    with setting():
        return native.extension.Walk([loss], [torch.ones_like(loss)], False, None, True).key


@needs_extension
@each_setting
def test_a_walk_has_another_key(field, setting):
    assert walk_key(contextlib.nullcontext) == walk_key(contextlib.nullcontext)
    assert walk_key(setting) != walk_key(contextlib.nullcontext)


@each_setting
def test_a_region_compiles_another_backward(field, setting):
    compiled = gradc.compile(lambda x: torch.tanh(x) * 2)

    def num_compiles(around):
        before = gradc.counters["aot"]["backward_compiles"]
        y = compiled(torch.randn(3, requires_grad=True))
        with around():
            y.backward(torch.ones(3))
        return gradc.counters["aot"]["backward_compiles"] - before

    num_compiles(contextlib.nullcontext)
    assert num_compiles(contextlib.nullcontext) == 0
    assert num_compiles(setting) == 1
    assert num_compiles(setting) == 0


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        return op(*args, **(kwargs or {}))


MODES = {
    "": torch.inference_mode,
    "dispatch mode": Watching,
    "forward-mode AD": torch.autograd.forward_ad.dual_level,
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "kernel of an op": torch._C._AutoDispatchBelowAutograd,
}


@pytest.mark.parametrize(("name", "mode"), MODES.items(), ids=list(MODES))
def test_modes_that_no_program_serves(name, mode):
    with mode():
        assert unsupported_mode() == name
        assert not native.is_built() or native.extension.unsupported_mode() == name


def test_a_function_transform_is_served_by_no_program():
    seen = []

    def note(x):
        seen.append(unsupported_mode())
        seen.append(native.extension.unsupported_mode() if native.is_built() else seen[0])
        return x

    torch.func.vmap(note)(torch.zeros(2))
    assert seen == ["function transform"] * 2
    assert unsupported_mode() == ""
