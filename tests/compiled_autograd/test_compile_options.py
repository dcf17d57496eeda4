"""``gradc.compile(...)`` without a target carries its options as a value, which compiled autograd reads."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

import gradc
from gradc.bits import same_bits
from gradc.compiled_autograd.compilers import options_of, takes_symbols
from gradc.options import CompileOptions


def test_the_decorator_carries_what_was_asked() -> None:
    decorator = gradc.compile(backend="eager", fullgraph=True, dynamic=False)
    assert options_of(decorator) == CompileOptions("eager", fullgraph=True, dynamic=False)
    assert options_of(gradc.compile()) == CompileOptions()


def test_equal_wishes_are_equal_values() -> None:
    assert gradc.compile(backend="eager") == gradc.compile(backend="eager")
    assert len({CompileOptions(), CompileOptions("replay"), CompileOptions(dynamic=True)}) == 2


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CompileOptions().backend = "eager"  # type: ignore[misc]


def test_the_decorator_compiles() -> None:
    function = gradc.compile(backend="eager", dynamic=False)(torch.sin)
    x = torch.randn(3)
    assert same_bits(function(x), x.sin())
    assert options_of(gradc.compile(backend="eager")(fullgraph=True)) == CompileOptions("eager", fullgraph=True)


def test_another_compiler_has_no_options() -> None:
    for compiler in (None, torch.compile, torch.compile(backend="eager"), functools.partial(gradc.compile, backend="eager")):
        assert options_of(compiler) is None
    assert takes_symbols(None)
    assert takes_symbols(gradc.compile(backend="inductor"))
    assert not takes_symbols(torch.compile)
