"""What gradc changes in Dynamo, so that what it compiles is the user's program."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameReturn
from torch._dynamo.exc import InternalTorchDynamoError, TorchRuntimeError, unimplemented
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource, DictGetItemSource, FloatTensorSource, NNModuleSource
from torch._dynamo.types import FrameAction, FrameExecStrategy
from torch._dynamo.variables import builder
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.higher_order_ops import CheckpointHigherOrderVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.fakes import is_fake


def break_graph_where_eager_is_needed(is_ours: Callable[[Any], bool]) -> None:
    """Make Dynamo end its graph at autograd.Function, checkpoint and hooks, in what ``is_ours`` (a backend) compiles.

    Dynamo has operators of its own for the first two. That for a Function forgets ``set_materialize_grads`` and the Python
    state that backward reads; that for checkpoint leaves recomputation to a partitioner. Hooks it registers behind the graph,
    when a tensor may have been written into. Called eagerly, all do what they do. Under ``fullgraph=True`` checkpoint and
    hooks stay in the graph; a Function raises, with this reason.
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
    wrap(
        TensorVariable,
        "_method_register_hook",
        "gradc: hook",
        "gradc registers hooks as eager does, between what comes before and what comes after.",
        raises_in_fullgraph=False,
    )


def run_eagerly_where_dynamo_fails(is_ours: Callable[[Any], bool], note: Callable[[str, str], None]) -> None:
    """Run a frame as it is if Dynamo breaks down over it: an assertion of its own fails, or a call with fake tensors does.

    The user may be to blame: eager then says so in its own words, and the next call is tried again. Code that fails twice is
    never compiled. For what ``is_ours`` (a backend) compiles, but not under ``fullgraph=True``. ``note`` is called with the
    error's words and the place of the code.
    """
    original = ConvertFrame.__call__
    failed: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(original)
    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, frame, *args, **kwargs)
        except (AssertionError, InternalTorchDynamoError, TorchRuntimeError) as error:
            if self._inner_convert._box.error_on_graph_break or not is_ours(self._torchdynamo_orig_backend):
                raise
            code = frame.f_code
            text = f"{type(error).__name__}: {error}".split("\n")[0]
            note(text, f"File: {code.co_filename}:{code.co_firstlineno} in {code.co_name}")
            action = FrameAction.SKIP if code in failed else FrameAction.DEFAULT
            failed.add(code)
            return ConvertFrameReturn(frame_exec_strategy=FrameExecStrategy(action, FrameAction.DEFAULT))

    ConvertFrame.__call__ = call  # type: ignore[method-assign]


def run_optimizers_eagerly(is_ours: Callable[[Any], bool], note: Callable[[str, Any], None]) -> None:
    """Leave the steps of torch's optimizers out of graphs, in what ``is_ours`` (a backend) compiles.

    Under Dynamo they take other branches, which round otherwise: they ask ``torch.compiler.is_compiling()``. A user's own
    optimizer is compiled. ``note`` is called with the name of an optimizer and the backend, at each step.
    """
    inlined, converted = UserFunctionVariable.call_function, ConvertFrame.__call__
    folder = os.path.dirname(torch.optim.__file__)
    base, *others = (os.path.join(folder, name) for name in ("optimizer.py", "lr_scheduler.py", "swa_utils.py"))

    def is_of_an_optimizer(function: Any) -> bool:
        path = getattr(inspect.unwrap(function), "__code__", function).co_filename
        return path.startswith(folder) and path not in (base, *others)

    @functools.wraps(inlined)
    def inline(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if is_ours(tx.output.compiler_fn) and is_of_an_optimizer(self.fn):
            unimplemented(
                gb_type="gradc: optimizer",
                context=self.fn.__name__,
                explanation="gradc runs the steps of optimizers as eager does.",
                hints=[],
            )
        return inlined(self, tx, *args, **kwargs)

    @functools.wraps(converted)
    def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        code, backend = frame.f_code, self._torchdynamo_orig_backend
        if not (code.co_filename == base or is_of_an_optimizer(code)) or not is_ours(backend):
            return converted(self, frame, *args, **kwargs)
        owner = frame.f_locals.get("self") or next(iter(frame.f_locals.get("args", ())), None)
        if isinstance(owner, torch.optim.Optimizer):
            is_users = not is_of_an_optimizer(type(owner).step)
            if is_users and code.co_filename == base:
                return converted(self, frame, *args, **kwargs)
            if code.co_name == ("step" if is_users else "wrapper"):
                note(type(owner).__name__, backend)
        skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
        return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)

    UserFunctionVariable.call_function = inline  # type: ignore[method-assign]
    ConvertFrame.__call__ = convert  # type: ignore[method-assign]


def keep_ops_whole(is_ours: Callable[[Any], bool]) -> None:
    """Leave ``torch.addcdiv`` in the graphs that ``is_ours`` (a backend) compiles: Dynamo takes it apart, and rounds twice."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    original = handlers[torch.addcdiv]

    @functools.wraps(original)
    def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        is_number = "value" in kwargs and kwargs["value"].is_python_constant()
        return None if is_number and is_ours(tx.output.compiler_fn) else original(self, tx, *args, **kwargs)

    handlers[torch.addcdiv] = call


def unpack_whole_tensors(is_ours: Callable[[Any], bool]) -> None:
    """Unpack and iterate over a tensor by one ``unbind``, as eager does, in the graphs that ``is_ours`` (a backend) compiles.

    Dynamo takes one ``select`` for each row, whose gradients are then added up: more work, and a -0 becomes 0.
    """
    original = TensorVariable.unpack_var_sequence

    @functools.wraps(original)
    def unpack(self: Any, tx: Any, idxes: Any = None) -> Any:
        if type(self) is not TensorVariable or not is_ours(tx.output.compiler_fn):
            return original(self, tx, idxes)
        rows = self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)
        return rows if idxes is None or len(idxes) == len(rows) else original(self, tx, idxes)

    TensorVariable.unpack_var_sequence = unpack  # type: ignore[method-assign]


def break_graph_where_values_are_read(is_ours: Callable[[Any], bool]) -> None:
    """Make Dynamo end its graph at an op that reads the value of an argument, in what ``is_ours`` (a backend) compiles.

    It does so by itself, but for a number that the graph takes as a tensor of no dimensions: of that it has a symbol, and would
    go on with ``torch.narrow(x, 0, start, 2)``. Fake tensors alone know no values, so that graph would run eagerly as a whole.
    The tensors that Dynamo makes of Python's floats keep their symbols. And ``istft`` it runs in a form that reads no value,
    where eager's asks whether the window is zero anywhere. Under ``fullgraph=True`` they stay in it, and that is refused.
    """
    original = builder.wrap_to_fake_tensor_and_record

    @functools.wraps(original)
    def wrap(e: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        fake = original(e, tx, *args, **kwargs)
        is_float = isinstance(kwargs.get("source"), FloatTensorSource)
        if is_fake(fake) and not is_float and not tx.one_graph and is_ours(tx.output.compiler_fn):
            fake.item_memo = None
        return fake

    def istft(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
        if is_ours(tx.output.compiler_fn) and not tx.one_graph:
            unimplemented(
                gb_type="gradc: op that reads values",
                context="istft",
                explanation="gradc runs istft as eager does: it looks at the window's values.",
                hints=[],
            )

    builder.wrap_to_fake_tensor_and_record = wrap
    TorchInGraphFunctionVariable._get_handlers()[torch.istft] = istft
    TensorVariable.method_istft = istft  # type: ignore[attr-defined]


def keep_views_in_graphs(is_ours: Callable[[Any], bool]) -> None:
    """Record ``x.mT`` and the like as calls, in the graphs that ``is_ours`` (a backend) compiles.

    What is only returned Dynamo reads from ``x`` once more behind the graph: when another grad mode may be on than was.
    """
    original = TensorVariable.var_getattr

    @functools.wraps(original)
    def read(self: Any, tx: Any, name: str) -> Any:
        result = original(self, tx, name)
        if name in ("T", "mT", "H", "mH", "real", "imag") and is_ours(tx.output.compiler_fn):
            result.source = None
        return result

    TensorVariable.var_getattr = read  # type: ignore[method-assign]


def call_natively() -> None:
    """Let Dynamo's bytecode call a native region itself, where it would put a function around it that stops tracing.

    There is nothing to trace in a builtin function: what it calls in Python when in doubt is still wrapped. Also leaves out
    the two calls that tell a profiler what the bytecode before a graph costs.
    """
    original = OutputGraph.install_global_unsafe

    @functools.wraps(original)
    def install(self: Any, name: str, value: Any) -> None:
        inner = getattr(value, "_torchdynamo_orig_callable", None)
        original(self, name, inner if getattr(inner, "__name__", "") == "gradc_region" else value)

    OutputGraph.install_global_unsafe = install  # type: ignore[method-assign]
    torch._dynamo.config.record_runtime_overhead = False


def skip_frames_of(*packages: str) -> None:
    """Keep Dynamo from compiling the functions of these packages when compiled code calls them."""
    for package in packages:
        trace_rules.add(package)


def guard_module_hooks(make_guard: Callable[[], Any]) -> None:
    """Let Dynamo notice hooks registered on a module after its first compiled call. It only makes guards stricter.

    ``make_guard`` makes one guard for all modules below one: called with it, true if none of the dictionaries of hooks that
    were added by ``add(names of the modules that lead there, attribute)`` holds one. Where that is None, Dynamo's own serve,
    one for each dictionary.
    """
    torch._dynamo.config.skip_nnmodule_hook_guards = False
    of_each = torch._dynamo.guards.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT

    @functools.wraps(of_each)
    def of_all(builder: Any, guard: Any) -> None:
        found = _path_of_hooks(guard.originating_source)
        guards = builder.__dict__.setdefault("gradc_hook_guards", {})
        if found is None or (of_module := guards.get(found[0].name) or make_guard()) is None:
            return of_each(builder, guard)
        root, path, attribute = found
        of_module.add(path, attribute)
        if root.name not in guards:
            guards[root.name] = of_module
            manager = builder.get_guard_manager_from_source(root)
            manager.add_lambda_guard(of_module, [f"no hooks on the modules of {root.name}"], guard.user_stack)

    torch._dynamo.guards.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT = of_all  # type: ignore[method-assign]


def _path_of_hooks(source: Any) -> tuple[Any, list[str], str] | None:
    """(source of the outermost module, names of the modules from there on, attribute), of a dictionary of hooks."""
    if not isinstance(source, AttrSource):
        return None
    path: list[str] = []
    attribute, module = source.member, _bare(source.base)
    while isinstance(module, DictGetItemSource) and isinstance(module.index, str):
        modules = _bare(module.base)
        if not isinstance(modules, AttrSource) or modules.member != "_modules":
            return None
        path.insert(0, module.index)
        module = _bare(modules.base)
    return module, path, attribute


def _bare(source: Any) -> Any:
    while isinstance(source, NNModuleSource):
        source = source.base
    return source
