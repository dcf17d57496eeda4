"""What it takes of torch to run a call twice without a trace: stance, version counters, tensors that are lazy or wrapped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._higher_order_ops import utils as higher_order

from gradc.torch_private.autograd import engine_grad
from gradc.torch_private.backward_passes import number_in_torch
from gradc.torch_private.patches import Patch, Replace


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """What torch.compile compiled runs as it was written inside. What torch compiles itself, to run it eagerly, is compiled."""
    with torch.compiler.set_stance("force_eager"), _applied(_COMPILE_HIGHER_ORDER):
        yield


def _make_environment(original: Callable[[], Any]) -> Callable[[], Any]:
    @contextlib.contextmanager
    def environment() -> Iterator[None]:
        with torch.compiler.set_stance("default"), original():
            yield

    return environment


_COMPILE_HIGHER_ORDER = Patch(
    "compile_higher_order",
    "In eager, torch.cond has Dynamo make graphs of its branches, and raises where the stance forbids it.",
    (Replace(higher_order, "_set_compilation_env", _make_environment),),
)


@contextlib.contextmanager
def _applied(patch: Patch) -> Iterator[None]:
    if patch.is_applied:
        yield
        return
    patch.apply()
    try:
        yield
    finally:
        patch.undo()


def is_compiled_by_torch() -> bool:
    """True inside of what torch compiles itself, as eager's ``torch.cond`` does with its branches."""
    return higher_order._in_hop_compile()


def is_inside_compiled_code() -> bool:
    """True where Dynamo looks at what is called: what it compiled is left for a while, and its stance cannot be changed."""
    return torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False)


def without_lazy_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view of what the memory holds, where the tensor is still to be conjugated or negated."""
    plain = torch.conj(tensor) if tensor.is_conj() else tensor
    return torch._neg_view(plain) if plain.is_neg() else plain


def with_lazy_bits_of(tensor: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """``plain`` as it reads where it is conjugated or negated as ``tensor`` is."""
    plain = torch._neg_view(plain) if tensor.is_neg() else plain
    return torch.conj(plain) if tensor.is_conj() else plain


def task_id() -> int:
    """The number of the backward pass that runs in this thread."""
    return torch._C._current_graph_task_id()


def number_of_a_pass() -> int:
    """Torch's own number of a backward pass that runs now, and is gradc's: two tell whether others ran between them."""
    numbers: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros((), requires_grad=True)
        root: Any = leaf.view_as(leaf).grad_fn
    root.register_prehook(lambda _: numbers.append(number_in_torch()))
    engine_grad([(root, 0)], [gradient_edge(leaf)], [torch.ones(())], create_graph=False)
    return numbers[0]


def call_when_backward_ends(function: Any) -> None:
    """Call ``function`` in the state of the backward pass that is running, once its last node has run."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def will_run(node: Any) -> bool | None:
    """Whether the running backward pass comes to ``node``; None where torch does not tell (a leaf under autograd.grad)."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return None


def hooks_of_all_modules() -> list[Any]:
    """What runs before and behind the forward of each module, whichever it is."""
    module = torch.nn.modules.module
    return [*module._global_forward_pre_hooks.values(), *module._global_forward_hooks.values()]


def gradient_edge(tensor: torch.Tensor) -> tuple[Any, int]:
    """The node that a gradient of the tensor goes to, and the number of its input there."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr
