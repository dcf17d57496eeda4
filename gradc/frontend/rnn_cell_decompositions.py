"""Recurrent cells whose batch is a symbol, call by call.

    decomposed: (function, its arguments) -> a function that makes the same calls, or the function itself

In C++ ``lstm_cell`` and ``gru_cell`` ask for the sizes of their gates as plain numbers, and so would fix each size they meet.
The functions here make ATen's calls in ATen's order, and so the same autograd nodes. For the CPU, where a cell has no kernel of
its own and autocast looks at the calls inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from gradc.ir.values import leaves
from gradc.torch_private.fakes import has_symbolic_sizes


def decomposed(function: Any, args: Sequence[Any]) -> Any:
    cell = _CELLS.get(function)
    if cell is None or not has_symbolic_sizes(leaves(args)) or args[0].device.type != "cpu":
        return function
    return cell


def _lstm_cell(
    x: Tensor, state: tuple[Tensor, Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    hidden, cell = state
    gates = _chunks(linear(hidden, w_hh, b_hh).add_(linear(x, w_ih, b_ih)), 4)
    entering, kept, new, leaving = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[2].tanh_(), gates[3].sigmoid_()
    cell = (kept * cell).add_(entering * new)
    return leaving * cell.tanh(), cell


def _gru_cell(
    x: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    of_input = _chunks(linear(x, w_ih, b_ih), 3)
    of_hidden = _chunks(linear(hidden, w_hh, b_hh), 3)
    reset = of_hidden[0].add_(of_input[0]).sigmoid_()
    update = of_hidden[1].add_(of_input[1]).sigmoid_()
    new = of_input[2].add(of_hidden[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new)


def _chunks(gates: Tensor, count: int) -> Sequence[Tensor]:
    return torch.unsafe_split(gates, (gates.shape[1] + count - 1) // count, 1)


_CELLS: dict[Any, Callable[..., Any]] = {torch.lstm_cell: _lstm_cell, torch.gru_cell: _gru_cell}
