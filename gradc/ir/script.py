"""Print a Program as a Python file that runs by itself, with torch alone: to be kept, read, changed, or sent to somebody.

    script: (Program, title, inputs or None, grad mode) -> Script          save: (Script, path) -> None

The file has ``make_inputs() -> list`` and ``run(inputs) -> list of outputs``, and as a program prints what comes out. On the
same inputs, with the same settings of torch's, it makes the calls that gradc makes, and so has the same bits. Tensors that do
not fit in a line lie beside it, in a file of the same name that ends in ``.pt``.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch

from gradc.ambient import AutocastState
from gradc.bits import same_bits
from gradc.errors import ConfigError
from gradc.ir import script_parts
from gradc.ir.floats import TERMS, bits_of
from gradc.ir.ops import MAY_BE_KEPT
from gradc.ir.program import Program
from gradc.ir.text import render, symbolic
from gradc.ir.values import Instruction, Ref, Sym, TensorMeta, leaves
from gradc.torch_private.modes import matmul_precision

_SMALL = 16  # numbers that a tensor may have to stand in the text
_TORCHS_OWN = ("aten", "prims", "prim")  # what `import torch` alone defines
_READ_WORKSPACES = ("aten::mkldnn_rnn_layer_backward", "aten::_cudnn_rnn_backward")
_SIZE, _FLOAT = 4, 0.75  # of what is symbolic, where no inputs are given
_HAVE_TEXT = (Ref, Sym, str, int, float, complex, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device)
_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)


@dataclasses.dataclass(frozen=True)
class Script:
    """The text of the file, and what lies beside it: ``{"constants": {name: tensor}, "inputs": [...]}``, or {}."""

    source: str
    tensors: Mapping[str, Any]


def script(program: Program, title: str, inputs: Sequence[Any] | None = None, *, is_grad_enabled: bool = False) -> Script:
    """See the module's docstring. ``title`` heads the file; without ``inputs`` it makes random ones of the captured layouts.

    ``is_grad_enabled``: the grad mode that kernels are to find. A forward runs below autograd, but in grad mode.

    Raises:
        ConfigError: for a call or an input that cannot be written as text: the message names it, and the user's line.
    """
    return _Writer(program, title, inputs, is_grad_enabled).script()


def save(script: Script, path: Path) -> None:
    """Write the file, and that of the tensors if there are any.

    Raises:
        ConfigError: if ``path`` does not end in ``.py``.
    """
    if path.suffix != ".py":
        raise ConfigError(f"save({str(path)!r}): what is saved is Python. Choose a name that ends in .py.")
    path.write_text(script.source)
    if script.tensors:
        torch.save(script.tensors, path.with_suffix(".pt"))


class _Writer:
    def __init__(self, program: Program, title: str, inputs: Sequence[Any] | None, is_grad_enabled: bool) -> None:
        self.program, self.title, self.inputs, self.is_grad_enabled = program, title, inputs, is_grad_enabled
        self._refuse_what_has_no_text()
        self.code, namespace = render(program)
        self.kept: dict[str, torch.Tensor] = {}
        self.constants = [f"{name} = {self._constant(name, value)}" for name, value in namespace.items()]

    def script(self) -> Script:
        beside = {"constants": self.kept, "inputs": list(map(_detached, self.inputs or ()))}
        tensors = beside if self.kept or self.inputs is not None else {}
        make_inputs = self._make_inputs()
        values = [*(['SAVED = torch.load(__file__.removesuffix(".py") + ".pt")'] if tensors else []), *self.constants]
        parts = [self._head(make_inputs), *self._helpers(make_inputs), "\n".join(values), self.code, make_inputs]
        run = _source(script_parts.run).replace("PROGRAM", self.program.name).replace("GRAD_MODE", str(self.is_grad_enabled))
        parts += [run, self._main()]
        return Script("\n\n\n".join(part.strip("\n") for part in parts if part) + "\n", tensors)

    # ---- the parts of the file

    def _head(self, make_inputs: str) -> str:
        inputs = "the inputs that were saved with it" if self.inputs is not None else "random inputs of the captured layouts"
        return "\n".join(
            [
                f'"""{self.title}: what gradc captured with torch {torch.__version__}, and runs.',
                "",
                f"Run as a program it takes {inputs}, and prints what comes out.",
                '"""',
                "",
                *(["import math", ""] if "math." in self.code + make_inputs else []),
                "import torch",
                *self._other_libraries(),
            ]
        )

    def _other_libraries(self) -> Iterator[str]:
        """What defines the ops that torch does not have: imported, or asked for."""
        names = sorted({(call.op.namespace, call.op._schema.name) for call in self.program.instructions})
        if own := [name for namespace, name in names if namespace == "gradc"]:
            yield f"import gradc  # torch has no {', '.join(own)}"
        for namespace, name in names:
            if namespace not in (*_TORCHS_OWN, "gradc"):
                yield f"\n# {name} is no op of torch's own. What defines it has to be imported above this line."
                yield f'if not hasattr(torch.ops.{namespace}, "{name.split("::")[1]}"):'
                yield f'    raise ImportError("{name}: import what defines it, at the top of this file")'

    def _helpers(self, make_inputs: str) -> Iterator[str]:
        yield _source(script_parts.devices)
        yield _source(script_parts.set_autocast)
        if "flatten(" in self.code:
            yield _source(script_parts.flatten)
        used = [name for name in TERMS if f"{name}(" in self.code]
        yield from (_source(getattr(script_parts, name)) for name in dict.fromkeys(["float_of", *used] if used else []))
        if "random(" in make_inputs:
            yield _source(script_parts.random)

    def _make_inputs(self) -> str:
        if self.inputs is not None:
            return 'def make_inputs():\n    return list(SAVED["inputs"])'
        symbols = [f"    {symbol} = {self._example_of(symbol)}" for symbol in self.program.symbols]
        made = [f"        {self._input(position)}" for position in range(len(self.program.inputs))]
        return "\n".join(["def make_inputs():", *symbols, "    torch.manual_seed(0)", "    return [", *made, "    ]"])

    def _main(self) -> str:
        return "\n".join(
            [
                'if __name__ == "__main__":',
                f"    torch.set_num_threads({torch.get_num_threads()})  # the order of a sum hangs on it",
                *_settings(),
                "    for output in run(make_inputs()):",
                "        print(output)",
            ]
        )

    # ---- values

    def _constant(self, name: str, value: Any) -> str:
        match value:
            case torch.Tensor():
                if (text := _literal(value)) is None:
                    self.kept[name] = _detached(value)
                return text or f'SAVED["constants"]["{name}"]'
            case AutocastState():
                return repr(dict(value.enabled))
            case float():
                return _real(value)
            case complex():
                return f"complex({_real(value.real)}, {_real(value.imag)})"
            case _:
                return "torch.default_generator"  # anything else was refused

    def _input(self, position: int) -> str:
        """The one at ``position``, and what it is to the user."""
        slot = self.program.slots[self.program.inputs[position]]
        value = str(self._number_at(position)) if slot.meta is None else _random(slot.meta)
        return f"{value},  # {slot.label or slot.name}"

    def _number_at(self, position: int) -> sympy.Symbol | None:
        """The symbol that the input at ``position`` is; None for a tensor."""
        symbols = self.program.symbols.items()
        return next((symbol for symbol, (kind, where, _) in symbols if (kind, where) == ("int", position)), None)

    def _example_of(self, symbol: sympy.Symbol) -> int:
        is_float = any(f"{name}({symbol})" in self.code for name in TERMS)
        return bits_of(_FLOAT) if is_float else _SIZE

    # ---- what cannot be written

    def _refuse_what_has_no_text(self) -> None:
        program = self.program
        if self.inputs is not None and len(self.inputs) != len(program.inputs):
            raise ConfigError(f"{self.title} takes {len(program.inputs)} inputs, and {len(self.inputs)} were given.")
        for call in program.instructions:
            if getattr(call.op, "_schema", None) is None or call.op.namespace == MAY_BE_KEPT:
                raise self._error_at(call, "the call is not one of an op that a file could call")
            for value in leaves((call.args, call.kwargs)):
                if not isinstance(value, _HAVE_TEXT) and value is not torch.default_generator:
                    raise self._error_at(call, f"it takes a {type(value).__name__}, which cannot be written as text")
            if self.inputs is None and call.op._schema.name in _READ_WORKSPACES:
                raise self._error_at(call, "it reads a workspace of a kernel's, and dies of random numbers. Give the inputs")
        for position, slot in enumerate(program.inputs):
            if self.inputs is None and program.slots[slot].meta is None and self._number_at(position) is None:
                raise ConfigError(f"{self.title}: no random numbers can stand for {program.slots[slot].name}. Give its inputs.")

    def _error_at(self, call: Instruction, why: str) -> ConfigError:
        at = f"\n  at {call.where}" if call.where else ""
        return ConfigError(
            f"{self.title} cannot be saved as a file that runs by itself: {call.op}: {why}.{at}\n"
            "  str() of it shows all calls; leave that one out of the compiled function to save the rest."
        )


def _source(function: Callable[..., Any]) -> str:
    return inspect.getsource(function)


def _literal(tensor: torch.Tensor) -> str | None:
    """A small tensor as text that makes it again, bit for bit; None for another."""
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.dtype in _PLAIN
    if not is_plain or tensor.numel() > _SMALL or not tensor.is_contiguous():
        return None
    again = torch.tensor(tensor.tolist(), dtype=tensor.dtype)
    is_same = same_bits(again, tensor) and bool(tensor.isfinite().all())
    return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})" if is_same else None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _real(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value!r}")'


def _random(meta: TensorMeta) -> str:
    size, stride = _tuple(meta.shape), _tuple(meta.stride)
    made = f'random({size}, {stride}, {_number(meta.offset)}, {meta.dtype}, "{meta.device}")'
    made = f"torch._neg_view({made})" if meta.is_neg else made
    return f"{made}.conj()" if meta.is_conj else made


def _number(value: Any) -> str:
    return symbolic(value.expr) if isinstance(value, Sym) else repr(value)


def _tuple(values: Iterable[Any]) -> str:
    numbers = list(map(_number, values))
    return f"({', '.join(numbers)}{',' if len(numbers) == 1 else ''})"


def _settings() -> Iterator[str]:
    """What of torch's settings changes results, and is not as torch has it at first."""
    if torch.get_default_dtype() is not torch.float32:
        yield f"    torch.set_default_dtype({torch.get_default_dtype()})"
    if torch.are_deterministic_algorithms_enabled():
        yield "    torch.use_deterministic_algorithms(True)"
    if (precision := matmul_precision()) in ("high", "medium"):
        yield f'    torch.set_float32_matmul_precision("{precision}")'
    elif precision != "highest":
        yield f"    # matrix products: {precision} (torch.backends.*.matmul.fp32_precision)"
    if not torch.backends.mkldnn.enabled:
        yield "    torch.backends.mkldnn.set_flags(False)"
