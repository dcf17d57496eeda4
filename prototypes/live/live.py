"""The prototype's Python: recording what a unit calls, making Programs of its pieces, and what is patched.

live(step, optimizers) -> step
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from gradc.backends import lookup_backend
from gradc.ir.program import Program
from gradc.ir.recorder import Recorder
from gradc.ir.values import Ref
from gradc.passes import pipeline
from prototypes.live.ext import ext

OP, BACKWARD, GRAD, OBSERVE, END = range(5)
_KEY = "TESTING_ONLY_GenericMode"
_real_backward, _real_grad = torch.autograd.backward, torch.autograd.grad


class _Recorder(Recorder):
    """Also notes whether something was read, or has a size that depends on data."""

    reads = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_read(op, args):
            self.reads = True
        return super().__torch_dispatch__(op, types, args, kwargs)

    def slot(self, tensor: torch.Tensor) -> int:
        slot = self.slot_of(tensor)
        slot = self.slot_of_alias(tensor) if slot is None else slot
        return -1 if slot is None else slot


def _is_read(op: Any, args: Any) -> bool:
    if torch.Tag.data_dependent_output in op.tags:
        return True
    if torch.Tag.dynamic_output_shape not in op.tags:
        return False
    if op in (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor):
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return True


@dataclasses.dataclass
class _Path:
    """A unit from begin to end: for each node its calls."""

    spans: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)  # node, first, last
    boundaries: dict[int, tuple[int, int]] = dataclasses.field(
        default_factory=dict
    )  # node -> calls before it, calls before the next
    args: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # boundary -> flats that it reads
    externals: dict[int, int] = dataclasses.field(default_factory=dict)  # flat -> slot
    flats: dict[int, int] = dataclasses.field(default_factory=dict)  # slot -> flat
    program: Program | None = None
    alive: list[int] = dataclasses.field(default_factory=list)  # flats


class Callbacks:
    """What the extension asks of Python."""

    def __init__(self) -> None:
        self.paths: list[_Path] = []
        self.ends: dict[int, _Path] = {}
        self.path: _Path | None = None
        self.recorder: Any = None
        self.flats_of_nodes: dict[int, list[int]] = {}
        self.why: dict[str, int] = {}

    # ---- recording

    def begin(self) -> None:
        self.path, self.problem = _Path(), ""
        self.recorder = _Recorder("live", lift=self._unknown)
        self.recorder.__enter__()
        self._last = 0

    def _unknown(self, tensor: torch.Tensor) -> int:
        slot = self.recorder.slot_of_alias(tensor)
        return self.recorder.add_phantom(tensor) if slot is None else slot

    def before(self, externals: list[tuple[int, torch.Tensor]]) -> None:
        recorder = self.recorder
        for slot, tensor in externals:
            known = recorder.slot_of_alias(tensor)
            if known is not None:
                self.problem = self.problem or "two handles of one memory"
            flat = recorder.add_input(tensor, "external")
            self.path.externals[flat], self.path.flats[slot] = slot, flat
        recorder.reads = False

    def after(self, node: int, kind: int, name: str, outs: Any, is_scalar: bool, args: list[int]) -> tuple[list[int], bool]:
        path, recorder = self.path, self.recorder
        flats = [recorder.slot(tensor) for _, _, tensor in outs]
        if self.flats_of_nodes.setdefault(node, flats) != flats:
            self.problem = "the same calls, other slots"
        for (slot, is_new, _), flat in zip(outs, flats, strict=True):
            if is_new:
                path.flats[slot] = flat
        now = len(recorder.instructions)
        is_boundary = kind in (OBSERVE, END) or (kind == OP and (is_scalar or recorder.reads))
        if kind != OP and recorder.reads and kind != OBSERVE:
            self.problem = "a backward pass that reads"
        path.spans.append((node, self._last, now))
        if is_boundary:
            path.boundaries[node] = (self._last, now)
            path.args[node] = [path.flats[slot] for slot in args]
        self._last = now
        recorder.reads = False
        return flats, is_boundary

    def moved(self, slot: int, tensor: torch.Tensor) -> None:
        flat = self.path.flats.get(slot, -1)
        if flat >= 0:
            self.recorder.known.add(flat, tensor)

    def abort(self, why: str) -> None:
        self._close()
        self.why[why] = self.why.get(why, 0) + 1

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.__exit__(None, None, None)
            self.recorder.forget_tensors()
            self.recorder = None

    def done(self, end: int) -> bool:
        recorder, path = self.recorder, self.path
        path.spans.append((end, self._last, self._last))
        path.boundaries[end] = (self._last, self._last)
        path.args[end] = []
        path.program = recorder.program([])
        self._close()
        return True

    def finish(self, end: int, alive: list[int]) -> bool:
        path = self.path
        path.alive = [path.flats[slot] for slot in alive]
        problem = self.problem or _why_not(path)
        if problem:
            self.why[problem] = self.why.get(problem, 0) + 1
            return False
        self.paths.append(path)
        self.ends[end] = path
        for node in path.boundaries:
            ext.invalidate(node)
        return True

    def widen(self, end: int, alive: list[int]) -> None:
        path = self.ends[end]
        path.alive = [path.flats[slot] for slot in alive]
        for node in path.boundaries:
            ext.invalidate(node)

    # ---- making Programs

    def compile(self, node: int) -> tuple[Any, list[tuple[bool, int]], list[int]]:
        paths = [path for path in self.paths if node in path.boundaries]
        if not paths:
            return False, [], []
        first, last, _ = _extent(paths[0], node)
        needed: dict[int, None] = {}
        for path in paths:
            needed.update(dict.fromkeys(_needed(path, node, last)))
        path = paths[0]
        program = path.program
        dropped = _dropped(path)
        calls = [call for index, call in enumerate(program.instructions[first:last], first) if index not in dropped]
        made = {out for call in calls for out in call.outs if out is not None}
        outputs = [flat for flat in needed if flat in made and flat not in path.externals]
        reads = dict.fromkeys(slot for call in calls for slot in call.reads)
        before: set[int] = set()
        inputs = []
        for call in calls:  # an in-place result is the slot itself, made before
            inputs += [slot for slot in call.reads if slot not in before and slot not in program.constants]
            before.update(call.reads)
            before.update(out for out in call.outs if out is not None)
        inputs = list(dict.fromkeys(inputs))
        outputs = [flat for flat in outputs if flat not in inputs]
        if not calls:
            return None, [], []
        piece = Program(
            "live",
            program.slots,
            tuple(inputs),
            {k: v for k, v in program.constants.items() if k in reads},
            tuple(calls),
            tuple(map(Ref, outputs)),
        )
        own = made - set(inputs)
        if all(slot in own for call in calls for slot in call.writes):
            piece = pipeline.run(pipeline.joined(outputs), piece)
        run = lookup_backend("replay")(piece)
        ins = [(True, path.externals[slot]) if slot in path.externals else (False, slot) for slot in piece.inputs]
        return run, ins, outputs

    # ---- calls of autograd's

    def really_backward(self, loss: torch.Tensor) -> None:
        _real_backward(loss)

    def really_grad(self, outs: Any, ins: Any, grads: Any, flags: str) -> Any:
        retain, create, unused = (None if flag == "n" else flag == "1" for flag in flags)
        return _real_grad(outs, ins, grads, retain, create, allow_unused=unused)

    def really_apply(self, flags: str, ins: Any) -> Any:
        cls, template = _TEMPLATES[int(flags)]
        rest = iter(ins)
        result = _real_apply(cls, *(next(rest) if part is _TENSOR else part for part in template))
        if not isinstance(result, torch.Tensor):
            raise NotImplementedError("live prototype: a Function with more than one result")
        return (result,)


_FUNCTIONS = os.environ.get("LIVE_FUNCTIONS") == "1"  # Functions as ops, whose Python does not run where they are answered
_TENSOR = object()
_TEMPLATES: list[tuple[Any, tuple[Any, ...]]] = []
_NUMBERS: dict[Any, int] = {}
_real_apply = torch.autograd.Function.apply.__func__


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if ext.mode() in (1, 2) and not _FUNCTIONS:
        ext.leave("a Function")
    if ext.mode() in (1, 2) and not kwargs and cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context:
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


def _dropped(path: _Path) -> set[int]:
    return {index for first, last in path.boundaries.values() for index in range(first, last)}


def _extent(path: _Path, node: int) -> tuple[int, int, int]:
    """First call of the piece before this boundary, and the one after its last."""
    before = 0
    for other, (first, last) in path.boundaries.items():
        if other == node:
            return before, first, last
        before = last
    raise AssertionError(node)


def _needed(path: _Path, node: int, last: int) -> list[int]:
    later = [slot for call in path.program.instructions[last:] for slot in call.reads]
    is_later, args = False, []
    for other in path.boundaries:
        is_later = is_later or other == node
        if is_later:
            args += path.args[other]
    return later + args + path.alive


def _why_not(path: _Path) -> str:
    program, dropped = path.program, _dropped(path)
    phantoms = {index for index, slot in enumerate(program.slots) if slot.label}
    end = list(path.boundaries)[-1]
    before_end = max((last for node, (_, last) in path.boundaries.items() if node != end), default=0)
    for index, call in enumerate(program.instructions):
        if index in dropped:
            continue
        if phantoms & set(call.reads):
            return f"tensor of unknown origin: {call.op}"
        if index < before_end:
            if any(slot in path.externals for slot in call.writes):
                return "write into what is outside, before a read"
            if torch.Tag.nondeterministic_seeded in call.op.tags:
                return "random numbers before a read"
    if any(flat < 0 for flat in path.alive) or any(flat < 0 for flats in path.args.values() for flat in flats):
        return "value that no call made"
    return ""


# ---- what Python meets


# The signatures are autograd's own.
def _backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    if ext.mode() not in (1, 2):
        return _real_backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
    loss = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
    is_one = isinstance(tensors, torch.Tensor) or len(tensors) == 1
    grads = grad_tensors is None or (isinstance(grad_tensors, (tuple, list)) and grad_tensors[0] is None)
    if is_one and grads and not retain_graph and not create_graph and not inputs:
        if ext.backward(loss):
            return None
    else:
        ext.leave("backward of another kind")
    return _real_backward(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)


def _flag(value: Any) -> str:
    return "n" if value is None else "1" if value else "0"


def _grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Any = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    if ext.mode() in (1, 2):
        outs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        ins = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        grads = [grad_outputs] if isinstance(grad_outputs, torch.Tensor) else grad_outputs
        if (
            only_inputs
            and not is_grads_batched
            and not materialize_grads
            and (grads is None or all(g is not None for g in grads))
        ):
            found = ext.grad(outs, ins, grads, _flag(retain_graph) + _flag(create_graph) + _flag(allow_unused))
            if found is not None:
                return found
        else:
            ext.leave("gradients of another kind")
    return _real_grad(
        outputs,
        inputs,
        grad_outputs,
        retain_graph,
        create_graph,
        only_inputs,
        allow_unused,
        is_grads_batched,
        materialize_grads,
    )


callbacks = Callbacks()
ext.configure(callbacks)
_METHODS = ("numpy", "tolist", "data_ptr", "__dlpack__", "__array__")
_ASKING = (
    "untyped_storage",
    "storage",
    "__deepcopy__",
    "__reduce_ex__",
    "register_hook",
    "retain_grad",
    "_is_view",
    "register_post_accumulate_grad_hook",
)
_PROPERTIES = ("grad_fn", "data", "_version", "_base")
_LEAVING = (
    (torch, "manual_seed"),
    (torch, "seed"),
    (torch, "get_rng_state"),
    (torch, "set_rng_state"),
    (torch.random, "manual_seed"),
    (torch.random, "get_rng_state"),
    (torch.random, "set_rng_state"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
    (torch, "set_default_dtype"),
    (torch, "use_deterministic_algorithms"),
    (torch, "compile"),
    (torch.autograd.set_detect_anomaly, "__init__"),
)


@functools.cache
def patch() -> None:
    """Let autograd's entries and the observers that do not dispatch come by."""
    torch.autograd.backward, torch.autograd.grad = _backward, _grad
    torch.autograd.Function.apply = classmethod(_apply)
    for name in _METHODS:
        setattr(torch.Tensor, name, _observing(getattr(torch.Tensor, name)))
    for name in _PROPERTIES:
        base = getattr(torch._C.TensorBase, name)
        setattr(torch.Tensor, name, property(_observing(base.__get__, ext.ask), _leaving(base.__set__, name)))
    requires, is_required = torch.Tensor.requires_grad_, torch._C.TensorBase.requires_grad

    def requires_grad_(self: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        return self if ext.requires_grad(self, requires_grad) else requires(self, requires_grad)

    torch.Tensor.requires_grad_ = requires_grad_
    torch.Tensor.requires_grad = property(is_required.__get__, lambda self, on: requires_grad_(self, on))
    for name in _ASKING:
        setattr(torch.Tensor, name, _observing(getattr(torch.Tensor, name), ext.ask))
    for name in ("_make_subclass", "_make_wrapper_subclass", "as_subclass"):
        function = getattr(torch.Tensor, name)
        setattr(
            torch.Tensor, name, _leaving(function, name) if name == "as_subclass" else staticmethod(_leaving(function, name))
        )
    for owner, name in _LEAVING:
        setattr(owner, name, _leaving(getattr(owner, name), name))


def _leaving(function: Callable[..., Any], why: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        ext.leave(why)
        return function(*args, **kwargs)

    return call


def _observing(method: Callable[..., Any], observe: Callable[..., Any] = ext.observe) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        observe(self)
        return method(self, *args, **kwargs)

    return call


def live(step: Callable[..., Any], optimizers: Any) -> Callable[..., Any]:
    """The step, run live."""
    patch()
    for optimizer in optimizers:
        optimizer.step = _synced(optimizer.step)

    @functools.wraps(step)
    def call(*args: Any, **kwargs: Any) -> Any:
        if ext.mode() != 0:
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
