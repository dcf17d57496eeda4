"""Fake tensors, which have sizes and no data, symbolic sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    disable_fake_tensor_cache,
    in_kernel_invocation_manager,
)
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import TLS, DimDynamic, ShapeEnv
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError as GuardError
from torch.utils._sympy.printers import PythonPrinter

from gradc.torch_private.modes import without_dispatch_modes

__all__ = [
    "FAKE_TENSOR_ERRORS",
    "FakeTensor",
    "FakeTensorMode",
    "GuardError",
    "call_on_meta",
    "fake_mode_for",
    "has_symbolic_sizes",
    "heed_guards",
    "is_fake",
    "keeping_lazy_zeros",
    "new_shape_env",
    "new_symint",
    "new_symint_of",
    "python_meta_kernels",
    "settle_sizes",
    "stand_in_for",
    "text_of_size",
]

_CPU = torch.device("cpu")
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default  # a view, and its schema does not say so
_LAZY_ZEROS = torch.ops.aten._efficientzerotensor.default
_MAX_LAYOUTS = 4096
Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides
_layouts: dict[Any, Layout] = {}
FAKE_TENSOR_ERRORS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
_PRINTER = PythonPrinter()


@contextlib.contextmanager
def fake_mode_for(inputs: list[Any]) -> Iterator[list[Any]]:
    """Fake versions of ``inputs``, without history, in a fake mode of their own, the only dispatch mode inside."""
    handles = [value.detach() if isinstance(value, torch.Tensor) else value for value in inputs]
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # constants stay real
    with without_dispatch_modes(), mode:
        yield [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in handles]


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def call_on_meta(op: Any, args: Sequence[Any], is_plain: bool = True) -> torch.Tensor | None:
    """What ``op`` makes of fake tensors on the CPU, by its kernel for tensors without data; None for unusual arguments.

    A fake mode comes to the same in three times the time: its cache takes longer than such a kernel. ``is_plain``: it does come
    to the same; otherwise the fake mode is asked, once for each layout.
    """
    mode = None
    for arg in args:
        if type(arg) is FakeTensor:
            is_unusual = arg._has_symbolic_sizes_strides or arg.constant is not None or arg.real_tensor is not None
            is_unusual = is_unusual or arg._is_zerotensor()
            if is_unusual or arg.fake_device != _CPU or (mode is not None and arg.fake_mode is not mode):
                return None
            mode = arg.fake_mode
        elif isinstance(arg, (list, tuple)):
            if not all(type(item) is int for item in arg):
                return None
        elif type(arg) not in (int, bool, float) and arg is not None and type(arg) is not torch.dtype:
            return None
    if mode is None:
        return None
    if op._schema._is_view_op() or op is _UNSAFE_VIEW:
        with in_kernel_invocation_manager(mode):
            return FakeTensor(mode, op(*args), _CPU)
    where = in_kernel_invocation_manager(mode) if is_plain else contextlib.nullcontext()
    size, stride, dtype = _layout_of_result(op, args, where)
    with in_kernel_invocation_manager(mode):
        return FakeTensor(mode, torch.empty_strided(size, stride, dtype=dtype, device="meta"), _CPU)


def _layout_of_result(op: Any, args: Sequence[Any], where: contextlib.AbstractContextManager[Any]) -> Layout:
    """How the one result of ``op``, which is no view, is laid out. Called inside ``where``, if this is the first time.

    Half of these kernels are in Python and take longer than all the rest; a model calls them on the same few layouts.
    """
    key = (op, torch.get_default_dtype(), *map(_layout_key, args))
    layout = _layouts.get(key)
    if layout is None:
        with where:
            made = op(*args)
        if len(_layouts) >= _MAX_LAYOUTS:
            _layouts.clear()
        layout = _layouts[key] = tuple(made.size()), made.stride(), made.dtype
    return layout  # not looked up again: another thread that traces may have cleared them


def _layout_key(arg: Any) -> Any:
    """All of an argument that such a kernel can ask for; 1, 1.0 and True are different."""
    if isinstance(arg, torch.Tensor):
        return tuple(arg.size()), arg.stride(), arg.dtype, arg.is_conj(), arg.is_neg()
    return (type(arg), tuple(arg) if isinstance(arg, list) else arg)


def keeping_lazy_zeros(op: Any, values: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
    """Where to call ``op`` on fake tensors: their cache forgets which are zeros that take no memory."""
    is_lazy = op is _LAZY_ZEROS or any(isinstance(value, torch.Tensor) and value._is_zerotensor() for value in values)
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) if is_lazy else None
    return contextlib.nullcontext() if mode is None else disable_fake_tensor_cache(mode)


def stand_in_for(fake: torch.Tensor) -> torch.Tensor:
    """A real tensor laid out as ``fake``, whatever its values. A symbolic size is as in the call that is traced."""
    size, stride = ([n if isinstance(n, int) else n.node.hint for n in sizes] for sizes in (fake.size(), fake.stride()))
    return torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device).requires_grad_(fake.requires_grad)


def has_symbolic_sizes(values: Iterable[Any]) -> bool:
    return any(is_fake(value) and value._has_symbolic_sizes_strides for value in values)


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


def new_symint_of(symbol: sympy.Symbol, hint: int) -> torch.SymInt:
    """An int that is nothing but ``symbol``, in an environment of its own: only to be handed on."""
    made = torch.SymInt(SymNode(symbol, new_shape_env(), int, hint=hint))
    assert isinstance(made, torch.SymInt)
    return made


def heed_guards() -> None:
    """Called before anything is traced: what is found out about symbols is guarded, in this thread.

    Fake tensors turn that off within some calls. A recursion that is too deep can end on the way out of one, and it stays off:
    a size that decides something would be fixed, and nobody would check it.
    """
    TLS.suppress_guards, TLS.ignore_fresh_unbacked_symbols = False, False
    TLS.suppress_guards_stack = []


def settle_sizes(fake_mode: FakeTensorMode) -> None:
    """From now on what would fix or bound a symbolic size of ``fake_mode`` raises ``GuardError``: nobody would check it."""
    heed_guards()
    if (env := fake_mode.shape_env) is not None:
        env.freeze()
        env._error_on_new_guards = True


def python_meta_kernels() -> contextlib.AbstractContextManager[Any]:
    """Within, torch's Python kernels tell what an op returns, where there are some: not all in C++ know symbolic sizes."""
    return enable_python_dispatcher()


def text_of_size(size: Any) -> str:
    """A symbolic size, a sympy expression, as Python would write it: ``s0//2``."""
    return _PRINTER.doprint(size)
