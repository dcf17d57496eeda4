"""What a compilation raises is not the user's error: the call runs eagerly, counted, and is tried again where that may help."""

import contextlib
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map

import gradc
from gradc.bits import same_bits
from gradc.errors import InternalError
from gradc.frontend import compile as compiling
from gradc.journal import Fallback, listening
from tests.compilers import GRADC
from tests.oracle import check
from tests.oracle import leaf as oracle_leaf

OUT_OF_MEMORY = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried")
PASSING = [MemoryError(), RecursionError(), torch.OutOfMemoryError("CUDA out of memory"), OUT_OF_MEMORY]
OTHERS = [AttributeError("no next_functions"), KeyError("x"), AssertionError(), RuntimeError("not here"), ZeroDivisionError()]


@pytest.fixture(autouse=True)
def _fresh():
    GRADC.reset()
    yield
    GRADC.reset()


def function(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp().sum()


def leaf() -> torch.Tensor:
    return torch.arange(4.0, requires_grad=True)


def raising(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def assert_right(compiled: Any, is_region: bool) -> None:
    x, y = leaf(), leaf()
    found, expected = compiled(x), function(y)
    assert same_bits(found, expected) and (type(found.grad_fn) is not type(expected.grad_fn)) == is_region
    found.backward()
    expected.backward()
    assert same_bits(x.grad, y.grad)


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_an_error_that_says_nothing_about_the_program_is_not_kept(error, monkeypatch):
    compiled = gradc.compile(function)
    with monkeypatch.context() as broken:
        broken.setattr(compiling, "record_with_floats", raising(error))
        for number in (1, 2, 3):
            assert_right(compiled, is_region=False)
            assert gradc.counters["fallbacks"] == {"tracing failed": number}
    assert_right(compiled, is_region=True)
    assert gradc.counters["fallbacks"] == {"tracing failed": 3}


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_nor_is_it_under_fullgraph_where_it_is_raised(error, monkeypatch):
    compiled = gradc.compile(function, fullgraph=True)
    with monkeypatch.context() as broken, pytest.raises(Exception, match=type(error).__name__):
        broken.setattr(compiling, "record_with_floats", raising(error))
        compiled(leaf())
    assert_right(compiled, is_region=True)


def test_too_deep_a_recursion_at_the_first_call_is_not_kept():
    compiled, x = gradc.compile(function), leaf()

    def deeper() -> None:
        """Calls at the greatest depth that lets it begin."""
        try:
            deeper()
        except RecursionError:
            with contextlib.suppress(RecursionError):
                compiled(x)
                return
            raise

    with contextlib.suppress(RecursionError):
        deeper()
    assert_right(compiled, is_region=True)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_any_other_error_of_tracing_is_a_counted_fallback(error, monkeypatch):
    monkeypatch.setattr(compiling, "record_with_floats", raising(error))
    assert_right(gradc.compile(function), is_region=False)
    assert set(gradc.counters["fallbacks"]) == {f"tracing raised {type(error).__name__}"}


def test_addresses_in_an_error_do_not_make_two_reasons_of_one(monkeypatch):
    monkeypatch.setattr(compiling, "record_with_floats", raising(ValueError(f"no rule for {object()} and {len}")))
    with listening() as events:
        assert_right(gradc.compile(function), is_region=False)
    (told,) = {event.what for event in events if isinstance(event.what, Fallback)}
    assert told.detail == "no rule for <object object> and <built-in function len>"


def test_an_error_before_tracing_begins_is_a_counted_fallback(monkeypatch):
    monkeypatch.setattr(compiling, "examples_of", raising(KeyError("example_value")))
    assert_right(gradc.compile(function), is_region=False)
    assert set(gradc.counters["fallbacks"]) == {"tracing raised KeyError"}


def test_a_fault_of_gradc_s_own_is_told(monkeypatch):
    monkeypatch.setattr(compiling, "record_with_floats", raising(InternalError("a pass broke the Program")))
    with pytest.raises(Exception, match="a pass broke the Program"):
        gradc.compile(function)(leaf())


class Wrapper(torch.Tensor):
    """A subclass around a tensor, whose ops return plain tensors."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return op(*tree_map(lambda arg: arg.inner if isinstance(arg, cls) else arg, args), **(kwargs or {}))


class FlatWrapper(Wrapper):
    """One that Dynamo can take apart."""

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors, meta, size, stride):
        return FlatWrapper(tensors["inner"])


@pytest.mark.parametrize("wrapper", [Wrapper, FlatWrapper])
@pytest.mark.parametrize("is_made_inside", [False, True])
def test_a_wrapper_whose_ops_return_plain_tensors(wrapper, is_made_inside):
    def step(compile, x, w):
        f = compile(lambda x, w: ((wrapper(x) if is_made_inside else x) * w).sin().sum())
        y = f(x if is_made_inside else wrapper(x), w)
        y.backward()
        return y

    check(step, oracle_leaf(4), oracle_leaf(4), allow_fallback=True)


def test_an_index_that_is_out_of_range_is_eagers_error() -> None:
    """Dynamo's own list raised, in its own words, and past the user's except."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        def asked(x: torch.Tensor) -> Any:
            try:
                return x * x.shape[0]
            except IndexError as error:
                return x * 2, str(error)

        return compile(asked)(x), compile(lambda x: x * (x.sin() * 2).shape[1])(x)

    check(step, lambda: torch.tensor(1.0), allow_fallback=True, compare_messages=True)


def too_deep(run: Any) -> None:
    """Calls it at the greatest depth that lets it begin."""

    def deeper() -> None:
        try:
            deeper()
        except RecursionError:
            with contextlib.suppress(RecursionError):
                run()
                return
            raise

    with contextlib.suppress(RecursionError):
        deeper()


def without_guards() -> None:
    """What such a recursion can leave on Python 3.12, where it ended on the way out of a call on fake tensors."""
    ShapeEnv()._suppress_guards_enter()


def half(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[: int(n / 2)].sin() / 3.0


@pytest.mark.parametrize("where", ["before all", "before backward"])
@pytest.mark.parametrize("how", ["a recursion", "guards that are off"])
def test_sizes_that_decide_are_guarded_behind_an_error(how: str, where: str) -> None:
    """A gradient was summed up where a size had been 1 when it was traced: no guard said so any more."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        f, call = compile(function), compile(half)
        y = f(x)
        spoil = without_guards if how == "guards that are off" else lambda: too_deep(lambda: y.backward(retain_graph=True))
        if where == "before all":
            spoil()
        outs = [call(x, n) for n in (2, 3, 4, 6, 8)]
        if where == "before backward":
            spoil()
        x.grad = None
        return outs, [torch.autograd.grad(out.sum(), x) for out in outs]

    check(step, oracle_leaf(8), allow_fallback=True)
