"""What gradc knows of single ATen ops beyond their schemas: one row a fact, with the reason why it counts.

op in LAZY_VIEWS            LAZY_VIEWS.why            is_view_op(op), is_random(op), ...: what schema and tags say
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Fact:
    """Something that is true of the overloads in ``ops``, and why that matters."""

    why: str
    ops: frozenset[Any]

    def __contains__(self, op: Any) -> bool:
        return op in self.ops


def _fact(why: str, *names: str) -> Fact:
    """``names`` as in "add.Tensor"; without a dot, the default overload."""
    pairs = (name.partition(".") for name in names)
    return Fact(why, frozenset(getattr(getattr(_aten, name), overload or "default") for name, _, overload in pairs))


def _all_overloads(*names: str) -> Iterator[str]:
    """Of those of these ops that there are in this version of torch."""
    for name in names:
        packet = getattr(_aten, name, None)
        yield from (f"{name}.{overload}" for overload in (packet.overloads() if packet is not None else ()))


LAZY_VIEWS = _fact(
    "a view that only sets a bit, which the kernels that read it resolve: no Program is made for tangents that carry one",
    "_conj", "_neg_view",
)  # fmt: skip
NOT_STRIDED = _fact(
    "a view that is no strided part of its base: torch always keeps how it was made, also when its base is written into",
    "view_as_real", "view_as_complex", "_conj", "_neg_view", "view.dtype",
)  # fmt: skip
HIDDEN_VIEWS = _fact("makes a view, and its schema does not say so", "_unsafe_view")
MOVES_MEMORY = _fact(
    "gives its first argument the memory of its second", "set_.source_Tensor", "set_.source_Tensor_storage_offset"
)
HANDLES = _fact("below autograd its result is its argument itself, in another handle", "detach", "alias")
FRESH = _fact(
    "its results have memory of their own, so that a sum may be written over them; there are others that may return their "
    "argument, whatever the schema says",
    "mm", "addmm", "bmm", "select_backward", "slice_backward", "embedding_dense_backward", "native_layer_norm_backward",
    "tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "convolution_backward",
    "_softmax_backward_data", "_log_softmax_backward_data", "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "cat",
)  # fmt: skip
CERTAIN_LAYOUT = _fact(
    "fake tensors are right about its strides: always contiguous, or a view computed by the code that serves real tensors",
    "mm", "addmm", "bmm", "t", "permute", "expand", "unsqueeze", "detach",
    "transpose.int", "slice.Tensor", "select.int", "alias", "as_strided",
)  # fmt: skip
NO_ZEROS = _fact(
    "it reads memory whose size fake tensors do not know, and crashes when it is called on zeros to see its results' layout",
    "mkldnn_rnn_layer_backward",
)  # fmt: skip
ALL_APART = _fact("of two results that its kernel makes, fake tensors have one, twice", "mkldnn_rnn_layer_backward")
PLAIN_META = _fact(
    "a fake mode adds nothing to its kernel for tensors without data, which can be asked straight away",
    "mm", "addmm", "bmm", "t", "transpose.int", "permute", "expand", "unsqueeze", "slice.Tensor", "select.int", "detach",
    "alias", "view", "_unsafe_view", "squeeze.dim", "tanh", "tanh_backward", "sigmoid", "sigmoid_backward",
    "threshold_backward", "sum.dim_IntList", "slice_backward", "select_backward",
)  # fmt: skip
PLAIN_META_OF_CONTIGUOUS = _fact(
    "the same, where all arguments are contiguous tensors of one dtype: a fake mode has strides of its own for others",
    "add.Tensor", "sub.Tensor", "mul.Tensor",
)  # fmt: skip
UNINITIALIZED = _fact(
    "its result holds whatever was in memory", "empty.memory_format", "empty_like", "empty_permuted", "empty_strided",
    "new_empty", "new_empty_strided",
)  # fmt: skip
OVERWRITES = _fact("nothing is left of what was in its first argument", "fill_.Scalar", "fill_.Tensor", "zero_", "copy_")
UNDECLARED_WRITES = _fact(
    "writes into running statistics, and its schema does not say so", "native_batch_norm", "cudnn_batch_norm",
    "miopen_batch_norm", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts",
)  # fmt: skip
MAY_RAISE = _fact(
    "raises for some values of its arguments (an index out of bounds, a matrix without inverse, a division by zero), or where "
    "a storage ends, which tracing does not know: a call counts even where nobody reads its results",
    *_all_overloads(
        # indices, and numbers that say how many
        "index", "_unsafe_index", "index_put", "_unsafe_index_put", "index_select", "index_add", "index_copy", "index_fill",
        "index_reduce", "gather", "scatter", "scatter_add", "scatter_reduce", "take", "put", "masked_scatter", "embedding",
        "embedding_dense_backward", "_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_dense_backward",
        "_embedding_bag_per_sample_weights_backward", "segment_reduce", "_segment_reduce_backward", "max_unpool2d",
        "max_unpool3d", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "fractional_max_pool2d",
        "fractional_max_pool3d", "one_hot", "bincount", "repeat_interleave", "searchsorted", "as_strided",
        # ranges
        "quantile", "histc", "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
        "fake_quantize_per_channel_affine_cachemask",
        # losses
        "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "multi_margin_loss",
        "multi_margin_loss_backward", "multilabel_margin_loss_forward", "multilabel_margin_loss_backward", "_ctc_loss",
        "_ctc_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
        # whole numbers
        "floor_divide", "remainder", "fmod",
        # what is drawn by numbers in tensors
        "bernoulli", "binomial", "multinomial", "normal", "poisson",
        # matrices
        "cholesky", "cholesky_inverse", "cholesky_solve", "geqrf", "linalg_eig", "_linalg_eigvals", "_linalg_eigh",
        "_linalg_svd", "linalg_lstsq", "linalg_ldl_solve", "linalg_lu_solve", "lu_unpack", "orgqr", "ormqr",
        "linalg_householder_product", "triangular_solve", "linalg_matrix_exp",
        # what does nothing else
        "_linalg_check_errors", "_assert_async", "_assert_scalar", "_assert_tensor_metadata",
    ),
    "div.Tensor_mode", "div.Scalar_mode",
)  # fmt: skip
MAY_BE_KEPT = "gradc_saving"
"""The namespace of ops whose results the user's hooks may keep the memory of, unseen."""
# By name, for all overloads.
RELATIVE_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze",
        "slice", "select", "diagonal", "unfold", "split", "split_with_sizes", "unbind", "detach", "alias",
        "unsafe_split", "unsafe_split_with_sizes",
    )
)  # fmt: skip
"""Make strided views of their first argument, at an offset relative to its own, and nothing else: the executor makes such a
view from known strides, without the kernel."""
STRIDES_OF_BASE = frozenset(
    f"aten::{name}"
    for name in (
        "t", "transpose", "permute", "slice", "select", "split", "split_with_sizes", "unbind", "detach", "alias",
        "unsafe_split", "unsafe_split_with_sizes",
    )
)  # fmt: skip
"""Those of them whose views have the strides of their base, or multiples: of its dimensions of size 1, too."""
EXPLICIT_OFFSET = frozenset({"aten::as_strided", "aten::set_"})
"""Take an offset that counts from the start of the storage: a recording with one holds for these offsets alone."""


CHECKS = "gradc_checks"
"""The namespace of ops that raise or do nothing."""
# namespaces of ops that only return something, or say what else they do
_WITHOUT_EFFECT = ("aten", "prim", "prims", "gradc", MAY_BE_KEPT, CHECKS)
_NOT_DETERMINED = (
    torch.Tag.nondeterministic_seeded, torch.Tag.nondeterministic_bitwise, torch.Tag.inplace_view,
    torch.Tag.maybe_aliasing_or_mutating,
)  # fmt: skip


def is_view_op(op: Any) -> bool:
    """True if the op's result is a view of its first argument, by its schema."""
    schema = op._schema
    return not schema.is_mutable and any(result.alias_info is not None for result in schema.returns)


def is_random(op: Any) -> bool:
    """True if it draws from the generator: the next draw depends on it."""
    return torch.Tag.nondeterministic_seeded in op.tags


def has_effect(op: Any) -> bool:
    """True if a call of it counts though nobody reads its results: it writes, draws, may raise, or is another library's."""
    return op._schema.is_mutable or may_raise(op) or acts_elsewhere(op)


def acts_elsewhere(op: Any) -> bool:
    """True if a call of it may leave something behind elsewhere than in its arguments: it draws, or is another library's."""
    returns_nothing = not op._schema.returns and not op._schema.is_mutable and not may_raise(op)
    return returns_nothing or op.namespace not in _WITHOUT_EFFECT or is_random(op)


def may_raise(op: Any) -> bool:
    """True if it raises for some values of its arguments."""
    return op in MAY_RAISE or op.namespace == CHECKS


def changes_layout(op: Any) -> bool:
    """True if it changes the shape or strides of the tensor it is called on, as ``t_`` does."""
    return torch.Tag.inplace_view in op.tags


def depends_on_data(op: Any) -> bool:
    """True if what it returns, or the shape of that, depends on the values of its arguments."""
    return torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags


@functools.cache
def is_determined(op: Any) -> bool:
    """True if the same arguments give the same bits, and the op does nothing else than its schema says."""
    is_known = op.namespace == "aten" and op not in UNINITIALIZED and op not in UNDECLARED_WRITES and op not in MOVES_MEMORY
    return is_known and not any(tag in _NOT_DETERMINED for tag in op.tags)


def is_metadata_query(op: Any) -> bool:
    """True if it only tells what a tensor looks like; a number that it returns is known when traced."""
    return op.namespace == "prim" or op._schema.name.split("::")[1].startswith(("sym_", "size", "stride", "numel"))
