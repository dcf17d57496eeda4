"""The prototype's Python: recording what a unit calls, backward passes as Programs, and what is patched.

live(step, optimizers) -> step
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradc.backends import lookup_backend
from gradc.ir.known import handle_of
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder
from gradc.ir.values import Instruction, Ref, leaves
from gradc.passes import pipeline
from gradc.torch_private.autograd import set_version
from prototypes.live.ext import ext

OP, ENGINE, FUNCTION, REQUIRES, END = range(5)
MATCH, RECORD = 1, 2
_engine = torch.autograd.graph._engine_run_backward
_detach = torch.ops.aten.detach.default
_new_like, _copy = torch.ops.aten.new_empty_strided.default, torch.ops.aten.copy_.default
_MOVES_MEMORY = frozenset({"aten::set_", "aten::resize_", "aten::resize_as_", "aten::set_data", "aten::as_strided_"})


class _Answers(TorchDispatchMode):
    """What calls are answered with while history is made: the results that their kernels gave when they were met."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.deque[Instruction] = collections.deque()
        self.flats: dict[int, torch.Tensor] = {}
        self.anew: dict[int, torch.Tensor] = {}
        self.is_real = True
        self.are_empty = False  # of a backward pass whose results nobody takes
        self.slots: Any = ()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_real:
            return self._made_anew(op, op(*args, **kwargs))
        if op.is_view or op is _detach or op.namespace == "profiler":
            return op(*args, **kwargs)
        if not _makes_tensors(op):  # it checks, or counts
            if self.calls and self.calls[0].op is op:
                self.calls.popleft()
            return op(*args, **kwargs)
        while self.are_empty and self.calls and self.calls[0].op is not op:
            self.calls.popleft()  # who holds a gradient decides whether the engine copies it
        if self.are_empty and not self.calls:
            return op(*args, **kwargs)
        if not self.calls or self.calls[0].op is not op:
            raise RuntimeError(f"live: {op} where {self.calls[0].op if self.calls else 'nothing'} was recorded")
        call = self.calls.popleft()
        if op._schema.is_mutable:
            with _counting_writes(op, args):
                return _written(op, args, kwargs, call, self._made)
        made = [None if out is None else self._made(out) for out in call.outs]
        return made if call.returns_list else made[0]

    def _made_anew(self, op: Any, result: Any) -> Any:
        """What comes out of a backward pass that runs once more, because its history is wanted: other tensors, same values."""
        while self.calls and self.calls[0].op is not op and self.calls[0].op is _detach:
            self.calls.popleft()
        if self.calls and self.calls[0].op is op:
            outs = self.calls.popleft().outs
            self.anew.update((out, leaf) for out, leaf in zip(outs, leaves(result)) if out is not None)
        return result

    def _made(self, flat: int) -> torch.Tensor:
        if not self.are_empty:
            return self.flats[flat]
        meta = self.slots[flat].meta
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)


@contextlib.contextmanager
def _counting_writes(op: Any, args: Any) -> Iterator[None]:
    """A write into the tensors of a list counts in their versions, which torch forgets under a mode."""
    is_foreach = op._schema.name.startswith("aten::_foreach_")  # each is a loop of calls; what is fused is not counted
    lists = [
        value
        for value, argument in zip(args, op._schema.arguments)
        if is_foreach and argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, (list, tuple))
    ]
    before = [tensor._version for tensor in leaves(lists)]
    yield
    for tensor, version in zip(leaves(lists), before, strict=True):
        if tensor._version == version:
            set_version(tensor, version + 1)


def _makes_tensors(op: Any) -> bool:
    return op._schema.is_mutable or any("Tensor" in str(result.type) for result in op._schema.returns)


def _written(op: Any, args: Any, kwargs: Any, call: Instruction, made: Any) -> Any:
    """The results of an op that writes: arguments, as its schema says, and what it makes besides."""
    schema, found = op._schema, []
    if not schema.returns:
        return None
    by_name = {argument.name: value for argument, value in zip(schema.arguments, args)} | kwargs
    of_set = {next(iter(a.alias_info.before_set)): by_name[a.name] for a in schema.arguments if a.alias_info is not None}
    outs = iter(call.outs)
    for result in schema.returns:
        if result.alias_info is not None and result.alias_info.before_set:
            value = of_set[next(iter(result.alias_info.before_set))]
            found.append(value)
            for _ in leaves(value):
                next(outs, None)
        else:
            out = next(outs)
            found.append(None if out is None else made(out))
    return None if not found else found[0] if len(found) == 1 else tuple(found)


@dataclasses.dataclass
class _Path:
    """A unit from begin to end: for each node its calls."""

    spans: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)  # node -> first, last
    outs: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # node -> flats that Python has
    ends: dict[int, tuple[int, int, int]] = dataclasses.field(default_factory=dict)  # node -> calls, slots, inputs so far
    recorded: Any = None  # with the calls


class _Recorder(Recorder):
    """Also notes whether something was read, or memory moved."""

    asks = reads = moves = False  # for a number; of what size something is; for other memory

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.namespace == "profiler":
            return op(*args, **(kwargs or {}))
        self.asks = self.asks or torch.Tag.data_dependent_output in op.tags
        self.reads = self.reads or _has_size_of_data(op, args)
        self.moves = self.moves or op._schema.name in _MOVES_MEMORY or torch.Tag.inplace_view in op.tags
        with _counting_writes(op, args):
            return super().__torch_dispatch__(op, types, args, kwargs)

    def go_on(self, path: _Path, node: int, flats: list[tuple[int, torch.Tensor]]) -> None:
        """Behind what an earlier recording holds up to this node. ``flats``: one may be several tensors."""
        num_calls, num_slots, num_inputs = path.ends[node]
        program = path.recorded
        self.instructions[:], self.slots[:], self.inputs[:] = (
            program.instructions[:num_calls],
            program.slots[:num_slots],
            program.inputs[:num_inputs],
        )
        self.declared.update((slot, position) for position, slot in enumerate(self.inputs))
        self.constants.update((slot, value) for slot, value in program.constants.items() if slot < num_slots)
        for slot in self.slots:
            self._names.unique(slot.name, is_tensor=slot.meta is not None)
        for flat, tensor in flats:
            self.known.add(flat, tensor)

    def flat(self, tensor: torch.Tensor, first: int) -> int:
        """The flat of a tensor: of what the calls from ``first`` on made, rather than of what it is another handle of."""
        flat, handle = self.slot_of(tensor), handle_of(tensor)
        if flat is not None:
            return flat
        for call in reversed(self.instructions[first:]):
            for out in call.outs:
                if out is not None and handle_of(self.tensor_of(out)) == handle:
                    return out
        flat = self.slot_of_alias(tensor)
        return -1 if flat is None else flat


def _has_size_of_data(op: Any, args: Any) -> bool:
    if torch.Tag.dynamic_output_shape not in op.tags:
        return False
    if op in (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor):
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return True


class Callbacks:
    """What the extension asks of Python."""

    def __init__(self) -> None:
        self.paths: list[_Path] = []
        self.path: _Path = _Path()
        self.recorder: Any = None
        self.calls: dict[int, list[Instruction]] = {}
        self.slots: dict[int, Any] = {}  # of the backward passes among the nodes
        self.why: collections.Counter[str] = collections.Counter()
        self.answers, self.answering = _Answers(), contextlib.ExitStack()
        self.paths_of: dict[int, _Path] = {}
        self.problem, self._last = "", 0

    # ---- history

    def begin(self) -> None:
        self.answers.is_real = True
        self.answers.anew.clear()
        self.answering.enter_context(self.answers)

    def answer(self, node: int, kind: int, is_real: bool, flats: dict[int, torch.Tensor]) -> None:
        answers = self.answers
        answers.is_real = kind == ENGINE and is_real
        calls = self.calls.get(node, ())
        kernels = (call for call in calls if answers.is_real or not (call.op.is_view or call.op is _detach))
        answers.calls = collections.deque(kernels)
        answers.flats, answers.are_empty, answers.slots = flats, kind == ENGINE, self.slots.get(node)

    def answered(self) -> None:
        answers = self.answers
        if not answers.is_real and not answers.are_empty and answers.calls:
            raise RuntimeError(f"live: {answers.calls[0].op} was recorded, and not called again")
        answers.is_real = True
        answers.calls.clear()

    def begun(self, node: int, flats: dict[int, torch.Tensor]) -> None:
        """History is there. ``node``: from where on all is recorded; negative where nothing is."""
        self.answering.close()
        if node < 0:
            return
        self.path, self.problem = _Path(), ""
        self.recorder = _Recorder("live", lift=self._unknown)
        self.path.recorded = self.recorder
        before = self.paths_of.get(node)
        if before is not None:
            self.recorder.go_on(before, node, [*flats.items(), *self.answers.anew.items()])
            nodes = list(before.spans)
            for each in nodes[: nodes.index(node) + 1]:
                self.path.spans[each], self.path.outs[each] = before.spans[each], before.outs[each]
                self.path.ends[each] = before.ends[each]
        self.answers.anew.clear()
        self._last = len(self.recorder.instructions)
        self.recorder.__enter__()

    # ---- recording

    def _unknown(self, tensor: torch.Tensor) -> int:
        slot = self.recorder.slot_of_alias(tensor)
        return self.recorder.add_phantom(tensor) if slot is None else slot

    def before(self, externals: list[torch.Tensor]) -> list[int]:
        self.recorder.asks = self.recorder.reads = self.recorder.moves = False
        return [self.recorder.add_input(tensor, "external") for tensor in externals]

    def after(self, node: int, kind: int, outs: Any) -> tuple[list[int], list[Any], bool]:
        path, recorder, first = self.path, self.recorder, self._last
        flats = [recorder.flat(tensor, first if is_new else 0) for is_new, tensor in outs]
        if kind == ENGINE:
            flats = [self._without_copy(flat, tensor, first) if is_new else flat for flat, (is_new, tensor) in zip(flats, outs)]
        calls = recorder.instructions[first:]
        path.spans[node], path.outs[node] = (first, len(recorder.instructions)), flats
        path.ends[node] = len(recorder.instructions), len(recorder.slots), len(recorder.inputs)
        self.paths_of[node] = path
        if node not in self.calls:
            self.calls[node] = calls
        if kind == ENGINE:
            self.slots[node] = recorder.slots
        self._last = len(recorder.instructions)
        read = {slot for call in calls for slot in call.reads}
        is_known = not any(recorder.slots[slot].label for slot in read) and not recorder.moves
        is_known = is_known and not (kind == ENGINE and recorder.asks)
        if not is_known or (kind == ENGINE and not recorder.reads):
            return flats, [], is_known
        return flats, [self._described(call) for call in calls], True

    def _without_copy(self, flat: int, gradient: torch.Tensor, first: int) -> int:
        """The flat of a leaf's gradient. The engine copies what the recorder holds; in eager it takes it as it is."""
        calls = self.recorder.instructions
        of = {call.outs[0]: place for place, call in enumerate(calls[first:], first) if call.op is _new_like and call.outs}
        copies = [place for place, call in enumerate(calls[first:], first) if call.op is _copy and call.outs[0] == flat]
        if flat not in of or len(copies) != 1:
            return flat
        source = calls[copies[0]].args[1].slot
        readers = [place for place, call in enumerate(calls[first:], first) if source in call.reads]
        known = self.recorder.tensor_of(source)
        made = any(source in call.outs for call in calls[first:])
        if not made or readers != [of[flat], *copies] or known.stride() != gradient.stride():
            return flat
        for place in sorted((of[flat], copies[0]), reverse=True):
            del calls[place]
        set_version(gradient, known._version)
        self.recorder.known.add(source, gradient)
        return source

    def _described(self, call: Instruction) -> tuple[Any, ...]:
        """A call for the extension: its op, an argument of each kind, its results, and their shapes where data decides."""
        args = []
        for position, argument in enumerate(call.op._schema.arguments):
            if position < len(call.args):
                args.append(_argument(call.args[position]))
            elif argument.name in call.kwargs:
                args.append(_argument(call.kwargs[argument.name]))
            else:
                args.append(("default",))
        is_dynamic = torch.Tag.dynamic_output_shape in call.op.tags
        shapes = [list(self.recorder.slots[out].meta.shape) for out in call.outs] if is_dynamic else []
        outs = [-1 if out is None else out for out in call.outs]
        return call.op._schema.name, call.op._schema.overload_name, args, outs, shapes

    def moved(self, flat: int, tensor: torch.Tensor) -> None:
        self.recorder.known.add(flat, tensor)

    def looked_at(self) -> None:
        self.problem = self.problem or "history is looked at"

    def abort(self, why: str) -> None:
        self._close()
        self.why[why] += 1

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.__exit__(None, None, None)
            self.recorder.forget_tensors()
            self.recorder = None

    def finish(self, end: int) -> bool:
        path = self.path
        self._close()
        if self.problem:
            self.why[self.problem] += 1
            return False
        self.paths.append(path)
        for node in path.spans:
            if node in self.slots:
                ext.invalidate(node)
        return True

    # ---- making Programs

    def compile(self, node: int) -> tuple[Any, list[int], list[int]]:
        paths = [path for path in self.paths if node in path.spans] or [self.paths_of[node]]
        first, last = paths[0].spans[node]
        calls = paths[0].recorded.instructions[first:last]
        needed = {flat for path in paths for call in path.recorded.instructions[path.spans[node][1] :] for flat in call.reads}
        made = {out for call in calls for out in call.outs if out is not None}
        before, inputs = set[int](), dict[int, None]()
        for call in calls:
            inputs.update((flat, None) for flat in call.reads if flat not in before and flat not in paths[0].recorded.constants)
            before.update(call.reads)
            before.update(out for out in call.outs if out is not None)
        outputs = [flat for flat in dict.fromkeys(paths[0].outs[node]) if flat in made and flat not in inputs]
        outputs += sorted(flat for flat in (needed & made) - set(outputs) if flat not in inputs)
        if not calls:
            return None, [], []
        program = paths[0].recorded
        constants = {flat: value for flat, value in program.constants.items() if flat in before}
        piece = Program("live", program.slots, tuple(inputs), constants, tuple(calls), tuple(map(Ref, outputs)))
        if all(flat in made and flat not in inputs for call in calls for flat in call.writes):
            piece = pipeline.run(pipeline.joined(outputs), piece)
        return lookup_backend("replay")(piece), list(piece.inputs), outputs

    # ---- calls of autograd's

    def really_run(self, outs: Any, grads: Any, ins: Any, flags: str) -> Any:
        keep, create, unused, accumulate = (flag == "1" for flag in flags)
        return _engine(
            tuple(outs), tuple(grads), keep, create, tuple(ins), allow_unreachable=unused, accumulate_grad=accumulate
        )

    def really_apply(self, flags: str, ins: Any) -> Any:
        cls, template = _TEMPLATES[int(flags)]
        rest = iter(ins)
        result = _real_apply(cls, *(next(rest) if part is _TENSOR else part for part in template))
        if not isinstance(result, torch.Tensor):
            raise NotImplementedError("live prototype: a Function with more than one result")
        return (result,)


def _argument(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Ref):
        return ("slot", value.slot)
    if isinstance(value, (tuple, list)) and any(isinstance(part, Ref) for part in value):
        has_none = any(part is None for part in value)
        return ("optlist" if has_none else "list", [-1 if part is None else part.slot for part in value])
    return ("constant", value)


_FUNCTIONS = os.environ.get("LIVE_FUNCTIONS") == "1"  # Functions as ops, whose Python does not run where they are answered
_TENSOR = object()
_TEMPLATES: list[tuple[Any, tuple[Any, ...]]] = []
_NUMBERS: dict[Any, int] = {}
_real_apply = torch.autograd.Function.apply.__func__


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if ext.mode() in (MATCH, RECORD) and not _FUNCTIONS:
        ext.leave("a Function")
    has_context = cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context
    if ext.mode() in (MATCH, RECORD) and not kwargs and has_context:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        template = tuple(_TENSOR if isinstance(arg, torch.Tensor) else arg for arg in args)
        key = (cls, *("t" if arg is _TENSOR else (type(arg), repr(arg)) for arg in template))
        number = _NUMBERS.get(key)
        if number is None:
            number = _NUMBERS[key] = len(_TEMPLATES)
            _TEMPLATES.append((cls, template))
        found = ext.function(tensors, str(number))
        if found is not None:
            return found[0]
    return _real_apply(cls, *args, **kwargs)


# ---- what Python meets


def _run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
    if ext.mode() in (MATCH, RECORD):
        grads, keep, create, inputs, *rest = args
        names = dict(zip(("allow_unreachable", "accumulate_grad"), rest)) | kwargs
        unused, accumulate = bool(names.get("allow_unreachable")), bool(names.get("accumulate_grad"))
        all_tensors = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in (*t_outputs, *inputs))
        if all_tensors and not (create and accumulate) and not (accumulate and inputs):
            flags = "".join("1" if flag else "0" for flag in (keep, create, unused, accumulate))
            is_done, found = ext.engine(list(t_outputs), list(grads), list(inputs), flags)
            if is_done:
                return found
        else:
            ext.leave("backward of another kind")
    return _engine(t_outputs, *args, **kwargs)


callbacks = Callbacks()
ext.configure(callbacks)
_ASKING = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook")
_PROPERTIES = ("grad_fn", "_backward_hooks", "output_nr")
_SETTERS = ("data", "_backward_hooks")
_LEAVING = (
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
    (torch.autograd.forward_ad, "enter_dual_level"),
    (torch, "set_default_dtype"),
    (torch, "use_deterministic_algorithms"),
    (torch, "compile"),
    (torch.autograd.set_detect_anomaly, "__init__"),
    (torch.utils, "swap_tensors"),
    (torch.inference_mode, "__enter__"),  # what it ends with is the dispatcher's state from before it
)


@functools.cache
def patch() -> None:
    """Let autograd's entries and those who look at its history come by."""
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = _run_backward
    torch.autograd.Function.apply = classmethod(_apply)
    for name in _PROPERTIES:
        base = getattr(torch._C.TensorBase, name)
        setattr(torch.Tensor, name, property(_observing(base.__get__, only_looks=True), base.__set__))
    for name in _SETTERS:
        base = getattr(torch._C.TensorBase, name)
        getter = torch.Tensor.__dict__[name].fget if name in torch.Tensor.__dict__ else base.__get__
        setattr(torch.Tensor, name, property(getter, _observing_setter(base.__set__)))
    requires, is_required = torch.Tensor.requires_grad_, torch._C.TensorBase.requires_grad

    def requires_grad_(self: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        return self if ext.requires_grad(self, requires_grad) else requires(self, requires_grad)

    torch.Tensor.requires_grad_ = requires_grad_
    torch.Tensor.requires_grad = property(is_required.__get__, lambda self, on: requires_grad_(self, on))
    for name in _ASKING:
        setattr(torch.Tensor, name, _observing(getattr(torch.Tensor, name)))
    for name in ("_make_subclass", "_make_wrapper_subclass", "as_subclass"):
        leaving = _leaving(getattr(torch.Tensor, name), name)
        setattr(torch.Tensor, name, leaving if name == "as_subclass" else staticmethod(leaving))
    for script in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        script.__call__ = _leaving(script.__call__, "a scripted function", torch._C._get_graph_executor_optimize)
    for owner, name in _LEAVING:
        setattr(owner, name, _leaving(getattr(owner, name), name))


def _leaving(function: Callable[..., Any], why: str, if_so: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if if_so():  # the JIT's optimizer makes nodes of its own, past the dispatcher
            ext.leave(why)
        return function(*args, **kwargs)

    return call


def _observing(method: Callable[..., Any], only_looks: bool = False) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        ext.ask(self, only_looks)
        return method(self, *args, **kwargs)

    return call


def _observing_setter(setter: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: torch.Tensor, value: Any) -> None:
        ext.ask(self, False)
        setter(self, value)

    return call


def live(step: Callable[..., Any], optimizers: Any) -> Callable[..., Any]:
    """The step, run live."""
    patch()
    for optimizer in optimizers:
        optimizer.step = _synced(optimizer.step)

    @functools.wraps(step)
    def call(*args: Any, **kwargs: Any) -> Any:
        has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        if ext.mode() != 0 or torch.is_anomaly_enabled() or has_hooks:
            return step(*args, **kwargs)
        ext.start()
        try:
            result = step(*args, **kwargs)
        except BaseException:
            ext.leave("error")
            ext.sync()
            raise
        ext.sync()
        return result

    return call


def _synced(update: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        is_live = ext.mode() != 0
        ext.sync()
        result = update(*args, **kwargs)
        if is_live:
            ext.start()
        return result

    return call
