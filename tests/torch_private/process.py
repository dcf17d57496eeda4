"""What a process sees of torch, a line each: ``python -m tests.torch_private.process WHAT BACKEND``.

WHAT: ``without``: gradc is not imported. ``imported``: it is, and nothing more. ``used``: gradc compiled something before.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

MODULES = (
    "torch",
    "torch.autograd",
    "torch.autograd.graph",
    "torch.optim",
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
)
# Numbers that mean nothing in another process.
_NUMBERS = re.compile("(?<=__compiled_fn_)[0-9a-f_]+|(?<=__builtins_dict__)_[0-9]+| at 0x[0-9a-f]+")
graphs: list[str] = []


def show(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A backend that keeps the text of each graph."""
    graphs.append(graph.code)
    return graph.forward


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2


def of_all_kinds(x: Tensor, at: Tensor) -> Tensor:
    """What gradc has Dynamo take otherwise."""
    hidden = Double.apply(x) + torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
    hidden.register_hook(lambda grad: grad * 3)
    first, second = torch.addcdiv(hidden, x, x + 2, value=0.5).mT
    window = torch.hann_window(8)
    spectrum = torch.stft(x.sum().expand(64), 8, window=window, return_complex=True)
    sound = torch.istft(spectrum, 8, window=window)
    return torch.narrow(first * second, 0, at, 2).sum() + sound.sum()


def used_by_gradc() -> None:
    import gradc

    x = torch.randn(2, 2, requires_grad=True)
    for backend in ("replay", "inductor"):
        gradc.compile(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), backend=backend)(x).sum().backward()
    with gradc.compiled_autograd.enable():
        (x * 2).sum().backward()


def compiled_by_others(backend: str) -> None:
    x = torch.randn(3, 2, requires_grad=True)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        compiled(x).sum().backward()
        torch.compile(optimizer.step, backend="aot_eager")()
    model[0].register_forward_hook(lambda *_: print("hook: called"))
    compiled(x)
    torch.compile(of_all_kinds, backend=show)(x, torch.tensor(0))
    torch.compile(model, backend=show)(x)
    torch.compile(optimizer.step, backend=show)()


def report() -> Iterator[str]:
    for number, graph in enumerate(graphs):
        yield f"graph {number}: {graph!r}"
    for group, counts in sorted(torch._dynamo.utils.counters.items()):
        yield f"counters {group}: {sorted(counts.items())}"
    for config in (torch._dynamo.config, torch._functorch.config, torch._inductor.config):
        for name, value in sorted(config.get_config_copy().items()):  # type: ignore[attr-defined]
            yield f"{config.__name__}.{name}: {sorted(value) if isinstance(value, set) else value!r}"


def attributes() -> Iterator[str]:
    """Every function, class and method of torch that could be replaced, by the place of its code."""
    for name, module in sorted(sys.modules.items()):
        if name in MODULES or name.startswith("torch._dynamo."):
            yield from _members(name, vars(module))
    for target, handler in torch._dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers().items():
        yield f"Dynamo's handler of {getattr(target, '__name__', target)}: {_identity(handler)}"


def _members(owner: str, namespace: Any) -> Iterator[str]:
    for name, value in list(namespace.items()):
        if isinstance(value, types.ModuleType):
            continue  # what was imported so far
        yield f"{owner}.{name}: {_identity(value)}"
        if isinstance(value, type) and value.__module__ == owner:
            yield from _members(f"{owner}.{name}", vars(value))


def _identity(value: Any) -> str:
    value = getattr(value, "__func__", value)
    code = code if isinstance(code := getattr(value, "__code__", None), types.CodeType) else None
    name = getattr(value, "__qualname__", "") if code or isinstance(value, type) else ""
    return f"{type(value).__name__} {name}" + (f" {code.co_filename}:{code.co_firstlineno}" if code else "")


if __name__ == "__main__":
    what, backend = sys.argv[1:]
    if what != "without":
        import gradc  # noqa: F401
    if what == "used":
        used_by_gradc()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    compiled_by_others(backend)
    for line in (*report(), *attributes()):
        print(_NUMBERS.sub("", line.replace("\n", "\\n")))
