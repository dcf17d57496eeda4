"""What torch's autograd knows of a tensor, of a node of its graph, and of the backward pass that is running."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from gradc.torch_private.backward_passes import number_in_torch, unnumbered


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share their memory; of no meaning once all of them are gone."""
    return tensor.untyped_storage()._cdata


def input_metadata(node: Any, number: int = 0) -> Any:
    """What the node expects of one of its incoming gradients: ``shape``, ``dtype``, ``device``; None for an undefined input."""
    return node._input_metadata[number]


def all_input_metadata(node: Any) -> Sequence[Any]:
    """``input_metadata`` of each incoming gradient."""
    metadata: Sequence[Any] = node._input_metadata
    return metadata


@functools.cache
def start_engine_without_accelerator() -> None:
    """Let the engine look for devices as long as it finds none, where torch is built for an accelerator that is not there.

    It looks once, at its first pass. Fake tensors give such a build a device to pretend with: the engine would then start a
    thread for that, and with threads no backward pass runs in a process that is forked off later.
    """
    if torch.accelerator.current_accelerator() is None or torch.accelerator.is_available():
        return
    with torch.inference_mode(False), torch.enable_grad(), torch._C.DisableTorchFunction():
        leaf = torch.ones((), device="cpu", requires_grad=True)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.run_backward((leaf,), (torch.ones((), device="cpu"),), False, False, (), accumulate_grad=True)


def is_view(tensor: torch.Tensor) -> bool:
    return tensor._is_view()


def is_made_under_no_grad(tensor: torch.Tensor) -> bool:
    """True for a view that may not be written into while gradients are recorded."""
    autograd = torch._C._autograd
    return is_view(tensor) and autograd._get_creation_meta(tensor) == autograd.CreationMeta.NO_GRAD_MODE


def is_cut_off(value: Any) -> bool:
    """True for a view made under no_grad of what requires a gradient: it requires one, but gradients go nowhere from it."""
    if not isinstance(value, torch.Tensor) or not (value.requires_grad and value.is_leaf and is_view(value)):
        return False
    with torch.inference_mode(False), torch.enable_grad():
        (edge,) = value.view_as(value).grad_fn.next_functions  # type: ignore[union-attr]
    return edge[0] is None


def forget_view_node(view: torch.Tensor) -> None:
    """Have a view that was written to make its node anew: whoever knows the old one weakly finds it gone."""
    version = view._version
    for number in (version + 1, version):
        torch._C._autograd._unsafe_set_version_counter((view,), (number,))
        view.grad_fn  # noqa: B018  made when it is asked for


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Have the tensor's version counter, and so that of all its views, say ``version``."""
    if tensor._version != version:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def use_count(tensor: torch.Tensor) -> int:
    """How many C++ references there are to the tensor; all that Python holds are one."""
    return tensor._use_count()  # type: ignore[attr-defined]


def next_sequence_nr() -> int:
    """The sequence number that the next autograd node made in this thread gets."""
    return torch._C._autograd._get_sequence_nr()


def sequence_nr(node: Any) -> int:
    return node._sequence_nr()


def put_in_order(nodes: Sequence[Any]) -> None:
    """Have the engine take the nodes for made in this order: deal their sequence numbers out anew."""
    for node, number in zip(nodes, sorted(map(sequence_nr, nodes)), strict=True):
        node._set_sequence_nr(number)


def number_nodes(numbered: Iterable[tuple[Any, int]]) -> None:
    """Give each node its sequence number."""
    for node, number in numbered:
        node._set_sequence_nr(number)


def current_autograd_node() -> Any:
    """The node that the engine runs in this thread; None outside a backward pass."""
    return torch._C._current_autograd_node()


def will_engine_execute(node: Any) -> bool:
    """True if the running backward pass needs a gradient for ``node``, or torch does not tell (a leaf under autograd.grad)."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return True


def is_graph_kept() -> bool:
    """True if the running backward pass was called with retain_graph."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def is_inside_backward() -> bool:
    """True while the engine runs a backward pass in this thread: in a hook, or in a Function's backward."""
    return number_in_torch() != -1


def engine_grad(
    starts: Sequence[tuple[Any, int]], targets: Sequence[tuple[Any, int]], grads: Sequence[torch.Tensor], create_graph: bool
) -> Sequence[torch.Tensor | None]:
    """``torch.autograd.grad`` between gradient edges, by torch's engine whatever is installed in its way. Keeps the graph."""
    roots, inputs = (tuple(GradientEdge(*edge) for edge in edges) for edges in (starts, targets))
    run_backward: Any = torch.autograd.Variable._execution_engine.run_backward
    with unnumbered([node for node, _ in starts]):
        found: Sequence[torch.Tensor | None] = run_backward(
            roots, tuple(grads), True, create_graph, inputs, allow_unreachable=True, accumulate_grad=False
        )
    return found


def is_way_into_engine(entries: Sequence[Any]) -> bool:
    """True if what ``torch.autograd.backward`` calls next is one of ``entries``; False, too, while torch logs the graph."""
    return torch.autograd._engine_run_backward in entries and not _LOG.isEnabledFor(logging.DEBUG)


_LOG = torch.autograd.graph.log


def is_torchs_backward(function: Any) -> bool:
    """True for ``torch.autograd.backward`` as torch made it."""
    code = getattr(function, "__code__", None)
    return code is not None and (code.co_filename, code.co_qualname) == (torch.autograd.__file__, "backward")


def is_heard(tensor: torch.Tensor) -> bool:
    """True if something runs when torch.autograd.grad comes to the tensor: a hook, or retain_grad."""
    return bool(tensor._backward_hooks) or tensor.retains_grad


def has_gradient_hooks(values: Iterable[Any]) -> bool:
    """True if something runs when the gradient of one of the leaves among ``values`` arrives: a hook, or DDP's reducer."""
    return any(
        isinstance(value, torch.Tensor)
        and value.requires_grad
        and value.is_leaf
        and bool(value._backward_hooks or value._post_accumulate_grad_hooks)
        for value in values
    ) or (torch.distributed.is_available() and torch.distributed.is_initialized())


def are_saved_tensors_hooked() -> bool:
    """True inside a saved_tensors_hooks context."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_saving_hooked_by_user() -> bool:
    """True inside a saved_tensors_hooks context that is not checkpoint's (which only drops and recomputes)."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint"


def user_hooks_on_saving() -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]] | None:
    """The (pack, unpack) in force, if ``is_saving_hooked_by_user``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) if is_saving_hooked_by_user() else None


@contextlib.contextmanager
def saved_tensors_hooks_enabled() -> Iterator[None]:
    """Allow saved-tensors hooks inside, where the user has disabled them."""
    message = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    if message is None:
        yield
        return
    torch._C._autograd._saved_tensors_hooks_enable()
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_disable(message)


def packed_by(node: Any) -> Iterator[tuple[Any, Any]]:
    """For each tensor that ``node`` saved: what the hook that packed it returned, and the hook to unpack it with.

    (the tensor, None) for one that no hook packed.
    """
    node_type: type = type(node)
    for name in _raw_saved(node_type):
        values = getattr(node, name)
        for saved in values if isinstance(values, (tuple, list)) else (values,):
            if saved is not None:
                yield saved.data, saved.unpack_hook


@functools.cache
def _raw_saved(node_type: type) -> tuple[str, ...]:
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved_"))
