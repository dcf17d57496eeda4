"""Code and defaults of a function are replaced in place, as a hot reload does: what was compiled of it is compiled anew."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.torch_private.classes import Written

Way = tuple[Callable[[Tensor], Tensor], Any]  # what is compiled, and the function behind it that is changed


def method() -> Any:
    def times(self: Any, x: Tensor, k: int = 1) -> Tensor:
        return x * 2 * k

    return times


def function() -> Any:
    return lambda x, k=1: x * 2 * k


def owner(**attributes: Any) -> Any:
    return type("Owner", (), attributes)


def bound() -> Way:
    cls = owner(m=method())
    own = cls()
    return lambda x: own.m(x), cls.m


def bound_and_kept() -> Way:
    cls = owner(m=method())
    kept = cls().m
    return lambda x: kept(x), cls.m


def of_the_class() -> Way:
    cls = owner(m=method())
    own = cls()
    return lambda x: cls.m(own, x), cls.m


def inherited() -> Way:
    base = owner(m=method())
    own = type("Derived", (base,), {})()
    return lambda x: own.m(x), base.m


def by_super() -> Way:
    class Base:
        def __init__(self, x: Tensor, k: int = 1) -> None:
            self.y = x * 2 * k

    class Derived(Base):
        def __init__(self, x: Tensor) -> None:
            super().__init__(x)

    return lambda x: Derived(x).y, Base.__init__


def of_what_is_made_inside() -> Way:
    cls = owner(m=method())
    return lambda x: cls().m(x), cls.m


def helper_of_a_module() -> Way:
    class Model(nn.Module):
        helper = method()

        def forward(self, x: Tensor) -> Tensor:
            return self.helper(x)  # type: ignore[no-any-return]

    return Model(), Model.helper


def forward_of_a_module_inside() -> Way:
    class Part(nn.Module):
        forward = method()

    return nn.Sequential(Part(), Part()), Part.forward


def classmethod_() -> Way:
    changed = method()
    cls = owner(m=classmethod(changed))
    return lambda x: cls.m(x), changed


def staticmethod_() -> Way:
    changed = function()
    own = owner(m=staticmethod(changed))()
    return lambda x: own.m(x), changed


def property_() -> Way:
    def changed(self: Any, k: int = 1) -> int:
        return 2 * k

    own = owner(m=property(changed))()
    return lambda x: x * own.m, changed


def call() -> Way:
    cls = owner(__call__=method())
    own = cls()
    return lambda x: own(x), cls.__call__


def operator_() -> Way:
    cls = owner(__getitem__=method())
    own = cls()
    return lambda x: own[x], cls.__getitem__


def context_manager() -> Way:
    def changed(self: Any, k: int = 1) -> int:
        return 2 * k

    cls = owner(__enter__=changed, __exit__=lambda self, *_: None)

    def scaled(x: Tensor) -> Tensor:
        with cls() as k:
            return x * k

    return scaled, changed


def comparison() -> Way:
    def changed(self: Any, other: object, k: int = 1) -> bool:
        return other == 2 * k

    own = owner(__eq__=changed)()
    return lambda x: x * (2 if own == 2 else 9), changed


def metaclass() -> Way:
    changed = method()
    cls = type("Meta", (type,), {"m": changed})("Owner", (), {})
    return lambda x: cls.m(x), changed


def partial_of_a_method() -> Way:
    cls = owner(m=method())
    partial = functools.partial(cls().m)
    return lambda x: partial(x), cls.m


def closure_of_a_method() -> Way:
    changed = function()
    own = owner(m=lambda self, x: changed(x))()
    return lambda x: own.m(x), changed


def decorated() -> Way:
    def unchanged(f: Any) -> Any:
        return functools.wraps(f)(lambda *args: f(*args))

    changed = method()
    own = owner(m=unchanged(changed))()
    return lambda x: own.m(x), changed


def of_a_named_tuple() -> Way:
    class Named(namedtuple("Named", "a")):  # type: ignore[misc]
        m = method()

    return lambda x: Named(1).m(x), Named.m


def generator() -> Way:
    def changed(self: Any, x: Tensor, k: int = 1) -> Iterator[Tensor]:
        yield x * 2 * k

    own = owner(m=changed)()
    return lambda x: next(iter(own.m(x))), changed


def hook_of_a_module() -> Way:
    class Hook:
        def run(self, module: Any, args: Any, out: Tensor, k: int = 1) -> Tensor:
            return out * 2 * k

    model = nn.Identity()
    model.register_forward_hook(Hook().run)
    return model, Hook.run


def mapped() -> Way:
    cls = owner(m=method())
    own = cls()
    return lambda x: torch.func.vmap(own.m)(x), cls.m


def made_a_method() -> Way:
    changed, own = method(), owner()()
    return lambda x: types.MethodType(changed, own)(x), changed


WAYS = [
    bound, bound_and_kept, of_the_class, inherited, by_super, of_what_is_made_inside, helper_of_a_module,
    forward_of_a_module_inside, classmethod_, staticmethod_, property_, call, operator_, context_manager, comparison, metaclass,
    partial_of_a_method, closure_of_a_method, decorated, of_a_named_tuple, generator, hook_of_a_module, mapped, made_a_method,
]  # fmt: skip


def code(changed: Any) -> None:
    constants = (9 if type(value) is int and value == 2 else value for value in changed.__code__.co_consts)
    changed.__code__ = changed.__code__.replace(co_consts=tuple(constants))


def defaults(changed: Any) -> None:
    changed.__defaults__ = (9,)


def defaults_by_keyword(changed: Any) -> None:
    changed.__kwdefaults__["k"] = 9


def take_by_keyword(changed: Any) -> None:
    changed.__code__ = changed.__code__.replace(co_argcount=changed.__code__.co_argcount - 1, co_kwonlyargcount=1)
    changed.__defaults__, changed.__kwdefaults__ = None, {"k": 1}


def as_eager(way: Callable[[], Way], change: Callable[[Any], Any]) -> None:
    function, changed = way()
    if change is defaults_by_keyword:
        take_by_keyword(changed)
    compiled, x = gradc.compile(function), torch.ones(2)
    assert same_bits(before := function(x), compiled(x))
    change(changed)
    assert not same_bits(before, after := function(x))
    assert same_bits(after, compiled(x))
    assert not gradc.counters["fallbacks"]


@pytest.mark.usefixtures("nothing_captured")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_code_that_is_replaced(way: Callable[[], Way]) -> None:
    as_eager(way, code)


@pytest.mark.usefixtures("nothing_captured")
@pytest.mark.parametrize("way", [bound, by_super, of_what_is_made_inside, context_manager, comparison, of_a_named_tuple])
@pytest.mark.parametrize("change", [defaults, defaults_by_keyword])
def test_defaults_that_are_replaced(way: Callable[[], Way], change: Callable[[Any], Any]) -> None:
    as_eager(way, change)


@pytest.mark.usefixtures("nothing_captured")
def test_code_with_other_parameters() -> None:
    """Dynamo keeps the names of a function's parameters."""

    def first(self: Any, x: Tensor, scale: float = 2.0) -> Tensor:
        return x * scale

    def second(self: Any, shift: Tensor, x: float = 3.0) -> Tensor:
        return shift + x

    cls = owner(m=first)
    own = cls()
    compiled, x = gradc.compile(lambda x: own.m(x)), torch.ones(2)
    assert compiled(x).tolist() == [2, 2]
    first.__code__ = second.__code__
    assert compiled(x).tolist() == own.m(x).tolist() == [3, 3]


@pytest.mark.usefixtures("nothing_captured")
def test_a_method_replaced_by_another_of_the_same_code_which_is_replaced_then() -> None:
    cls = owner(m=method())
    own = cls()
    compiled, x = gradc.compile(lambda x: own.m(x)), torch.ones(2)
    assert compiled(x).tolist() == [2, 2]
    cls.m = method()
    assert compiled(x).tolist() == [2, 2]
    code(cls.m)
    assert compiled(x).tolist() == own.m(x).tolist() == [9, 9]


@pytest.mark.usefixtures("nothing_captured")
def test_nothing_is_compiled_again_while_code_stays() -> None:
    cls = owner(m=method())
    own = cls()
    compiled = gradc.compile(lambda x: own.m(x))
    for _ in range(3):
        compiled(torch.ones(2))
        cls.m.__doc__ = "another text"
        cls.m.__code__ = cls.m.__code__
    assert gradc.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("guard", ["native", "in Python"])
def test_functions_are_not_kept_alive_by_what_looks_at_them(guard: str) -> None:
    kept = nn.Linear(1, 1)

    def looked_at(module: Any = kept, *, other: Any = kept) -> None:
        pass

    if guard == "native" and not native.is_built():
        pytest.skip("needs the extension")
    native_guard = native.same_definitions(lambda _: []) if guard == "native" else None
    written: Any = native_guard or Written()
    written.add_function(looked_at, True)
    ask: Any = written.are_same if native_guard is None else lambda: native_guard.ask(None)
    assert ask()
    looked_at.__defaults__ = (nn.Linear(1, 1),)
    assert not ask()
    references = weakref.ref(looked_at), weakref.ref(kept)
    del looked_at, kept
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert ask()
