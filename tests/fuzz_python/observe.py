"""What can be seen after each call of a program: results, errors, gradients, arguments, the module's state, what was printed.

    Recorder(compiler).run(text) -> Snapshots          differences: (eager's, compiled's) -> list of sentences

Values are described without end: containers in their order, objects by their attributes, functions by their cells and defaults,
tensors by tests.observe. What is met a second time is described as the first.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import io
import linecache
import random
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from gradc.bits import same_bits
from gradc.torch_private.modes import close_autocast
from tests.compilers import Compiler
from tests.observe import ambient_state, copy_of, traits_of

NAME = "fuzzed_program"
_DYNAMOS = re.compile(r"__|_\d+_c\d+$")  # names that Dynamo puts into a module
_OF_CHECKPOINT = "__dynamo_disable"  # what torch makes of it at its first call, or gradc does
_OF_BACKWARD = ("backward", "run_segments")  # frames of torch's Python and gradc's in front of the engine
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type, types.ModuleType)
_VERSIONS = re.compile(r"is at version \d+; expected version \d+")  # a region's are those of its first call: see the note
_OF_GRADIENTS = re.compile(r"\.grad\b")
_SHARED = (list, dict, set, collections.deque, torch.Tensor, np.ndarray)  # of these it counts which are the same


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """After one call: path -> what is there. ``num_regions`` and ``counted``: how much of it ran compiled, and otherwise.

    ``num_steps``: of optimizers; of those in eager that ended, and of those that gradc ran or counted. ``is_backward_cut``: a
    backward pass raised, and what had arrived in ``.grad`` by then is not guaranteed (docs/guarantees.md).
    """

    seen: dict[str, Any]
    raised: str
    num_regions: int = 0
    counted: int = 0
    num_steps: int = 0
    is_backward_cut: bool = False


class Recorder:
    """Runs a program under a compiler. ``counts`` returns the last numbers of a Snapshot, so far."""

    def __init__(self, compiler: Compiler, counts: Callable[[], tuple[int, ...]] = tuple) -> None:
        self.compiler, self.counts = compiler, counts
        self.snapshots: list[Snapshot] = []
        self.space: dict[str, Any] = {}

    def run(self, text: str) -> list[Snapshot]:
        """The text as a module, and its driver run from fixed seeds."""
        module = types.ModuleType(NAME)
        module.__file__ = filename = f"<fuzzed {hash(text) & 0xFFFFFFFF:08x}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        sys.modules[NAME], self.space = module, module.__dict__
        _reset()
        try:
            exec(compile(text, filename, "exec"), self.space)
            self.space["drive"](self.compiler, self.call)
        finally:
            del linecache.cache[filename], sys.modules[NAME]
            for name in self.space.keys() - {"__builtins__"}:  # names stay: Dynamo deletes them as its code dies
                self.space[name] = None
        return self.snapshots

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """One call, its backward pass, and a look at everything."""
        before = self.counts()
        out, result, error, failed, is_cut = io.StringIO(), None, None, "", False
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    result = function(*args, **kwargs)
                except Exception as raised:
                    is_cut = any(frame.name in _OF_BACKWARD for frame in traceback.extract_tb(raised.__traceback__))
                    error = raised.with_traceback(None)
            after = self.counts()
            look = Look()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                look.see("result", result)
                failed = _differentiate([tensor for path, tensor in look.tensors if path.startswith("result")])
                look.see("given", (args, kwargs))
                look.see("module", {name: value for name, value in self.space.items() if not _DYNAMOS.match(name)})
        look.seen["printed"], look.seen["error of backward"] = out.getvalue(), _VERSIONS.sub("", failed)
        look.seen["warned"] = [(one.category.__name__, str(one.message).split("\n")[0]) for one in warned]
        look.seen |= ambient_state()
        raised = "" if error is None else f"{type(error).__name__}: {error}"
        numbers = (now - then for now, then in zip(after, before))
        self.snapshots.append(Snapshot(look.seen, raised, *numbers, is_backward_cut=is_cut or bool(failed)))


class Look:
    """A description of values: path -> scalar, text, or a tensor's traits and bits. Later changes do not reach it."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self._met: dict[int, tuple[str, Any]] = {}
        self._storages: dict[int, str] = {}

    def see(self, path: str, value: Any) -> None:
        if isinstance(value, _SCALARS):
            self.seen[path] = value if isinstance(value, bool | int | float | complex) else repr(value)
            return
        first, _ = self._met.setdefault(id(value), (path, value))
        if first != path and not isinstance(value, tuple):  # whether constant tuples are one is Python's own affair
            self.seen[path] = f"is {first}" if isinstance(value, _SHARED) else f"like {type(value).__name__}"
            return
        if isinstance(value, torch.Tensor):
            self._see_tensor(path, value)
            return
        self.seen[path] = f"{type(value).__name__} {_summary(value)}"
        for key, inner in _parts(value):
            self.see(f"{path}{key}", inner)

    def _see_tensor(self, path: str, tensor: torch.Tensor) -> None:
        self.tensors.append((path, tensor))
        traits = traits_of(tensor)
        if not path.endswith(".grad"):  # a gradient's say how the engine added it up
            traits["view"] = tensor._is_view()
            if not tensor.is_inference():
                traits["version"] = tensor._version
        storage = self._storages.setdefault(tensor.untyped_storage()._cdata, path)
        self.seen[path], self.seen[f"{path} shares with"] = copy_of(tensor), storage
        for name, trait in traits.items():
            self.seen[f"{path} {name}"] = repr(trait)
        if not tensor.is_inference() and (tensor.is_leaf or tensor.retains_grad):
            self.see(f"{path}.grad", tensor.grad)


def differences(eager: list[Snapshot], compiled: list[Snapshot]) -> list[str]:
    """One sentence each, those of the first call that differs.

    A program whose backward pass raises in both, and leaves other gradients behind, is compared up to there.
    """
    for number, (theirs, ours) in enumerate(zip(eager, compiled)):
        found = dict(_differences(theirs, ours))
        if found and theirs.is_backward_cut and all(_OF_GRADIENTS.search(path) for path in found):
            return []
        if found:
            return [f"call {number}: {difference}" for difference in found.values()]
    return [] if len(eager) == len(compiled) else ["another number of calls"]


def _differences(eager: Snapshot, compiled: Snapshot) -> Iterator[tuple[str, str]]:
    """(path, sentence)."""
    if eager.raised != compiled.raised:
        yield "raised", f"raises {compiled.raised or 'nothing'!r}, eager: {eager.raised or 'nothing'!r}"
    for path in eager.seen | compiled.seen:
        ours, theirs = (snapshot.seen.get(path, "nothing") for snapshot in (compiled, eager))
        if not same_bits(ours, theirs):
            yield path, f"{path}: {ours!r}, eager: {theirs!r}"


def _summary(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, enum.Enum | range | torch.Size | functools.partial | slice | torch.Generator):
        return repr(value.get_state().tolist()) if isinstance(value, torch.Generator) else str(value).split(" at 0x")[0]
    return str(len(value)) if isinstance(value, list | tuple | dict | set | frozenset | collections.deque) else ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """(how it is written behind the whole, part)."""
    if isinstance(value, dict):
        yield "{keys}", [key if isinstance(key, _SCALARS) else type(key).__name__ for key in value]
        yield from ((f"[{number}]", inner) for number, inner in enumerate(value.values()))
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield ".cells", [_content(cell) for cell in value.__closure__ or ()]
        yield from ((f".{name}", getattr(value, name)) for name in ("__defaults__", "__kwdefaults__"))
        yield ".__dict__", {name: each for name, each in vars(value).items() if name != _OF_CHECKPOINT}
    elif isinstance(value, torch.nn.Module):
        yield from _parts_of_module(value)
    elif isinstance(value, torch.optim.Optimizer):
        yield ".groups", [{**group, "params": [tuple(p.shape) for p in group["params"]]} for group in value.param_groups]
        yield ".state", [value.state.get(p) for group in value.param_groups for p in group["params"]]
        yield ".others", [state for p, state in value.state.items() if not isinstance(p, torch.Tensor)]
    elif isinstance(value, torch.optim.lr_scheduler.LRScheduler | torch.amp.GradScaler):
        yield ".state", value.state_dict()
    elif isinstance(value, random.Random):
        yield ".state", hash(value.getstate())
    elif isinstance(value, np.random.Generator):
        yield ".state", repr(value.bit_generator.state)
    elif isinstance(value, BaseException):
        yield ".args", value.args
    elif isinstance(value, functools._lru_cache_wrapper):
        yield ".cache_info", tuple(value.cache_info())
    if type(value).__module__ == NAME and not isinstance(value, torch.nn.Module | enum.Enum):
        yield from ((f".{name}", inner) for name, inner in _attributes(value).items())


def _parts_of_module(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for kind in ("_parameters", "_buffers", "_modules"):
        yield from ((f".{name}", inner) for name, inner in getattr(module, kind).items())
    yield from ((f".{name}", inner) for name, inner in vars(module).items() if not name.startswith("_"))


def _attributes(value: Any) -> dict[str, Any]:
    """Without asking the class, which may have an answer of its own."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _differentiate(tensors: list[torch.Tensor]) -> str:
    """Backward of a number made of all that can be differentiated; the error, or nothing."""
    found = [t for t in tensors if t.requires_grad and not t.is_leaf and t.numel() and t.is_floating_point()]
    if not found:
        return ""
    try:
        with torch.enable_grad():
            sum((t.double() * 0.5).sin().sum() for t in found).backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0]
    return ""


def _reset() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    close_autocast(0)
    torch.clear_autocast_cache()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
