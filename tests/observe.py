"""What can be seen of a run: every tensor within reach, how tensors share memory, and the state left behind.

    observe: (inputs, result | error) -> Observation         a frozen copy, safe from later changes
    differences: (Observation, Observation) -> list of sentences, empty if nothing differs

Reach: the inputs, the parameters and buffers of modules among them, the result, and the ``.grad`` of each of these, and
so on. Two tensors are compared by class, dtype, shape, strides, offset, layout, requires_grad, leaf-ness, bits and version
counter (of inputs: how often they were written into; of a ``.grad`` where a test asks for it, and of results only with
GRADC_TEST_VERSIONS=1); and all of them by which are the same object and which share a storage. And of each warning how often
it was given, wherever it points to.
"""

from __future__ import annotations

import dataclasses
import random
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gradc.bits import same_bits
from gradc.config import is_set
from gradc.torch_private.modes import autocast_nesting

MAX_GRADS_OF_GRADS = 3
_NOT_COMPARED = (
    "Error detected in gradc::Segment",  # anomaly mode names each node that an error passes on its way out
    "do not obey the gradient layout contract",  # once in a process, of what is slow; a captured pass accumulates by itself
    "is not supported with oneDNN",  # once in a process, of what is slow
    "`torch.jit.script",  # deprecated; torch's own formulas use it, at the first forward-mode AD of a process
    "`torch._utils.is_compiling` is deprecated",  # it is answered while the function is traced
    "dynamo_pgo force disabled",  # by Dynamo, of a setting of the user's
)
AUTOCASTS = ("cpu", "cuda")
ALL_VERSIONS = is_set("GRADC_TEST_VERSIONS")  # of results, too


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """One tensor at one path, such as ``input[0].grad``.

    ``traits`` are compared by ==; ``bits`` is a detached copy; ``identity`` and ``storage`` number the distinct objects
    and storages in the order of their first appearance.
    """

    path: str
    traits: dict[str, Any]
    bits: torch.Tensor
    identity: int
    storage: int


@dataclasses.dataclass(frozen=True)
class Raised:
    """An error: its class and base classes, and its message."""

    kinds: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        line = next((line for line in self.message.split("\n") if line.strip()), "")
        return f"{self.kinds[0]}: {line if len(line) <= 160 else line[:157] + '...'}"


@dataclasses.dataclass(frozen=True, eq=False)
class Observation:
    """Everything that is compared between two runs."""

    tensors: dict[str, Seen]
    values: dict[str, Any]
    error: Raised | None
    state: dict[str, Any]
    warned: Counter[str]


def observe(
    inputs: tuple[Any, ...],
    versions: dict[str, int],
    result: Any,
    error: BaseException | None,
    warned: Iterable[warnings.WarningMessage] = (),
) -> Observation:
    """Copy what can be seen after a run. ``versions`` are the inputs' version counters before it."""
    tensors: dict[str, Seen] = {}
    values: dict[str, Any] = {}
    identities: dict[int, int] = {}
    storages: dict[int, int] = {}
    for path, value in walk(inputs, result):
        if not isinstance(value, torch.Tensor):
            values[path] = _plain(value)
            continue
        traits = traits_of(value)
        if path in versions or (has_version(value) and (ALL_VERSIONS or path.endswith(".grad"))):
            traits["version"] = value._version - versions.get(path, 0)
        identity = identities.setdefault(id(value), len(identities))
        storage = storages.setdefault(_storage_key(value), len(storages))
        tensors[path] = Seen(path, traits, copy_of(value), identity, storage)
    raised = None if error is None else Raised(tuple(kind.__name__ for kind in type(error).__mro__), str(error))
    words = Counter(text for text in map(_in_words, warned) if not any(part in text for part in _NOT_COMPARED))
    return Observation(tensors, values, raised, ambient_state(), words)


def _in_words(warning: warnings.WarningMessage) -> str:
    """Category and text, without the place in torch's C++, addresses of objects, and the stack that anomaly mode shows."""
    text = re.sub(r" \(Triggered internally at .*\)|0x[0-9a-f]+", "", str(warning.message), flags=re.DOTALL)
    return f"{warning.category.__name__}: " + re.sub(r"(?<=^Error detected in )(\S+)\. .*", r"\1", text, flags=re.DOTALL)


def versions_of(inputs: tuple[Any, ...]) -> dict[str, int]:
    """path -> version counter, of every tensor within reach of ``inputs``."""
    return {path: value._version for path, value in walk(inputs, None) if has_version(value)}


def walk(inputs: tuple[Any, ...], result: Any) -> Iterator[tuple[str, Any]]:
    """Every (path, value) within reach, gradients behind what they are the gradients of."""
    for position, value in enumerate(inputs):
        yield from _walk_value(f"input[{position}]", value)
    yield from _walk_value("result", result)


def _walk_value(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    for key, leaf in pytree.tree_flatten_with_path(value)[0]:
        name = path + pytree.keystr(key)
        if isinstance(leaf, torch.nn.Module):
            yield from ((f"{name}.training", leaf.training),)
            for kind, found in (("", leaf.named_parameters()), ("", leaf.named_buffers())):
                for inner, tensor in found:
                    yield from _walk_tensor(f"{name}.{kind}{inner}", tensor)
        elif isinstance(leaf, torch.optim.Optimizer):
            yield from _walk_value(f"{name}.state", list(leaf.state.values()))
        elif isinstance(leaf, torch.Tensor):
            yield from _walk_tensor(name, leaf)
        elif leaf is not None or path == "result":
            yield name, leaf


def _walk_tensor(path: str, tensor: torch.Tensor, depth: int = 0) -> Iterator[tuple[str, Any]]:
    yield path, tensor
    if depth < MAX_GRADS_OF_GRADS and (grad := _grad(tensor)) is not None:
        yield from _walk_tensor(f"{path}.grad", grad, depth + 1)


def _grad(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.is_inference():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.grad


def has_version(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_inference()


def traits_of(tensor: torch.Tensor) -> dict[str, Any]:
    traits: dict[str, Any] = {
        "class": type(tensor).__name__,
        "dtype": tensor.dtype,
        "shape": None if tensor.is_nested else tuple(tensor.shape),
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": _is_leaf(tensor),
        "inference": tensor.is_inference(),
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
    }
    if tensor.layout is torch.strided and not tensor.is_nested:
        traits["stride"] = tensor.stride()
        traits["offset"] = tensor.storage_offset()
    if tensor.layout is torch.sparse_coo:
        traits["is_coalesced"] = tensor.is_coalesced()
    return traits


def _is_leaf(tensor: torch.Tensor) -> bool | str:
    try:
        return tensor.is_leaf
    except RuntimeError as error:  # a view made without recording, whose base was mutated with it
        return str(error)


def _storage_key(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -id(tensor)


@torch._dynamo.disable
def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return torch.empty(0)
        if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor) or tensor.is_nested:
            return tensor.detach().clone()
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.detach().as_subclass(torch.Tensor).clone()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return (type(value).__name__, str(value))
    if isinstance(value, numpy.ndarray | numpy.generic):
        return (type(value), value.dtype, value.shape, value.tobytes())
    if isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | None):
        return value
    return repr(type(value))


def ambient_state() -> dict[str, Any]:
    """The ambient state that a step leaves behind."""
    return {
        "autocast contexts open": autocast_nesting(),
        "torch generator": torch.get_rng_state(),
        "generators of GPUs": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "python generator": hash(random.getstate()),
        "numpy generator": _numpy_state(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in AUTOCASTS],
        "autocast dtype": [torch.get_autocast_dtype(device) for device in AUTOCASTS],
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _numpy_state() -> tuple[int, bytes]:
    state = numpy.random.get_state(legacy=False)["state"]
    return state["pos"], state["key"].tobytes()


def differences(
    eager: Observation, compiled: Observation, *, is_bitwise: bool = True, are_messages_compared: bool = False
) -> list[str]:
    """What differs, one sentence each, the gravest first."""
    found = _error_differences(eager, compiled, are_messages_compared)
    if (eager.error is None) != (compiled.error is None):
        return found
    found += _presence(eager.tensors, compiled.tensors) + _presence(eager.values, compiled.values)
    for path, value in eager.values.items():
        if path in compiled.values and not same_bits(value, compiled.values[path]):
            found.append(f"{path}: {compiled.values[path]!r}, eager: {value!r}")
    for path, seen in eager.tensors.items():
        if path in compiled.tensors:
            found += tensor_differences(seen, compiled.tensors[path], is_bitwise)
    found += _sharing_differences(eager.tensors, compiled.tensors)
    for name, value in eager.state.items():
        if not same_bits(value, compiled.state[name]):
            found.append(f"{name} after the step differs")
    return found + _warned_differences(eager.warned, compiled.warned)


def _warned_differences(eager: Counter[str], compiled: Counter[str]) -> list[str]:
    return [
        f"warns {compiled[text]} times, eager: {eager[text]}: {text}"
        for text in eager | compiled
        if compiled[text] != eager[text]
    ]


def _error_differences(eager: Observation, compiled: Observation, are_messages_compared: bool) -> list[str]:
    """A subclass of eager's class will do: Dynamo wraps errors that it meets while it captures."""
    if eager.error is None:
        return [] if compiled.error is None else [f"raises {compiled.error}"]
    if compiled.error is None:
        return [f"does not raise; eager raises {eager.error}"]
    if eager.error.kinds[0] not in compiled.error.kinds:
        return [f"raises {compiled.error}; eager raises {eager.error.kinds[0]}"]
    if are_messages_compared and eager.error.message != compiled.error.message:
        return [f"the message is {compiled.error.message!r}; eager's is {eager.error.message!r}"]
    return []


def _presence(eager: dict[str, Any], compiled: dict[str, Any]) -> list[str]:
    missing = [f"{path}: missing, eager has it" for path in eager if path not in compiled]
    return missing + [f"{path}: there, eager has none" for path in compiled if path not in eager]


def tensor_differences(eager: Seen, compiled: Seen, is_bitwise: bool = True) -> list[str]:
    """How two tensors differ, apart from what they share memory with."""
    found = [
        f"{eager.path}: {name} is {compiled.traits.get(name)}, eager: {value}"
        for name, value in eager.traits.items()
        if compiled.traits.get(name) != value
    ]
    comparable = not any(eager.traits.get(name) != compiled.traits.get(name) for name in ("dtype", "shape", "layout"))
    if comparable and not (same_bits if is_bitwise else is_close)(eager.bits, compiled.bits):
        found.append(f"{eager.path}: values differ {_how_much(eager.bits, compiled.bits)}")
    return found


def _sharing_differences(eager: dict[str, Seen], compiled: dict[str, Seen]) -> list[str]:
    """Which tensors are one object, or share a storage, in one run and not in the other."""
    found = []
    for word, attribute in (("the same object as", "identity"), ("in the storage of", "storage")):
        ours, theirs = _first_of(compiled, attribute), _first_of(eager, attribute)
        for path in eager:
            if path not in compiled or ours[path] == theirs[path]:
                continue
            found.append(f"{path}: {word} {_other(ours[path], path)}, eager: {_other(theirs[path], path)}")
    return found


def _first_of(tensors: dict[str, Seen], attribute: str) -> dict[str, str]:
    """path -> the first path with the same number."""
    first: dict[int, str] = {}
    return {path: first.setdefault(getattr(seen, attribute), path) for path, seen in tensors.items()}


def _other(first: str, path: str) -> str:
    return "nothing before it" if first == path else first


def same_with_strides(a: Any, b: Any) -> bool:
    """The same bits in two results, and the same strides of their tensors."""
    return same_bits(a, b) and _strides(a) == _strides(b)


def _strides(result: Any) -> list[tuple[int, ...]]:
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [tensor.stride() for tensor in tensors if tensor.layout is torch.strided and not tensor.is_nested]


def is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same but for rounding: the parts of tensors that consist of others each for itself."""
    if same_bits(a, b):
        return True
    if is_traceable_wrapper_subclass(a):
        names = a.__tensor_flatten__()[0]
        return type(a) is type(b) and all(is_close(getattr(a, name), getattr(b, name)) for name in names)
    if a.is_nested:
        return all(map(is_close, a.unbind(), b.unbind()))
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    is_rounded = a.is_floating_point() or a.is_complex()
    loose = a.dtype in (torch.bfloat16, torch.float16)
    rtol, atol = (5e-2, 1e-2) if loose else (1e-4, 1e-5)
    return is_rounded and a.shape == b.shape and torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def _how_much(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.layout is not torch.strided or a.is_nested or is_traceable_wrapper_subclass(a) or a.shape != b.shape:
        return ""
    if not (a.is_floating_point() or a.is_complex()):
        return f"({int((a != b).sum())} of {a.numel()} elements)"
    wide = torch.complex128 if a.is_complex() else torch.float64
    worst = (a.to(wide) - b.to(wide)).abs().nan_to_num().max().item()
    if worst == 0:
        return "(by the sign of a zero, or where one is NaN)"
    return f"(by up to {worst:.3g}; the largest is {a.to(wide).abs().nan_to_num().max().item():.3g})"
