"""The cache of backwards: bounded, and each entry made once; what it keeps for whom."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradc
from gradc.backward import cache
from gradc.backward.bounded_cache import BoundedCache
from gradc.backward.cache import MAX_COMPILED, BackwardCache
from gradc.backward.key import nominal_key
from gradc.backward.specialized import MAX_SIZES, CutTape, Specialized
from gradc.backward.trace import Backward, trace_backward
from gradc.bits import same_bits
from gradc.errors import UnsupportedError
from gradc.ir.sizes import Sizes
from gradc.nodes.backward_call import BackwardCall
from tests.backward.test_key import region_of
from tests.oracle import leaf
from tests.threads import in_threads

grad = torch.autograd.grad


# ---- the store


def test_the_oldest_entry_goes_first():
    kept: BoundedCache[int, int] = BoundedCache(3, threading.RLock())
    for number in (1, 2, 3, 1, 4):
        kept.get(number, lambda number=number: number * 10)
    assert kept.items() == [(2, 20), (3, 30), (4, 40)]


def test_the_store_stays_bounded_after_thousands_of_keys():
    kept: BoundedCache[int, int] = BoundedCache(16, threading.RLock())
    for number in range(5000):
        assert kept.get(number, lambda number=number: number) == number
    assert len(kept.items()) == 16


def test_what_raised_is_not_kept():
    kept: BoundedCache[int, int] = BoundedCache(3, threading.RLock())
    with pytest.raises(MemoryError):
        kept.get(1, raising(MemoryError()))
    assert kept.items() == [] and kept.get(1, lambda: 10) == 10


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_eight_threads_make_one_entry():
    kept: BoundedCache[int, object] = BoundedCache(3, threading.RLock())
    made: list[object] = []

    def make() -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    assert set(in_threads(8, lambda: kept.get(1, make))) == set(made) and len(made) == 1


def test_who_waited_for_what_raised_tries_again():
    kept: BoundedCache[int, int] = BoundedCache(3, threading.RLock())
    attempts: list[int] = []

    def make() -> int:
        attempts.append(1)
        time.sleep(0.05)
        if len(attempts) == 1:
            raise MemoryError
        return 10

    def ask() -> int:
        try:
            return kept.get(1, make)
        except MemoryError:
            return -1

    assert sorted(in_threads(4, ask)) == [-1, 10, 10, 10] and len(attempts) == 2


def test_threads_with_keys_of_their_own_stay_in_bounds():
    kept: BoundedCache[tuple[int, int], int] = BoundedCache(8, threading.RLock())

    def many() -> bool:
        me = threading.get_ident()
        return all(kept.get((me, number), lambda number=number: number) == number for number in range(500))

    assert all(in_threads(8, many)) and len(kept.items()) == 8


# ---- the cache of a region


def cache_of(function: Any, *inputs: torch.Tensor, **options: Any) -> BackwardCache:
    return region_of(function, *inputs, **options)[1].backwards


def call_of(backwards: BackwardCache, tangent: torch.Tensor, *saved: torch.Tensor) -> BackwardCall:
    return BackwardCall(backwards.segments[0], backwards.sizes_of([]), saved, [tangent], [True])


def test_the_backwards_of_a_segment_are_bounded(monkeypatch):
    backwards = cache_of(lambda x: x.sin(), leaf(3)())
    program = SimpleNamespace(versions=())
    nothing = cache._Compiled(Backward(program, (), (), False, ()), lambda values: [None])  # type: ignore[arg-type]
    monkeypatch.setattr(BackwardCache, "_compile", lambda *_: nothing)
    with torch.no_grad():
        for size in range(2000):
            assert backwards.grads(call_of(backwards, torch.empty(size), torch.ones(3))) == [None]
    assert len(backwards._compiled[0].items()) == MAX_COMPILED


def test_the_derivatives_of_a_region_are_bounded(monkeypatch):
    backwards = cache_of(lambda x: x.sin(), leaf(3)())
    monkeypatch.setattr(BackwardCache, "_derive_or_refuse", lambda *_: lambda *inputs: [None])
    with torch.enable_grad():
        for size in range(2000):
            assert backwards.grads(call_of(backwards, torch.empty(size), leaf(3)())) == [None]
    assert len(backwards._derivatives.items()) == MAX_COMPILED


def test_tapes_of_plain_sizes_are_bounded():
    symbolic = SimpleNamespace(symints={"s0": 1}, lock=threading.RLock())
    retraced: list[Sizes] = []
    plain = Specialized(CutTape(symbolic, ()), retraced.append, lambda tape: (), "region 0")  # type: ignore[arg-type]
    for _ in range(2):
        for number in range(1000):
            assert plain.at(Sizes({"s0": number})) is plain.at(Sizes({"s0": number}))
    assert len(plain._of_sizes.items()) == MAX_SIZES and len(retraced) == 2000


def test_a_tape_without_symbols_is_its_own():
    backwards = cache_of(lambda x: x.sin(), leaf(3)())
    assert backwards._specialized.at(Sizes({})).tape is backwards.tape


def test_a_tape_that_cannot_be_recorded_again():
    symbolic = SimpleNamespace(symints={"s0": 1}, lock=threading.RLock())
    plain = Specialized(CutTape(symbolic, ()), None, lambda tape: (), "region 0")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="region 0"):
        plain.at(Sizes({"s0": 2}))


@pytest.mark.parametrize("create_graph", [False, True])
def test_eight_threads_compile_a_backward_once(create_graph, monkeypatch):
    f = gradc.compile(lambda x: x.sin().exp())
    x = leaf(8)()
    expected = grad(x.sin().exp().sum(), x)[0]
    outputs = [f(x) for _ in range(8)]
    traced = []
    name = "record_derivative" if create_graph else "trace_backward"
    original = getattr(cache, name)

    def slowly(*args: Any) -> Any:
        traced.append(args)
        time.sleep(0.1)
        return original(*args)

    monkeypatch.setattr(cache, name, slowly)
    found = in_threads(8, lambda: grad(outputs.pop(), x, torch.ones(8), create_graph=create_graph)[0])
    assert len(traced) == 1 and all(same_bits(gradient, expected) for gradient in found)


def test_what_is_refused_is_traced_once_and_told_each_time(monkeypatch):
    backwards = cache_of(lambda x: x.sin(), leaf(3)())
    key = nominal_key(backwards.tape, backwards.segments[0], gradc.ambient.NO_AUTOCAST)
    traced = []

    def refuse(*args: Any) -> Any:
        traced.append(args)
        raise ValueError("not today\nnor tomorrow")

    monkeypatch.setattr(cache, "trace_backward", refuse)
    for _ in range(3):
        with pytest.raises(UnsupportedError, match="backward that cannot be traced: ValueError: not today$") as raised:
            backwards._lookup(backwards.segments[0], key)
        assert "test_cache.py" in raised.value.where and "x.sin()" in raised.value.where
    assert len(traced) == 1


def test_the_nominal_backward_is_the_one_that_training_takes(monkeypatch):
    """What a region compiles ahead serves the first call."""
    x = leaf(3)()
    y, region = region_of(lambda x: x.sin(), x, dynamic=True, backend="eager")
    backwards = region.backwards
    monkeypatch.setattr(cache, "trace_backward", raising(AssertionError("compiled again")))
    assert same_bits(grad(y, x, torch.ones(3))[0], x.cos())
    assert backwards.traced(0, [torch.ones(3)], [True]) is not None
    assert backwards.traced(0, [torch.ones(3)[:2]], [False]) is None


def test_a_trace_is_what_the_key_says():
    backwards = cache_of(lambda x: (x.sin(), x.cos()), leaf(3)())
    segment = backwards.segments[0]
    key = nominal_key(backwards.tape, segment, gradc.ambient.NO_AUTOCAST)
    whole = trace_backward(backwards.tape, segment, key, "whole")
    unwanted = dataclasses.replace(key, needed=tuple(False for _ in key.needed))
    nothing = trace_backward(backwards.tape, segment, unwanted, "nothing")
    assert whole.saved and whole.program.instructions
    assert not nothing.saved and not nothing.program.instructions
