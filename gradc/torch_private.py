"""Every use of a private name of torch, in one place, checked at import against the version gradc was written for.

If torch changes one of these, this module is what to mend. A leaf: imports nothing of gradc but errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.higher_order_ops import CheckpointHigherOrderVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)

from torch.fx.experimental.proxy_tensor import make_fx

from gradc.errors import VersionError

SUPPORTED = "2.13.0"

if torch.__version__.split("+")[0] != SUPPORTED:
    raise VersionError(
        f"gradc works with torch {SUPPORTED}, but torch {torch.__version__} is imported.\n"
        f"  gradc reads torch's autograd graph through names that change between versions, so it does not guess.\n"
        f"  Install the right one: pip install torch=={SUPPORTED}"
    )

FAKE_TENSOR_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)

def functionalized_graph(function: Any, inputs: list[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """``function`` on inputs like ``inputs`` as a graph without mutation (but of its inputs, at the end), and the fake inputs."""
    fake_mode = FakeTensorMode()
    fakes = [fake_mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]
    with fake_mode, torch.no_grad():
        graph = make_fx(torch.func.functionalize(function, remove="mutations_and_views"))(*fakes)
    return graph, fakes


def compile_fx_inner(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
    """Inductor's graph compiler, without autograd: returns a function of a list of inputs."""
    from torch._inductor.compile_fx import compile_fx_inner as inductor  # slow to import, and not always wanted

    return inductor(graph, fakes)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


@functools.cache
def has_autocast_kernel(op: Any) -> bool:
    """True for an op (an overload) that autocast casts the arguments of, on any device type."""
    if not isinstance(op, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(op.name()):
        return False
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in ("AutocastCPU", "AutocastCUDA"))


def is_view(tensor: torch.Tensor) -> bool:
    return tensor._is_view()


def next_sequence_nr() -> int:
    """The sequence number that the next autograd node made in this thread gets."""
    return torch._C._autograd._get_sequence_nr()


def sequence_nr(node: Any) -> int:
    return node._sequence_nr()


def current_autograd_node() -> Any:
    """The node that the engine runs in this thread; None outside a backward pass."""
    return torch._C._current_autograd_node()


def will_engine_execute(node: Any) -> bool:
    """True if the running backward pass needs a gradient for ``node``, or if torch does not tell (a leaf under autograd.grad)."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return True


def is_graph_kept() -> bool:
    """True if the running backward pass was called with retain_graph."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def dispatch_modes() -> list[Any]:
    """The Python dispatch modes active in this thread, outermost first."""
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def num_dispatch_modes() -> int:
    return torch._C._len_torch_dispatch_stack()


def is_functorch_active() -> bool:
    """True inside torch.func.grad, vmap and their kin."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def are_saved_tensors_hooked() -> bool:
    """True inside a saved_tensors_hooks context."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_forward_ad_active() -> bool:
    return torch.autograd.forward_ad._current_level >= 0


def is_anomaly_enabled() -> bool:
    return torch.is_anomaly_enabled()


def tracing_context() -> TracingContext | None:
    """Dynamo's context of the compilation that is going on in this thread."""
    return TracingContext.try_get()


def autocast_nesting() -> int:
    """How many autocast contexts are open in this thread; the weight-cast cache lives until there are none."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def break_graph_where_eager_is_needed(is_ours: Callable[[Any], bool]) -> None:
    """Make Dynamo end its graph at autograd.Function and checkpoint, in what ``is_ours`` (a backend) compiles.

    Dynamo has operators of its own for both. That for a Function forgets ``set_materialize_grads`` and the Python state
    that backward reads; that for checkpoint leaves recomputation to a partitioner. Called eagerly, both do what they do.
    Under ``fullgraph=True`` checkpoint stays in the graph; a Function raises, with this reason.
    """

    def wrap(owner: type, method: str, name: str, explanation: str, raises_in_fullgraph: bool) -> None:
        original = getattr(owner, method)

        @functools.wraps(original)
        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if is_ours(tx.output.compiler_fn) and (raises_in_fullgraph or not tx.one_graph):
                unimplemented(gb_type=name, context=str(self), explanation=explanation, hints=[])
            return original(self, tx, *args, **kwargs)

        setattr(owner, method, call)

    wrap(
        AutogradFunctionVariable,
        "call_apply",
        "gradc: autograd.Function",
        "gradc runs autograd.Function as eager does: what it does in backward is known only then.",
        raises_in_fullgraph=True,
    )
    wrap(
        CheckpointHigherOrderVariable,
        "_call_function",
        "gradc: checkpoint",
        "gradc runs torch.utils.checkpoint as eager does; the function inside it is compiled on its own.",
        raises_in_fullgraph=False,
    )


def skip_frames_of(*packages: str) -> None:
    """Keep Dynamo from compiling the functions of these packages when compiled code calls them."""
    for package in packages:
        trace_rules.add(package)


def guard_module_hooks() -> None:
    """Let Dynamo notice hooks registered on a module after its first compiled call. It only makes guards stricter."""
    torch._dynamo.config.skip_nnmodule_hook_guards = False


__all__ = [
    "FAKE_TENSOR_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "are_saved_tensors_hooked",
    "autocast_nesting",
    "break_graph_where_eager_is_needed",
    "compile_fx_inner",
    "current_autograd_node",
    "dispatch_modes",
    "functionalized_graph",
    "is_anomaly_enabled",
    "is_fake",
    "is_forward_ad_active",
    "guard_module_hooks",
    "has_autocast_kernel",
    "is_functorch_active",
    "is_graph_kept",
    "is_view",
    "next_sequence_nr",
    "num_dispatch_modes",
    "sequence_nr",
    "tracing_context",
    "skip_frames_of",
    "will_engine_execute",
]
