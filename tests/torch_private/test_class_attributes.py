"""What compiled code read of classes is read again where it is another: methods, nearer attributes, bases, special methods."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.torch_private.classes import Compare, Held
from tests.oracle import check, leaf

Change = Callable[[], None]
Case = Callable[[], tuple[Callable[[Tensor], Tensor], Change]]


def times(k: float) -> Any:
    return lambda self, x: x * k


def always(k: Any) -> Any:
    return lambda self, *_: k


def thrice(self: Any, x: Tensor) -> Tensor:
    return x * 3


def a_method() -> Any:
    class Model(nn.Module):
        def helper(self, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x)

    return Model(), lambda: setattr(Model, "helper", thrice)


def a_method_under_no_grad() -> Any:
    def decorated(k: float) -> Any:
        @torch.no_grad()
        def helper(self: Any, x: Tensor) -> Tensor:
            return x * 2 if k == 2 else x + 3

        return helper

    class Model(nn.Module):
        helper = decorated(2)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.helper(x)

    return Model(), lambda: setattr(Model, "helper", decorated(3))


def a_method_that_a_computed_name_finds() -> Any:
    class Model(nn.Module):
        def helper_1(self, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            helper: Tensor = getattr(self, f"helper_{len('a')}")(x)
            return helper

    return Model(), lambda: setattr(Model, "helper_1", thrice)


def a_static_method() -> Any:
    class Model(nn.Module):
        @staticmethod
        def helper(x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x)

    return Model(), lambda: setattr(Model, "helper", staticmethod(lambda x: x * 3))


def a_class_method() -> Any:
    class Model(nn.Module):
        @classmethod
        def helper(cls, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x)

    return Model(), lambda: setattr(Model, "helper", classmethod(lambda cls, x: x * 3))


def a_property() -> Any:
    class Model(nn.Module):
        @property
        def scale(self) -> float:
            return 2.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    return Model(), lambda: setattr(Model, "scale", property(lambda self: 3.0))


def a_method_of_a_base() -> Any:
    class Base(nn.Module):
        def helper(self, x: Tensor) -> Tensor:
            return x * 2

    class Model(Base):
        def helper(self, x: Tensor) -> Tensor:
            return super().helper(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x)

    return Model(), lambda: setattr(Base, "helper", thrice)


def a_method_of_an_object_made_inside() -> Any:
    class Scale:
        apply = times(2.0)

    return lambda x: Scale().apply(x), lambda: setattr(Scale, "apply", times(3.0))


def an_init() -> Any:
    def init(k: float) -> Any:
        return lambda self: setattr(self, "scale", k)

    class Scale:
        __init__ = init(2.0)

    return lambda x: x * Scale().scale, lambda: setattr(Scale, "__init__", init(3.0))  # type: ignore[attr-defined]


def a_nearer_attribute() -> Any:
    class Base:
        scale = 2.0

    class Model(nn.Module, Base):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    return Model(), lambda: setattr(Model, "scale", 3.0)


def a_nearer_attribute_of_an_object() -> Any:
    class Base:
        scale = 2.0

    class Scale(Base):
        pass

    scale = Scale()
    return lambda x: x * scale.scale, lambda: setattr(Scale, "scale", 3.0)


def a_nearer_attribute_that_goes() -> Any:
    class Base:
        scale = 2.0

    class Scale(Base):
        scale = 3.0

    scale = Scale()
    return lambda x: x * scale.scale, lambda: delattr(Scale, "scale")


def an_attribute_that_goes() -> Any:
    class Scale:
        scale = 3.0

    scale = Scale()
    return lambda x: x * getattr(scale, "scale", 2.0), lambda: delattr(Scale, "scale")


def other_bases() -> Any:
    class Mark:
        pass

    class Plain:
        pass

    class Marked(Mark):
        pass

    class Value(Plain):
        pass

    value = Value()
    return lambda x: x * 2 if isinstance(value, Mark) else x * 3, lambda: setattr(Value, "__bases__", (Marked,))


def a_length() -> Any:
    class Value:
        __len__ = always(2)

    value = Value()
    return lambda x: x * len(value), lambda: setattr(Value, "__len__", always(3))


def an_equality() -> Any:
    class Value:
        __eq__ = always(True)
        __hash__ = object.__hash__

    value = Value()
    return lambda x: x * 2 if value == 1 else x * 3, lambda: setattr(Value, "__eq__", always(False))


def a_truth_value_that_comes() -> Any:
    class Value:
        pass

    value = Value()
    return lambda x: x * 2 if value else x * 3, lambda: setattr(Value, "__bool__", always(False))


def an_attribute_of_a_metaclass() -> Any:
    class Meta(type):
        scale = 2.0

    class Value(metaclass=Meta):
        pass

    return lambda x: x * Value.scale, lambda: setattr(Meta, "scale", 3.0)


def an_attribute_that_a_metaclass_reads() -> Any:
    class Meta(type):
        is_all = False

        def __instancecheck__(cls, _: object) -> bool:
            return cls.is_all

    class Known(metaclass=Meta):
        pass

    class Value:
        pass

    value = Value()
    return lambda x: x * 3 if isinstance(value, Known) else x * 2, lambda: setattr(Meta, "is_all", True)


def a_layer_of_torch() -> Any:
    layer = nn.ReLU()
    return lambda x: layer(x), lambda: setattr(nn.ReLU, "forward", thrice)


CASES = [value for name, value in list(globals().items()) if name.startswith(("a_", "an_", "other_"))]


@pytest.mark.parametrize("case", CASES)
def test_what_changed_on_a_class_is_read_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.ReLU, "forward", nn.ReLU.forward)  # is put back

    def step(compile: Any, x: Tensor) -> Any:
        function, change = case()
        run, before = compile(function), nn.ReLU.forward
        gradients = list(torch.autograd.grad(run(x).sum(), x))
        change()
        gradients += torch.autograd.grad(run(x).sum(), x)
        nn.ReLU.forward = before  # type: ignore[method-assign]
        return gradients

    report = check(step, leaf(3))
    assert report is not None


def test_the_functions_of_these_tests_are_changed() -> None:
    """Each case shows a change: its two gradients differ in eager."""
    for case in CASES:
        if case is not a_layer_of_torch:
            function, change = case()
            x = torch.ones(3, requires_grad=True)
            (before,) = torch.autograd.grad(function(x).sum(), x)
            change()
            (after,) = torch.autograd.grad(function(x).sum(), x)
            assert not same_bits(before, after), case


class Counted(nn.Module):
    calls = 0
    scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def num_graphs() -> int:
    return gradc.counters["stats"]["unique_graphs"]


@pytest.mark.usefixtures("nothing_captured")
def test_a_count_on_a_class_captures_nothing_anew() -> None:
    model = Counted()
    function = gradc.compile(model)
    for _ in range(20):
        Counted.calls += 1
        Counted.other = Counted.calls  # type: ignore[attr-defined]
        Counted.notify = lambda self: None  # type: ignore[attr-defined]
        function(torch.ones(3))
    assert num_graphs() == 1


@pytest.mark.usefixtures("nothing_captured")
def test_a_function_that_is_made_again_of_the_same_code_captures_nothing_anew() -> None:
    class Model(nn.Module):
        helper = times(2.0)

        def forward(self, x: Tensor) -> Tensor:
            helper: Tensor = self.helper(x)
            return helper

    function = gradc.compile(Model())
    for _ in range(4):
        Model.helper = times(2.0)
        function(torch.ones(3))
    assert num_graphs() == 1


@pytest.mark.usefixtures("nothing_captured")
def test_a_method_that_each_call_finds_replaced_ends_in_eager_and_is_counted() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x) * 2  # type: ignore[no-any-return, operator]

    function = gradc.compile(Model())
    for i in range(12):
        scope: dict[str, Any] = {}
        exec(f"def helper(self, x): return x * {i}", scope)
        Model.helper = scope["helper"]  # type: ignore[assignment]
        assert function(torch.ones(3)).tolist() == [2 * i] * 3
    assert num_graphs() == 8
    assert dict(gradc.counters["uncompiled"]) == {"recompile limit": 4}


@pytest.mark.parametrize("compare", Compare)
def test_classes_are_not_kept_alive_by_what_looks_at_them(compare: Compare) -> None:
    class Value:
        scale = 2.0

        def method(self) -> str:
            return super().__repr__()  # which holds the class

    held = Held(frozenset({"scale", "method"}))
    guard = native.same_definitions(lambda cls: [] if held.is_in(cls) else None)
    held.add(Value, compare)
    if guard is not None:
        guard.add(Value)
    reference = weakref.ref(Value)
    del Value
    gc.collect()
    assert reference() is None
    assert guard is None or guard.ask(None)
    assert held.is_in_all()


def test_all_classes_are_looked_at_where_nothing_native_does() -> None:
    class Base:
        scale = 2.0

    class Value(Base):
        pass

    held = Held(frozenset({"scale"}))
    held.add(Value, Compare.CODE)
    assert held.is_in_all()
    Base.scale = 3.0
    assert held.is_in_all()
    Value.scale = 3.0
    assert not held.is_in_all()
