"""Formulas of nodes whose own C++ code takes another path on fake tensors than on real ones.

    replacing:  (Tape, Recorder, nodes, create_graph) -> a context in which the engine runs these nodes by FORMULAS
    differs_on_fakes: node -> True if its C++ code is not right there, with or without recording
    formula_of: (node, create_graph) -> Formula or None
    refuse_other_formulas: (Tape, Segment, create_graph) -> None; raises for a node that would need one and has none

Such C++ code asks whether a tensor is "like a subclass", as a fake tensor is, or for values. A formula of this module makes
the ATen calls that the C++ code makes on real tensors, with the same operands in the same order; where these calls would
have to know values, one op of ``backward.ops`` stands for them, whose result has the same layout whatever the values are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gradc.analysis.segments import Segment
from gradc.backward.minmax_subgradients import TIES
from gradc.backward.ops import gradc_ops
from gradc.errors import UnsupportedError
from gradc.ir.recorder import Recorder
from gradc.tape.node_facts import ASKS_FOR_SUBCLASS, ASKS_FOR_SUBCLASS_IF_COMPLEX, ASKS_UNDER_CREATE_GRAPH
from gradc.tape.tape import Node, Tape
from gradc.torch_private.autograd import all_input_metadata, input_metadata
from gradc.torch_private.fakes import FAKE_TENSOR_ERRORS

Grads = Sequence[torch.Tensor | None]


# ---- formulas: (node, incoming gradients, what its C++ code made of them on fake tensors) -> gradients


@dataclasses.dataclass(frozen=True)
class Formula:
    """How a node runs on fake tensors.

    ``is_first``: it serves where nothing is recorded; else the C++ code is right there. ``is_differentiable``: it serves with
    recording on, and leaves eager's nodes behind, or their equal, in eager's order. ``is_wanted``: for which of
    the nodes of this name it is needed. ``keeps_calls``: the calls of the C++ code are recorded, and its results given to
    ``make``.
    """

    make: Callable[[Node, Grads, Grads], Grads]
    is_first: bool = True
    is_differentiable: bool = True
    is_wanted: Callable[[Node], bool] = lambda node: True
    keeps_calls: bool = False


def _is_not_on_cuda(node: Node) -> bool:
    """True where the C++ code reads a value. On CUDA, so as not to wait for it, it does what it does on fake tensors."""
    return input_metadata(node).device.type != "cuda"


def _evenly(node: Node, grads: Grads, made: Grads) -> Grads:
    """The gradient in equal parts to all elements that are the value; to all that are NaN, if it is."""
    (grad,) = grads
    assert grad is not None
    self, value = node._saved_self, node._saved_result
    mask = torch.where(value.isnan(), self.isnan(), self == value)
    zeros = grad.new_zeros(self.shape, dtype=self.dtype)
    return (zeros.masked_fill_(mask, grad / mask.sum()),)


def _masked_fill(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), mask = grads, node._saved_mask
    assert grad is not None
    of_self = None if made[0] is None else grad.masked_fill(mask, 0)
    return of_self, None if made[1] is None else gradc_ops.masked_sum(grad, mask)


def _index_fill(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), dim, index = grads, _signed(node._saved_dim), node._saved_index
    assert grad is not None
    of_self = None if made[0] is None else grad.index_fill(dim, index, 0)
    return of_self, None if made[1] is None else gradc_ops.filled_sum(grad, dim, index)


def _is_put_by_mask(node: Node) -> bool:
    """True for an index_put where a mask says, of values that need a gradient. Its layout is known up to one dimension."""
    if node.next_functions[1][0] is None or len(_shape_behind(node, 1)) > 1:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in node._saved_indices)


def _index_put(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), indices, size = grads, node._saved_indices, _shape_behind(node, 1)
    assert grad is not None
    of_self = None if made[0] is None else grad
    if of_self is not None and not node._saved_accumulate:
        zeros = torch.zeros(size, dtype=grad.dtype, device=grad.device)
        of_self = torch.ops.aten.index_put.default(grad, indices, zeros)
    return of_self, None if made[1] is None else gradc_ops.put_sum(grad, indices, size)


def _shape_behind(node: Node, position: int) -> Sequence[Any]:
    target, number = node.next_functions[position]
    shape: Sequence[Any] = input_metadata(target, number).shape
    return shape


def _prod(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), self = grads, node._saved_self
    assert grad is not None
    if self.dim() == 0:
        return (grad,)
    _refuse_layouts(node, self.numel(), self)
    return (gradc_ops.prod_backward(grad, self, node._saved_result, torch.is_grad_enabled()),)


def _prod_dim(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), self, result = grads, node._saved_self, node._saved_result
    assert grad is not None
    if self.dim() == 0:
        return (grad,)
    dim = _signed(node._saved_dim) % self.dim()
    if not node._saved_keepdim:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    _refuse_layouts(node, self.shape[dim], self, result, grad)
    return (gradc_ops.prod_dim_backward(grad, self, result, dim),)


def _cumprod(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), self, result = grads, node._saved_self, node._saved_result
    assert grad is not None
    dim = _signed(node._saved_dim)
    if self.dim() == 0 or self.shape[dim] == 1:
        return (grad,)
    _refuse_layouts(node, self.shape[dim], self, result, grad)
    return (gradc_ops.cumprod_backward(grad, self, dim, result, torch.is_grad_enabled()),)


def _refuse_layouts(node: Node, length: Any, *operands: torch.Tensor) -> None:
    """Refuse operands for which the layout of the result may depend on which of its paths the formula takes.

    Where no operand has dimensions in another order than a contiguous tensor, whatever is made of them is contiguous.
    """
    if length < 2 or operands[0].numel() == 0 or not all(map(_is_in_order, operands)):
        raise UnsupportedError("layout that depends on values", node.name())


def _is_in_order(tensor: torch.Tensor) -> bool:
    """True for a contiguous tensor, also if it is expanded along some dimensions; with a size of 1 nothing is certain."""
    strides = [stride for stride in tensor.stride() if stride != 0]
    is_sorted = all(left > right for left, right in itertools.pairwise(strides))
    return tensor.is_contiguous() or not strides or (is_sorted and 1 not in tensor.shape)


def _trace(node: Node, grads: Grads, made: Grads) -> Grads:
    (grad,), (rows, columns) = grads, node._saved_self_sym_sizes
    assert grad is not None
    zeros = torch.zeros(rows * columns, dtype=grad.dtype, device=grad.device)
    diagonal = torch.arange(0, torch.sym_min(rows, columns) * (columns + 1), columns + 1, device=grad.device)
    return (zeros.index_fill_(0, diagonal, grad).view(rows, columns),)


def _matrix_exp(node: Node, grads: Grads, made: Grads) -> Grads:
    """The upper right block of the exponential of [[A, grad], [0, A]], where A is self, conjugate and transposed."""
    (grad,), adjoint = grads, node._saved_self.transpose(-2, -1).conj()
    assert grad is not None
    n = adjoint.shape[-1]
    both = torch.zeros(*adjoint.shape[:-2], 2 * n, 2 * n, dtype=grad.dtype, device=grad.device)
    both.narrow(-2, 0, n).narrow(-1, 0, n).copy_(adjoint)
    both.narrow(-2, n, n).narrow(-1, n, n).copy_(adjoint)
    both.narrow(-2, 0, n).narrow(-1, n, n).copy_(grad)
    return (torch.linalg.matrix_exp(both).narrow(-2, 0, n).narrow(-1, n, n),)


def _reflectors(first: str, second: str) -> Callable[[Node, Grads, Grads], Grads]:
    """For gradients that the C++ code puts together anew, but on real tensors writes into zeros like the saved value."""

    def make(node: Node, grads: Grads, made: Grads) -> Grads:
        likes = getattr(node, first), getattr(node, second)
        return (*map(_laid_out, made, likes), *made[2:])

    return make


def _laid_out(grad: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    zeros = torch.zeros_like(like)
    return grad if grad is None or grad.stride() == zeros.stride() else zeros.copy_(grad)


def _signed(number: int) -> int:
    """A node shows a negative number that it saved as a number of 64 bits without a sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


FORMULAS = {
    "MaxBackward1": Formula(_evenly, is_wanted=_is_not_on_cuda),
    "MinBackward1": Formula(_evenly, is_wanted=_is_not_on_cuda),
    "MedianBackward0": Formula(_evenly, is_wanted=_is_not_on_cuda),
    "NanmedianBackward0": Formula(_evenly, is_wanted=_is_not_on_cuda),
    "MaskedFillBackward1": Formula(_masked_fill),
    "IndexFillBackward1": Formula(_index_fill),
    "IndexPutBackward0": Formula(_index_put, is_differentiable=False, is_wanted=_is_put_by_mask),
    "ProdBackward0": Formula(_prod, is_differentiable=False),
    "ProdBackward1": Formula(_prod_dim, is_differentiable=False),
    "CumprodBackward0": Formula(_cumprod, is_differentiable=False),
    "TraceBackward0": Formula(_trace, is_first=False),
    "LinalgMatrixExpBackward0": Formula(_matrix_exp, is_first=False),
    "LinalgHouseholderProductBackward0": Formula(
        _reflectors("_saved_input", "_saved_tau"), is_differentiable=False, keeps_calls=True
    ),
    "OrmqrBackward0": Formula(_reflectors("_saved_self", "_saved_input2"), is_differentiable=False, keeps_calls=True),
    **{name: Formula(make) for name, make in TIES.items()},
}


def formula_of(node: Node, create_graph: bool) -> Formula | None:
    """The formula by which ``node`` runs on fake tensors with or without recording, if its C++ code is not right there."""
    formula = FORMULAS.get(node.name())
    serves = formula is not None and (formula.is_differentiable if create_graph else formula.is_first)
    return formula if formula is not None and serves and formula.is_wanted(node) else None


# ---- nodes that have none


def refuse_other_formulas(tape: Tape, segment: Segment, create_graph: bool) -> None:
    """Raise UnsupportedError for a node that does on fake tensors what it does not do on real ones: they run on those."""
    differing = ASKS_UNDER_CREATE_GRAPH if create_graph else ASKS_FOR_SUBCLASS
    for node in segment.nodes:
        op = tape.op_of(node)
        is_hidden = op is not node and formula_of(op, create_graph) is not None  # no hook gets there
        if is_hidden or op in differing or (op in ASKS_FOR_SUBCLASS_IF_COMPLEX and _is_complex(op)):
            raise UnsupportedError("formula that differs on fake tensors", op.name(), tape.line_of(node))


def differs_on_fakes(node: Node) -> bool:
    """True if what the node's C++ code does on fake tensors may be other than on real ones, with or without recording."""
    return node.name() in FORMULAS or node in ASKS_UNDER_CREATE_GRAPH


def _is_complex(node: Node) -> bool:
    return any(meta is not None and meta.dtype.is_complex for meta in all_input_metadata(node))


# ---- in the engine


@contextlib.contextmanager
def replacing(tape: Tape, recorder: Recorder, nodes: Iterable[Node], create_graph: bool) -> Iterator[None]:
    """While inside, those of ``nodes`` that have a formula here give what it makes.

    Enter it before anything else that hooks these nodes.
    """
    with contextlib.ExitStack() as stack:
        for node in nodes:
            if formula := formula_of(node, create_graph):
                stack.enter_context(Run(recorder, node, formula, tape.line_of(node)).hooked())
        yield


class Run:
    """One run of one node: the hooks in front of it and behind it. Between them nothing is recorded, by nobody."""

    def __init__(self, recorder: Recorder, node: Node, formula: Formula, line: str) -> None:
        self.recorder, self.node, self.formula, self.line = recorder, node, formula, line
        self.grads: Grads = ()
        self.is_grad_enabled = torch.is_grad_enabled()
        self._intercepting = contextlib.ExitStack()

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """While inside, this is how the node runs."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop_intercepting)  # if the node raised
            stack.callback(self.node.register_prehook(self.before).remove)
            stack.callback(self.node.register_hook(self.after).remove)
            yield

    def before(self, grads: Grads) -> None:
        self.grads, self.is_grad_enabled = grads, torch.is_grad_enabled()
        if not self.formula.keeps_calls:
            torch.set_grad_enabled(False)  # should the node raise, the engine sets it back
            self._intercepting.enter_context(self.recorder.intercepting(self._stand_in))

    def after(self, made: Grads, grads: Grads) -> Grads | None:
        self.stop_intercepting()
        torch.set_grad_enabled(self.is_grad_enabled)
        if all(grad is None for grad in made):
            return None
        with self.recorder.placing(self._place):
            return tuple(map(_as_engine_takes_it, self.formula.make(self.node, self.grads, made), made))

    def stop_intercepting(self) -> None:
        self._intercepting.close()

    def _stand_in(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What a call that is not recorded gives. If that depends on values: something that nobody reads."""
        try:
            return op(*args, **kwargs)
        except FAKE_TENSOR_ERRORS:
            if op is torch.ops.aten.index.Tensor:  # the gradient of the values put
                return args[0].new_empty(_shape_behind(self.node, 1))
            return tuple(args[0].reshape(-1) for _ in op._schema.returns)

    def _place(self) -> tuple[str, str]:
        return self.line, self.node.name()


def _as_engine_takes_it(grad: torch.Tensor | None, made: torch.Tensor | None) -> torch.Tensor | None:
    """``grad`` in shape and dtype of ``made``: between a node and its hooks the engine sums what was broadcast, then casts."""
    if grad is None or made is None:
        return grad
    summed = grad if grad.shape == made.shape else grad.sum_to_size(made.shape)
    return summed.to(made.dtype)
