"""A backend of torch.compile that runs what AOTAutograd hands it call by call, and falsifies one of the calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

Change = Callable[[np.ndarray], None]


def one_ulp(numbers: np.ndarray) -> None:
    numbers[...] = np.nextafter(numbers, np.float32(np.inf))


def another_value(numbers: np.ndarray) -> None:
    numbers.flat[0] += 1 + 2 * np.abs(numbers).max()


class Interpreter(fx.Interpreter):
    """Runs ``graph``; what the call number ``place`` of those that count returns is changed in memory, unseen by torch."""

    def __init__(self, graph: fx.GraphModule, place: int, change: Change) -> None:
        super().__init__(graph)
        self.place, self.change, self.number = place, change, 0

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        if is_counted(node):
            if self.number == self.place:
                with _disable_current_modes(), torch.no_grad():
                    self.change((result[0] if isinstance(result, tuple) else result).numpy())
            self.number += 1
        return result


def is_counted(node: fx.Node) -> bool:
    """True for what computes floating-point numbers, and is no view: of those each may be wrong."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or node.target.is_view:
        return False
    value = node.meta["val"]
    value = value[0] if isinstance(value, tuple | list) else value
    is_looked_at = isinstance(value, Tensor) and value.is_floating_point()
    return is_looked_at and node.target is not torch.ops.aten.detach.default


class Perturbing:
    """``name`` of the call that was changed is known once it was compiled."""

    def __init__(self, phase: str, place: int, change: Change) -> None:
        self.phase, self.place, self.change, self.name = phase, place, change, ""

    def __call__(self, step: Any) -> Any:
        backend = aot_autograd(fw_compiler=self._compiler("forward"), bw_compiler=self._compiler("backward"))
        return torch.compile(step, backend=backend)

    def _compiler(self, phase: str) -> Callable[..., Any]:
        def compile(graph: fx.GraphModule, inputs: Any) -> Any:
            place = -1
            if phase == self.phase:
                names = [node.target._schema.name for node in graph.graph.nodes if is_counted(node)]
                place = self.place % len(names)
                self.name = names[place].replace("::", ".")
            return make_boxed_func(lambda *args: Interpreter(graph, place, self.change).run(*args))

        return compile
