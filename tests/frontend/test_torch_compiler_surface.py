"""The public surface of torch.compiler, and of torch._dynamo: each does under gradc what it says, or what eager does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import decorators

import gradc
from tests.oracle import check, leaf

pytestmark = pytest.mark.usefixtures("nothing_captured")


OF_GUARDS = {name for name in torch.compiler.__all__ if name.endswith("_unsafe")}
TESTED = {
    "compile", "config", "assume_constant_result", "reset", "allow_in_graph", "substitute_in_graph", "list_backends", "disable",
    "set_default_backend", "get_default_backend", "set_stance", "set_enable_guard_collectives", "cudagraph_mark_step_begin",
    "load_compiled_function", "wrap_numpy", "is_compiling", "is_dynamo_compiling", "is_exporting", "save_cache_artifacts",
    "load_cache_artifacts", "nested_compile_region",
}  # fmt: skip


def is_compiled(y: Tensor) -> bool:
    return type(y.grad_fn).__name__ != "MulBackward0"


def twice() -> Any:
    return gradc.compile(lambda x: x * 2)


def an(size: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(1, size + 1, dtype=dtype).requires_grad_()


def values(compile: Any, function: Callable[..., Any], *sizes: int) -> list[list[float]]:
    compiled = compile(function)
    return [compiled(an(size)).tolist() for size in sizes or (3, 3)]


def test_nothing_of_the_surface_is_new() -> None:
    """A name that is not among these wants a test here."""
    if torch.__version__.startswith("2.13"):
        assert set(torch.compiler.__all__) - OF_GUARDS == TESTED


# set_stance


def test_stance_force_eager() -> None:
    compiled = twice()
    assert is_compiled(compiled(an()))
    with torch.compiler.set_stance("force_eager"):
        assert not is_compiled(compiled(an()))
        assert not is_compiled(twice()(an()))
    assert is_compiled(compiled(an()))


def test_stance_force_eager_of_a_module() -> None:
    compiled = gradc.compile(nn.Linear(3, 3))
    compiled(an())
    with torch.compiler.set_stance("force_eager"):
        assert type(compiled(an()).grad_fn).__name__ in ("AddmmBackward0", "ViewBackward0")


def test_stance_eager_on_recompile() -> None:
    compiled = twice()
    compiled(an())
    with torch.compiler.set_stance("eager_on_recompile"):
        assert is_compiled(compiled(an()))
        assert not is_compiled(compiled(an(dtype=torch.float64)))


def test_stance_fail_on_recompile() -> None:
    compiled = twice()
    compiled(an())
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(an())
        with pytest.raises(RuntimeError, match="Detected recompile"):
            compiled(an(dtype=torch.float64))


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_stances_that_begin_otherwise(stance: str) -> None:
    """A gradient that nobody asked for is None at each call."""
    weight, unused = an(), an()

    def step(compile: Any) -> list[Any]:
        compiled = compile(lambda x: (x * weight, x * unused))
        found = []
        for size in (1, 3, 3):
            weight.grad = None
            compiled(an(size))[0].sum().backward()
            found += [weight.grad, unused.grad]
        return found

    with torch.compiler.set_stance(stance):
        assert str(step(gradc.compile)) == str(step(lambda function: function))


def test_stance_with_another_backend() -> None:
    """Who forces a backend gets that one."""
    graphs: list[Any] = []
    compiled = twice()
    with torch.compiler.set_stance("default", force_backend=lambda graph, _: graphs.append(graph) or graph):
        assert compiled(an()).tolist() == [2, 4, 6]
    assert len(graphs) == 1


def test_stance_without_guards() -> None:
    compiled = twice()
    compiled(an())
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        assert compiled(an()).tolist() == [2, 4, 6]


def test_stance_set_inside_is_an_error() -> None:
    def inside(x: Tensor) -> Tensor:
        with torch.compiler.set_stance("force_eager"):
            return x * 2

    with pytest.raises((AssertionError, RuntimeError), match="set_stance"):
        gradc.compile(inside)(an())


# what is marked


def opaque_that_reads_state(mark: Any) -> Any:
    state = [2.0]

    @mark
    def scaled(x: Tensor) -> Tensor:
        return x * state[0]

    def step(compile: Any) -> list[Any]:
        compiled = compile(lambda x: scaled(x) + 1)
        found = []
        for state[0] in (2.0, 9.0):
            y = compiled(x := an())
            y.sum().backward()
            found.append((y.tolist(), x.grad.tolist()))  # type: ignore[union-attr]
        return found

    return step


def opaque_that_counts(mark: Any) -> Any:
    calls: list[int] = []

    @mark
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x * random.random()

    def step(compile: Any) -> list[Any]:
        calls.clear()
        random.seed(0)
        compiled = compile(lambda x: counted(x) + 1)
        return [compiled(an()).tolist() for _ in range(3)] + [len(calls)]

    return step


def opaque_that_branches(mark: Any) -> Any:
    @mark
    def chosen(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3

    return lambda compile: [compile(lambda x: chosen(sign * x) + 1)(an()).tolist() for sign in (1, -1)]


@pytest.mark.parametrize("mark", [torch.compiler.allow_in_graph, torch._dynamo.nonstrict_trace])
@pytest.mark.parametrize("make", [opaque_that_reads_state, opaque_that_counts, opaque_that_branches])
def test_opaque_functions(make: Any, mark: Any) -> None:
    step = make(mark)
    assert step(gradc.compile) == step(lambda function: function)
    assert gradc.counters["uncompiled"]["gradc: opaque function"] > 0


def test_an_opaque_function_stays_in_the_graph_where_that_has_to_be_one() -> None:
    @torch.compiler.allow_in_graph
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    assert gradc.compile(lambda x: doubled(x) + 1, fullgraph=True)(an()).tolist() == [3, 5, 7]


def test_an_opaque_autograd_function() -> None:
    state = [0.0]

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * state[0]

    torch.compiler.allow_in_graph(Scaled)
    compiled = gradc.compile(lambda x: Scaled.apply(x) + 1)
    for state[0] in (5.0, 7.0):
        compiled(x := an()).sum().backward()
        assert x.grad.tolist() == [state[0]] * 3


def test_substitute_in_graph() -> None:
    def original(x: Tensor) -> Tensor:
        return x * 2

    substitute = torch.compiler.substitute_in_graph(original, skip_signature_check=True)
    substitute(lambda x: x * 2)
    assert values(gradc.compile, lambda x: original(x) + 1) == [[3, 5, 7]] * 2


def test_assume_constant_result() -> None:
    calls: list[int] = []

    @torch.compiler.assume_constant_result
    def constant() -> float:
        calls.append(1)
        return 2.0

    assert values(gradc.compile, lambda x: x * constant()) == [[2, 4, 6]] * 2
    assert len(calls) == 1


@pytest.mark.parametrize("recursive", [True, False])
def test_disable(recursive: bool) -> None:
    def inner(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3

    disabled = torch.compiler.disable(lambda x: inner(x) + 1, recursive=recursive)
    compiled = gradc.compile(lambda x: disabled(x) * 1)
    assert [compiled(x).tolist() for x in (an(), -an())] == [[3, 5, 7], [-2, -5, -8]]
    assert gradc.counters["uncompiled"]


def test_disable_of_what_gradc_compiled() -> None:
    assert not is_compiled(torch.compiler.disable(twice())(an()))


def test_questions_whether_it_compiles() -> None:
    questions = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch.compiler.is_exporting
    assert values(gradc.compile, lambda x: x * (2 if any(ask() for ask in questions) else 1)) == [[1, 2, 3]] * 2


# sizes


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic, torch._dynamo.mark_static])
def test_marks_of_sizes(mark: Any) -> None:
    compiled = gradc.compile(lambda x: x * x.shape[0])
    for size in (3, 4, 1, 0, 5):
        mark(x := an(size), 0)
        assert compiled(x).tolist() == (x * size).tolist()
    assert not gradc.counters["fallbacks"]


def test_a_size_that_is_marked_and_decides() -> None:
    compiled = gradc.compile(lambda x: x * 2 if x.shape[0] == 3 else x)
    torch._dynamo.mark_dynamic(x := an(), 0)
    with pytest.raises(Exception, match="Constraints violated"):  # as torch says of the mark
        compiled(x)
    torch._dynamo.maybe_mark_dynamic(x := an(), 0)
    assert compiled(x).tolist() == [2, 4, 6]


def test_unbacked_sizes() -> None:
    compiled = gradc.compile(lambda x: x * 2 if x.shape[0] > 3 else x)
    for size in (3, 4):
        decorators.mark_unbacked(x := an(size), 0)
        assert compiled(x).tolist() == (x * (1 + (size > 3))).tolist()


def test_mark_static_address() -> None:
    buffer = torch.ones(3)
    torch._dynamo.mark_static_address(buffer)
    compiled = gradc.compile(lambda x: x * buffer)
    assert compiled(an()).tolist() == [1, 2, 3]
    buffer.fill_(2)
    assert compiled(an()).tolist() == [2, 4, 6]


# graphs and their ends


def ends(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def frame_left(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.skip_frame("for this test")
    return y + 1


def counts_a_step(x: Tensor) -> Tensor:
    torch.compiler.cudagraph_mark_step_begin()
    return x * 2 + 1


@pytest.mark.parametrize("function", [ends, frame_left, counts_a_step])
def test_calls_that_end_graphs(function: Any) -> None:
    torch.compiler.cudagraph_mark_step_begin()
    assert values(gradc.compile, function) == [[3, 5, 7]] * 2
    assert gradc.counters["uncompiled"]


def test_error_on_graph_break() -> None:
    def inside(x: Tensor) -> Tensor:
        with torch._dynamo.error_on_graph_break(True):
            return ends(x)

    with pytest.raises(Exception, match="graph_break"):
        gradc.compile(inside)(an())


def test_patch_dynamo_config() -> None:
    def inside(x: Tensor) -> Tensor:
        with torch._dynamo.patch_dynamo_config(capture_scalar_outputs=True):
            return x * x.detach().sum().item()

    assert values(gradc.compile, inside) == [[6, 12, 18]] * 2


# NumPy


@pytest.mark.parametrize("wraps_it_all", [True, False])
def test_wrap_numpy(wraps_it_all: bool) -> None:
    wrapped = torch.compiler.wrap_numpy(lambda array: numpy.sin(array) * 2)
    compiled = gradc.compile(wrapped if wraps_it_all else lambda x: wrapped(x))
    assert compiled(an().detach()).tolist() == wrapped(an().detach()).tolist()
    with pytest.raises(RuntimeError, match="requires grad"):  # as in eager
        compiled(an())


# the process


def test_gradc_as_the_default_backend() -> None:
    before = torch.compiler.get_default_backend()
    torch.compiler.set_default_backend("gradc")
    try:
        assert is_compiled(torch.compile(lambda x: x * 2)(an()))
    finally:
        torch.compiler.set_default_backend(before)
    assert gradc.counters["stats"]["unique_graphs"] == 1
    assert "gradc" in torch.compiler.list_backends()


def test_what_leaves_compiled_code_as_it_is() -> None:
    compiled = twice()
    for between in (
        torch.compiler.save_cache_artifacts,
        torch.compiler.reset,
        lambda: torch.compiler.set_enable_guard_collectives(False),
    ):
        assert is_compiled(y := compiled(an())) and y.tolist() == [2, 4, 6]
        between()
    assert is_compiled(compiled(an()))


@pytest.mark.parametrize("name", [name for name in torch.compiler.__all__ if name.endswith("_unsafe")])
def test_filters_of_guards(name: str) -> None:
    """Which guards are left out is the user's affair, as their names say: while nothing changes, nothing is lost."""
    options = {"guard_filter_fn": getattr(torch.compiler, name)}
    compiled = torch.compile(lambda x: x * 2, backend="gradc", options=options)
    for _ in range(2):
        assert is_compiled(y := compiled(an())) and y.tolist() == [2, 4, 6]


# nested_compile_region


def test_a_region_sees_what_changed_outside() -> None:
    class Box:
        value = torch.tensor(0.0)

    @torch.compiler.nested_compile_region
    def more() -> Tensor:
        return Box.value + 1

    def step(t: Tensor) -> Tensor:
        for _ in range(2):
            Box.value = t
            t = more()
        return t

    assert gradc.compile(step)(torch.tensor(0.0)) == 2


def test_a_region_with_a_module_that_is_called_twice() -> None:
    def step(compile: Any, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        linear = nn.Linear(3, 3)
        region = torch.compiler.nested_compile_region(lambda module, x: module(x).sin())
        y = compile(lambda x: region(linear, region(linear, x)))(x)
        y.sum().backward()
        return linear.weight.grad  # type: ignore[return-value]

    check(step, leaf(2, 3))


def test_a_region_with_other_flags_floats_and_keywords() -> None:
    region = torch.compiler.nested_compile_region(lambda x, k, is_sine=True: (x.sin() if is_sine else x.cos()) * k)

    def step(compile: Any, x: Tensor) -> Tensor:
        y = compile(lambda x: region(x, 2) + region(x, k=3.5) - region(x, 4.5, is_sine=False))(x)
        y.sum().backward()
        return y  # type: ignore[no-any-return]

    check(step, leaf(3))


def test_a_region_whose_graph_ends_inside() -> None:
    region = torch.compiler.nested_compile_region(ends)
    assert values(gradc.compile, lambda x: region(x) + region(x)) == [[6, 10, 14]] * 2


def test_a_region_that_writes_and_draws() -> None:
    def step(compile: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        count = torch.zeros(3)

        @torch.compiler.nested_compile_region
        def region(x: Tensor) -> Tensor:
            count.add_(1)
            return x * count * torch.rand(3)

        y = compile(lambda x: region(region(x)))(x)
        y.sum().backward()
        return y, count

    check(step, leaf(3))
