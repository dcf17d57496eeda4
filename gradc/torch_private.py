"""Every use of a private name of torch, in one place, checked at import against the version gradc was written for.

If torch changes one of these, this module is what to mend. A leaf: imports nothing of gradc but errors.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import trace_rules
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameReturn
from torch._dynamo.exc import InternalTorchDynamoError, TorchRuntimeError, unimplemented
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource, ConstantSource, DictGetItemSource, FloatTensorSource, NNModuleSource
from torch._dynamo.types import FrameAction, FrameExecStrategy
from torch._dynamo.variables import builder
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.higher_order_ops import CheckpointHigherOrderVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.autograd.graph import GradientEdge
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError as GuardError

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
    """``function`` on inputs like ``inputs`` as a graph that Inductor takes, and the fake inputs.

    The graph has no mutation but copies to inputs at its end, and is made of the ops that Inductor does not decompose.
    """
    from torch._inductor import config  # slow to import, and not always wanted
    from torch._inductor.decomposition import select_decomp_table

    with fake_mode_for(inputs) as fakes, torch.no_grad(), config.patch(fallback_random=True):
        made = make_fx(torch.func.functionalize(function, remove="mutations"), decomposition_table=select_decomp_table())
        graph = made(*fakes)
    with fake_mode_for(inputs) as fakes:
        return graph, fakes


def new_shape_env() -> ShapeEnv:
    """An environment for symbolic sizes, in which equal sizes stay different symbols."""
    return ShapeEnv(duck_shape=False)


def new_symint(env: ShapeEnv, name: str, hint: int) -> torch.SymInt:
    """A size of at least 2 that is free to change. Its value while tracing is ``hint``."""
    source = ConstantSource(name)
    symbol = env.create_symbol(hint, source, DimDynamic.DYNAMIC)
    made = env.create_symintnode(symbol, hint=hint, source=source)
    assert isinstance(made, torch.SymInt)
    return made


def settle_sizes(fake_mode: FakeTensorMode) -> None:
    """From now on what would fix or bound a symbolic size of ``fake_mode`` raises ``GuardError``: nobody would check it."""
    if (env := fake_mode.shape_env) is not None:
        env.freeze()
        env._error_on_new_guards = True


@contextlib.contextmanager
def fake_mode_for(inputs: list[Any]) -> Iterator[list[Any]]:
    """Fake versions of ``inputs``, without history, in a fake mode of their own, the only dispatch mode inside."""
    handles = [value.detach() if isinstance(value, torch.Tensor) else value for value in inputs]
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # constants stay real
    with without_dispatch_modes(), mode:
        yield [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in handles]


def compile_fx_inner(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
    """Inductor's graph compiler, without autograd: returns a function of a list of inputs, which it empties."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner as inductor

    (output,) = graph.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))  # all outputs keep their strides
    with config.patch(fallback_random=True):
        return inductor(graph, fakes)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def has_symbolic_sizes(values: Iterable[Any]) -> bool:
    return any(is_fake(value) and value._has_symbolic_sizes_strides for value in values)


def python_meta_kernels() -> contextlib.AbstractContextManager[Any]:
    """Within, torch's Python kernels tell what an op returns, where there are some: not all in C++ know symbolic sizes."""
    return enable_python_dispatcher()


_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


@functools.cache
def has_autocast_kernel(op: Any, device_type: str) -> bool:
    """True for an op (an overload) whose arguments autocast casts on that device type."""
    if not isinstance(op, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(op.name()):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _AUTOCAST_KEYS[device_type])


def is_view(tensor: torch.Tensor) -> bool:
    return tensor._is_view()


def forget_view_node(view: torch.Tensor) -> None:
    """Have a view that was written to make its node anew: whoever knows the old one weakly finds it gone."""
    version = view._version
    for number in (version + 1, version):
        torch._C._autograd._unsafe_set_version_counter((view,), (number,))
        view.grad_fn  # noqa: B018  made when it is asked for


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


def dispatch_modes() -> list[Any]:
    """The Python dispatch modes active in this thread, outermost first."""
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """No Python dispatch mode is active inside."""
    return torch.utils._python_dispatch._disable_current_modes()


def num_dispatch_modes() -> int:
    return torch._C._len_torch_dispatch_stack()


def is_functorch_active() -> bool:
    """True inside torch.func.grad, vmap and their kin."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_inside_backward() -> bool:
    """True while the engine runs a backward pass in this thread: in a hook, or in a Function's backward."""
    return torch._C._current_graph_task_id() != -1


def are_saved_tensors_hooked() -> bool:
    """True inside a saved_tensors_hooks context."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def has_gradient_hooks(values: Iterable[Any]) -> bool:
    """True if something runs when the gradient of one of the leaves among ``values`` arrives: a hook, or DDP's reducer."""
    return any(
        isinstance(value, torch.Tensor)
        and value.requires_grad
        and value.is_leaf
        and bool(value._backward_hooks or value._post_accumulate_grad_hooks)
        for value in values
    ) or (torch.distributed.is_available() and torch.distributed.is_initialized())


def is_made_under_no_grad(tensor: torch.Tensor) -> bool:
    """True for a view that may not be written into while gradients are recorded."""
    autograd = torch._C._autograd
    return is_view(tensor) and autograd._get_creation_meta(tensor) == autograd.CreationMeta.NO_GRAD_MODE


def is_cut_off(value: Any) -> bool:
    """True for a view made under no_grad of what requires a gradient: it requires one, but gradients go nowhere from it."""
    if not isinstance(value, torch.Tensor) or not (value.requires_grad and value.is_leaf and is_view(value)):
        return False
    with torch.enable_grad():
        (edge,) = value.view_as(value).grad_fn.next_functions  # type: ignore[union-attr]
    return edge[0] is None


def is_saving_hooked_by_user() -> bool:
    """True inside a saved_tensors_hooks context that is not checkpoint's (which only drops and recomputes)."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint"


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


def is_forward_ad_active() -> bool:
    return torch.autograd.forward_ad._current_level >= 0


def is_anomaly_enabled() -> bool:
    return torch.is_anomaly_enabled()


def tracing_context() -> TracingContext | None:
    """Dynamo's context of the compilation that is going on in this thread."""
    return TracingContext.try_get()


def guard_weight(placeholder: torch.fx.Node, is_weight: bool) -> None:
    """Dynamo compiles again when the input stops being a leaf that is no view, or becomes one."""
    argument = placeholder.meta["grapharg"]
    source = argument.source
    install_guard(AttrSource(source, "is_leaf").make_guard(GuardBuilder.BOOL_MATCH))
    if is_weight and not isinstance(argument.example, torch.nn.Parameter):  # which is made detached
        install_guard(AttrSource(source, "_base").make_guard(GuardBuilder.NONE_MATCH))


def engine_grad(
    starts: Sequence[tuple[Any, int]], targets: Sequence[tuple[Any, int]], grads: Sequence[torch.Tensor], create_graph: bool
) -> Sequence[torch.Tensor | None]:
    """``torch.autograd.grad`` between gradient edges, by torch's engine whatever is installed in its way. Keeps the graph."""
    roots, inputs = (tuple(GradientEdge(*edge) for edge in edges) for edges in (starts, targets))
    run_backward: Any = torch.autograd.Variable._execution_engine.run_backward
    found: Sequence[torch.Tensor | None] = run_backward(
        roots, tuple(grads), True, create_graph, inputs, allow_unreachable=True, accumulate_grad=False
    )
    return found


def autocast_nesting() -> int:
    """How many autocast contexts are open in this thread; the weight-cast cache lives until there are none."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def close_autocast(nesting: int) -> None:
    """Leave the autocast contexts that were entered beyond ``nesting``, and drop the weight casts with the last, as they do."""
    while autocast_nesting() > nesting:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


def transforms() -> tuple[int, int, bool, bool, str | None]:
    """How deep this thread is in torch.func's transforms and in dual levels, and the flags that they set while they run."""
    return (
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch.autograd.forward_ad._current_level,
        torch._C._is_fwd_grad_enabled(),
        torch._C._functorch.get_inplace_requires_grad_allowed(),
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
    )


def close_transforms(before: tuple[int, int, bool, bool, str | None]) -> None:
    """Leave what was entered since ``before``, as a graph of Dynamo's does at its end only: it enters them by plain calls."""
    depth, dual_level, has_forward_gradients, is_in_place_allowed, why_hooks_are_refused = before
    torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    while torch.autograd.forward_ad._current_level > dual_level:
        torch.autograd.forward_ad.exit_dual_level()
    if dual_level < 0:
        _close_dual_level()
    torch._C._set_fwd_grad_enabled(has_forward_gradients)
    torch._C._functorch.set_inplace_requires_grad_allowed(is_in_place_allowed)
    torch._C._autograd._saved_tensors_hooks_enable()
    if why_hooks_are_refused is not None:
        torch._C._autograd._saved_tensors_hooks_disable(why_hooks_are_refused, fail_if_non_empty=False)


def _close_dual_level() -> None:
    """Leave the level that C++ alone knows. Nothing tells whether there is one, but that there cannot be two."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        level = 0
    torch._C._exit_dual_level(level=level)


@contextlib.contextmanager
def autocast_nested() -> Iterator[None]:
    """As inside an autocast context that changes nothing."""
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()


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


def graph_breaks() -> dict[str, int]:
    """How often Dynamo ended a graph so far, by its reason."""
    return dict(torch._dynamo.utils.counters["graph_break"])


def compilations() -> list[Any]:
    """What Dynamo says of its last 64 compilations: co_name, co_filename, restart_reasons, recompile_reason, ..."""
    return torch._dynamo.utils.get_compilation_metrics()


def around_compilations(begin: Callable[..., None], end: Callable[..., None]) -> None:
    """Have Dynamo call ``begin`` before and ``end`` after it compiles, until ``torch._dynamo.reset()`` forgets them."""
    handler = torch._dynamo.callback.callback_handler
    if begin not in handler.start_callbacks:
        handler.register_start_callback(begin)
        handler.register_end_callback(end)


def is_compiled(target: Any) -> bool:
    """True for what torch.compile returned."""
    return isinstance(target, torch._dynamo.OptimizedModule) or hasattr(target, "_torchdynamo_orig_callable")


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


__all__ = [
    "FAKE_TENSOR_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "GuardError",
    "are_saved_tensors_hooked",
    "around_compilations",
    "autocast_nested",
    "autocast_nesting",
    "break_graph_where_eager_is_needed",
    "break_graph_where_values_are_read",
    "call_natively",
    "close_autocast",
    "close_transforms",
    "compilations",
    "compile_fx_inner",
    "current_autograd_node",
    "dispatch_modes",
    "engine_grad",
    "fake_mode_for",
    "functionalized_graph",
    "graph_breaks",
    "guard_module_hooks",
    "guard_weight",
    "has_autocast_kernel",
    "has_gradient_hooks",
    "is_anomaly_enabled",
    "is_compiled",
    "is_cut_off",
    "is_fake",
    "is_forward_ad_active",
    "is_functorch_active",
    "is_graph_kept",
    "is_inside_backward",
    "is_made_under_no_grad",
    "is_saving_hooked_by_user",
    "is_view",
    "keep_ops_whole",
    "keep_views_in_graphs",
    "next_sequence_nr",
    "num_dispatch_modes",
    "put_in_order",
    "run_eagerly_where_dynamo_fails",
    "run_optimizers_eagerly",
    "saved_tensors_hooks_enabled",
    "sequence_nr",
    "settle_sizes",
    "skip_frames_of",
    "tracing_context",
    "transforms",
    "unpack_whole_tensors",
    "will_engine_execute",
    "without_dispatch_modes",
]
