"""The devices on which an optimizer's formula is a kernel of gradc's own, and how it gets there.

    card_of:       parameters -> Card | None                   None: the host, or a device that only torch works on
    why_no_kernel: (formula, card, parameters) -> why it is none there, or ""
    update_for:    (formula, card, parameters) -> its native form there
    CARDS:         type of a device -> what makes its Card

torch updates lists of tensors there ("foreach"), unless it is told otherwise. A device is made known by its type.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradc import native
from gradc.journal import log
from gradc.optim import kernels
from gradc.optim.formulas import Formula
from gradc.torch_private.nvrtc import nvrtc_library

if TYPE_CHECKING:
    import gradc._C as extension

_ROOMS = (128, 512)  # rows of one launch: its arguments, which are copied whole, are to stay below 32 KB
_OF_TORCHS = (torch.Tensor, torch.nn.Parameter)
_FLAGS = ("--std=c++17", "--fmad=false")


@dataclasses.dataclass(frozen=True)
class Card:
    """One device.

    Attributes:
        device: with its number.
        name: of the hardware: what was proven there holds for all of that name.
        load: the text of a kernel -> the kernel. Raises OSError or RuntimeError.
        ops: how torch's ops round there.
    """

    device: torch.device
    name: str
    load: Callable[[str], extension.DeviceKernel]
    ops: tuple[tuple[str, str], ...] = tuple(kernels.ON_CUDA.items())


def card_of(params: Any) -> Card | None:
    """The card of the first parameter."""
    first = params[0] if isinstance(params, list | tuple) and params else None
    return _card(first.device) if isinstance(first, torch.Tensor) and type(first) in _OF_TORCHS and native.is_built() else None


def why_no_kernel(formula: Formula, card: Card, params: Sequence[Any]) -> str:
    """See the module's docstring. Loading one would end the capture of a graph."""
    if native.extension.is_captured(card.device):
        return "stream that a graph is captured from"
    if params[0].dtype not in kernels.DTYPES:
        return "parameter that is neither float32 nor float64"
    kernel = _kernel(formula, card, params[0].dtype, _room(params))
    return "" if kernel is not None else "kernel that cannot be compiled on this machine"


def update_for(formula: Formula, card: Card, params: Sequence[Any]) -> extension.KernelUpdate:
    """A new one at each call, with the kernel of the last: it remembers where the tensors lie."""
    dtype, room = params[0].dtype, _room(params)
    num_numbers = sum(call.number is not None for call in formula.calls)
    return native.extension.KernelUpdate(
        formula.num_writes, _kernel(formula, card, dtype, room), dtype, num_numbers, room, kernels.ELEMENTS, kernels.THREADS
    )


def _room(params: Sequence[Any]) -> int:
    return next((room for room in _ROOMS if len(params) <= room), _ROOMS[-1])


@functools.cache
def _card(device: torch.device) -> Card | None:
    return CARDS[device.type](device) if device.type in CARDS else None


@functools.cache
def _kernel(formula: Formula, card: Card, dtype: torch.dtype, room: int) -> Any:
    try:
        return card.load(kernels.source_of(formula, dtype, room, dict(card.ops)))
    except (OSError, RuntimeError) as error:
        log("fallbacks", f"an optimizer's kernel cannot be compiled for {card.name}: {error}")
        return None


def _cuda(device: torch.device) -> Card | None:
    """An NVIDIA GPU. torch calls AMD's CUDA, too."""
    if torch.version.cuda is None:
        return None
    return Card(device, torch.cuda.get_device_name(device), functools.partial(_load_on_cuda, device))


CARDS: dict[str, Callable[[torch.device], Card | None]] = {"cuda": _cuda}


def _load_on_cuda(device: torch.device, source: str) -> extension.DeviceKernel:
    cubin = compile_for_cuda(source, torch.cuda.get_device_capability(device))
    return native.extension.load_cuda_kernel(device.index, cubin, kernels.NAME)


def compile_for_cuda(source: str, capability: tuple[int, int]) -> bytes:
    """A cubin of ``source``, by NVRTC.

    Raises:
        OSError: there is no NVRTC.
        RuntimeError: it refuses the source, and says why.
    """
    library = nvrtc_library()
    program = ctypes.c_void_p()
    if library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"update.cu", 0, None, None):
        raise RuntimeError("NVRTC makes no program")
    try:
        flags = [flag.encode() for flag in (f"--gpu-architecture=sm_{capability[0]}{capability[1]}", *_FLAGS)]
        if library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags)):
            raise RuntimeError(
                _text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode(errors="replace")
            )
        return _text(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Callable[..., Any], read: Callable[..., Any], program: Sequence[Any] | ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    read(program, buffer)
    return buffer.raw
