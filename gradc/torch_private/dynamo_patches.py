"""What gradc changes in Dynamo, each as a patch: so that what it compiles is the user's program, call for call.

    (is_ours, ...) -> Patch          is_ours: a backend of torch.compile's -> True if it is gradc

What other backends compile is as without gradc: each replacement asks ``is_ours`` first, and settings are in force around
gradc's own compilations only.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import torch
from torch._dynamo import config, guards, trace_rules
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameAssert, ConvertFrameReturn
from torch._dynamo.exc import InternalTorchDynamoError, TorchRuntimeError, unimplemented
from torch._dynamo.guards import GuardBuilder
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
from gradc.torch_private.patches import Patch, Replace, SkipFiles

IsOurs = Callable[[Any], bool]
Method = Callable[..., Any]

# Guard against hooks registered later; do not time the bytecode before each graph.
_OUR_SETTINGS = {"skip_nnmodule_hook_guards": False, "record_runtime_overhead": False}
_users_settings: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("_users_settings", default=None)


def compile_under_our_settings(is_ours: IsOurs, around: Callable[[], AbstractContextManager[None]]) -> Patch:
    """Dynamo's settings, while it compiles for gradc: threads have settings of their own, so none could be set once for all.

    A compilation for another backend that goes on inside one of ours is under the user's settings again. ``around`` is
    entered around each of ours.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_ours(self._torchdynamo_orig_backend):
                with _settings_of_the_user():
                    return original(self, *args, **kwargs)
            with around(), _our_settings():
                return original(self, *args, **kwargs)

        return call

    return Patch(
        "compile_under_our_settings",
        "A hook that is registered after a module's first call must be noticed; bytecode is not to be timed at each call.",
        (Replace(ConvertFrameAssert, "__call__", make),),
    )


@contextlib.contextmanager
def _our_settings() -> Iterator[None]:
    if _users_settings.get() is not None:
        yield
        return
    token = _users_settings.set({name: getattr(config, name) for name in _OUR_SETTINGS})
    try:
        with config.patch(_OUR_SETTINGS):
            yield
    finally:
        _users_settings.reset(token)


@contextlib.contextmanager
def _settings_of_the_user() -> Iterator[None]:
    settings = _users_settings.get()
    if settings is None:
        yield
        return
    token = _users_settings.set(None)
    try:
        with config.patch(settings):
            yield
    finally:
        _users_settings.reset(token)


def do_not_time_guards() -> Patch:
    """Leave out Dynamo's measurement of how long a new graph's guards take, for a figure in its log.

    For that it flushes the caches of the processor: 0.07 s for each graph.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def measure(*args: Any) -> float:
            is_shown = logging.getLogger("torch._dynamo.guards.__guards").isEnabledFor(logging.DEBUG)
            return 0.0 if _users_settings.get() is not None and not is_shown else original(*args)

        return measure

    return Patch(
        "do_not_time_guards",
        "Dynamo times each new graph's guards, with the caches flushed first: a good part of a small model's first call.",
        (Replace(guards, "profile_guard_manager", make),),
    )


def break_graph_where_eager_is_needed(is_ours: IsOurs) -> Patch:
    """Make Dynamo end its graph at autograd.Function, checkpoint and hooks.

    Dynamo has operators of its own for the first two. That for a Function forgets ``set_materialize_grads`` and the Python
    state that backward reads; that for checkpoint leaves recomputation to a partitioner. Hooks it registers behind the graph,
    when a tensor may have been written into. Called eagerly, all do what they do. Under ``fullgraph=True`` checkpoint and
    hooks stay in the graph; a Function raises, with this reason.
    """

    def breaking(name: str, explanation: str, raises_in_fullgraph: bool = False) -> Callable[[Method], Method]:
        def make(original: Method) -> Method:
            @functools.wraps(original)
            def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
                if is_ours(tx.output.compiler_fn) and (raises_in_fullgraph or not tx.one_graph):
                    unimplemented(gb_type=name, context=str(self), explanation=explanation, hints=[])
                return original(self, tx, *args, **kwargs)

            return call

        return make

    function = breaking(
        "gradc: autograd.Function",
        "gradc runs autograd.Function as eager does: what it does in backward is known only then.",
        raises_in_fullgraph=True,
    )
    checkpoint = breaking(
        "gradc: checkpoint",
        "gradc runs torch.utils.checkpoint as eager does; the function inside it is compiled on its own.",
    )
    hook = breaking(
        "gradc: hook", "gradc registers hooks as eager does, between what comes before and what comes after."
    )
    return Patch(
        "break_graph_where_eager_is_needed",
        "Dynamo's own forms of autograd.Function, checkpoint and tensor hooks are not eager's.",
        (
            Replace(AutogradFunctionVariable, "call_apply", function),
            Replace(CheckpointHigherOrderVariable, "_call_function", checkpoint),
            Replace(TensorVariable, "_method_register_hook", hook),
        ),
    )


def break_graph_where_values_are_read(is_ours: IsOurs) -> Patch:
    """Make Dynamo end its graph at an op that reads the value of an argument.

    It does so by itself, but for a number that the graph takes as a tensor of no dimensions: of that it has a symbol, and would
    go on with ``torch.narrow(x, 0, start, 2)``. Fake tensors alone know no values, so that graph would run eagerly as a whole.
    The tensors that Dynamo makes of Python's floats keep their symbols. And ``istft`` it runs in a form that reads no value,
    where eager's asks whether the window is zero anywhere. Under ``fullgraph=True`` they stay in it, and that is refused.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def wrap(e: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            fake = original(e, tx, *args, **kwargs)
            is_float = isinstance(kwargs.get("source"), FloatTensorSource)
            if is_fake(fake) and not is_float and not tx.one_graph and is_ours(tx.output.compiler_fn):
                fake.item_memo = None
            return fake

        return wrap

    def make_istft(_: None) -> Method:
        def istft(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
            """None: as if there were no handler."""
            if is_ours(tx.output.compiler_fn) and not tx.one_graph:
                unimplemented(
                    gb_type="gradc: op that reads values",
                    context="istft",
                    explanation="gradc runs istft as eager does: it looks at the window's values.",
                    hints=[],
                )

        return istft

    return Patch(
        "break_graph_where_values_are_read",
        "Of numbers in tensors Dynamo has symbols, of istft a form that reads none; a graph of fake tensors knows no value.",
        (
            Replace(builder, "wrap_to_fake_tensor_and_record", make),
            Replace(TorchInGraphFunctionVariable._get_handlers(), torch.istft, make_istft),
            Replace(TensorVariable, "method_istft", make_istft),
        ),
    )


def keep_ops_whole(is_ours: IsOurs) -> Patch:
    """Leave ``torch.addcdiv`` in graphs."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            is_number = "value" in kwargs and kwargs["value"].is_python_constant()
            return None if is_number and is_ours(tx.output.compiler_fn) else original(self, tx, *args, **kwargs)

        return call

    return Patch(
        "keep_ops_whole",
        "Dynamo takes addcdiv apart, and rounds twice.",
        (Replace(TorchInGraphFunctionVariable._get_handlers(), torch.addcdiv, make),),
    )


def keep_views_in_graphs(is_ours: IsOurs) -> Patch:
    """Record ``x.mT`` and the like as calls."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def read(self: Any, tx: Any, name: str) -> Any:
            result = original(self, tx, name)
            if name in ("T", "mT", "H", "mH", "real", "imag") and is_ours(tx.output.compiler_fn):
                result.source = None
            return result

        return read

    return Patch(
        "keep_views_in_graphs",
        "What is only returned Dynamo reads from x once more behind the graph: when another grad mode may be on than was.",
        (Replace(TensorVariable, "var_getattr", make),),
    )


def unpack_whole_tensors(is_ours: IsOurs) -> Patch:
    """Unpack and iterate over a tensor by one ``unbind``, as eager does."""

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def unpack(self: Any, tx: Any, idxes: Any = None) -> Any:
            if type(self) is not TensorVariable or not is_ours(tx.output.compiler_fn):
                return original(self, tx, idxes)
            rows = self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)
            return rows if idxes is None or len(idxes) == len(rows) else original(self, tx, idxes)

        return unpack

    return Patch(
        "unpack_whole_tensors",
        "Dynamo takes one select for each row, whose gradients are then added up: more work, and a -0 becomes 0.",
        (Replace(TensorVariable, "unpack_var_sequence", make),),
    )


def run_eagerly_where_dynamo_fails(is_ours: IsOurs, note: Callable[[str, str], None]) -> Patch:
    """Run a frame as it is if Dynamo breaks down over it: an assertion of its own fails, or a call with fake tensors does.

    The user may be to blame: eager then says so in its own words, and the next call is tried again. Code that fails twice is
    never compiled. Not under ``fullgraph=True``. ``note`` is called with the error's words and the place of the code.
    """
    failed: weakref.WeakSet[Any] = weakref.WeakSet()

    def make(original: Method) -> Method:
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

        return call

    return Patch(
        "run_eagerly_where_dynamo_fails",
        "A program that runs in eager must not raise because Dynamo breaks down over it.",
        (Replace(ConvertFrame, "__call__", make),),
    )


def run_optimizers_eagerly(is_ours: IsOurs, note: Callable[[str, Any], None]) -> Patch:
    """Leave the steps of torch's optimizers out of graphs; a user's own optimizer is compiled.

    ``note`` is called with the name of an optimizer and the backend, at each step.
    """

    def make_inline(original: Method) -> Method:
        @functools.wraps(original)
        def inline(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            if is_ours(tx.output.compiler_fn) and _is_of_an_optimizer(self.fn):
                unimplemented(
                    gb_type="gradc: optimizer",
                    context=self.fn.__name__,
                    explanation="gradc runs the steps of optimizers as eager does.",
                    hints=[],
                )
            return original(self, tx, *args, **kwargs)

        return inline

    def make_convert(original: Method) -> Method:
        @functools.wraps(original)
        def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            code, backend = frame.f_code, self._torchdynamo_orig_backend
            if not (code.co_filename == _OPTIMIZER_BASE or _is_of_an_optimizer(code)) or not is_ours(backend):
                return original(self, frame, *args, **kwargs)
            owner = frame.f_locals.get("self") or next(iter(frame.f_locals.get("args", ())), None)
            if isinstance(owner, torch.optim.Optimizer):
                is_users = not _is_of_an_optimizer(type(owner).step)
                if is_users and code.co_filename == _OPTIMIZER_BASE:
                    return original(self, frame, *args, **kwargs)
                if code.co_name == ("step" if is_users else "wrapper"):
                    note(type(owner).__name__, backend)
            skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
            return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=False)

        return convert

    return Patch(
        "run_optimizers_eagerly",
        "Under Dynamo torch's optimizers take other branches, which round otherwise: they ask torch.compiler.is_compiling().",
        (Replace(UserFunctionVariable, "call_function", make_inline), Replace(ConvertFrame, "__call__", make_convert)),
    )


_OPTIMIZERS = os.path.dirname(torch.optim.__file__)
_OPTIMIZER_BASE, *_NO_OPTIMIZERS = (
    os.path.join(_OPTIMIZERS, name) for name in ("optimizer.py", "lr_scheduler.py", "swa_utils.py")
)


def _is_of_an_optimizer(function: Any) -> bool:
    path = getattr(inspect.unwrap(function), "__code__", function).co_filename
    return path.startswith(_OPTIMIZERS) and path not in (_OPTIMIZER_BASE, *_NO_OPTIMIZERS)


def call_natively(is_ours: IsOurs) -> Patch:
    """Let Dynamo's bytecode call a native region itself, where it would put a function around it that stops tracing.

    There is nothing to trace in a builtin function: what it calls in Python when in doubt is still wrapped.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def install(self: Any, name: str, value: Any) -> None:
            inner = getattr(value, "_torchdynamo_orig_callable", None)
            is_region = getattr(inner, "__name__", "") == "gradc_region" and is_ours(self.compiler_fn)
            original(self, name, inner if is_region else value)

        return install

    return Patch(
        "call_natively",
        "A function in Python around each native region would cost more than the rest of a small call.",
        (Replace(OutputGraph, "install_global_unsafe", make),),
    )


def guard_module_hooks(make_guard: Callable[[], Any]) -> Patch:
    """One guard for all hooks of a module and of those below it.

    ``make_guard`` makes it: called with the module, it is true if none of the dictionaries of hooks that were added by
    ``add(names of the modules that lead there, attribute)`` holds one. Where that is None, Dynamo's own serve, one for each
    dictionary.
    """

    def make(of_each: Method) -> Method:
        @functools.wraps(of_each)
        def of_all(builder: Any, guard: Any) -> None:
            found = _path_of_hooks(guard.originating_source) if _users_settings.get() is not None else None
            guards = builder.__dict__.setdefault("gradc_hook_guards", {}) if found else {}
            if found is None or (of_module := guards.get(found[0].name) or make_guard()) is None:
                return of_each(builder, guard)
            root, path, attribute = found
            of_module.add(path, attribute)
            if root.name not in guards:
                guards[root.name] = of_module
                manager = builder.get_guard_manager_from_source(root)
                manager.add_lambda_guard(of_module, [f"no hooks on the modules of {root.name}"], guard.user_stack)

        return of_all

    return Patch(
        "guard_module_hooks",
        "Dynamo's guards against hooks look up each dictionary by its path, which costs more than the rest of a small call.",
        (Replace(GuardBuilder, "EMPTY_NN_MODULE_HOOKS_DICT", make),),
    )


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


def skip_frames_of(modules: tuple[str, ...]) -> Patch:
    """Keep Dynamo from compiling the functions of these modules when compiled code calls them."""
    origins = [spec.origin for name in modules if (spec := find_spec(name)) is not None and spec.origin is not None]
    return Patch(
        "skip_frames_of_gradc",
        "Where compiled code calls gradc, gradc's own functions are not the user's program.",
        (SkipFiles(tuple(map(trace_rules._strip_init_py, origins))),),
    )
