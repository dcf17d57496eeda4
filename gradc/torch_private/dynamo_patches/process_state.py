"""State of the whole process that a compiled function sets: it is set between two graphs, as eager sets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables.misc import PythonModuleVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Patch
from gradc.torch_private.weaver import before

_SETTERS = {
    torch: (
        "set_default_dtype set_default_tensor_type set_deterministic_debug_mode set_float32_matmul_precision set_warn_always"
        " use_deterministic_algorithms"
    ),
    torch.backends.cudnn: "set_flags",
    torch.backends.mkldnn: "set_flags",
    torch._C: (
        "_set_blas_preferred_backend _set_check_sparse_tensor_invariants _set_cublas_allow_bf16_reduced_precision_reduction"
        " _set_cublas_allow_fp16_accumulation _set_cublas_allow_fp16_reduced_precision_reduction _set_cublas_allow_tf32"
        " _set_cudnn_allow_tf32 _set_cudnn_benchmark _set_cudnn_deterministic _set_cudnn_enabled _set_default_dtype"
        " _set_default_tensor_type _set_deterministic_algorithms _set_deterministic_fill_uninitialized_memory"
        " _set_float32_matmul_precision _set_fp32_precision_setter _set_linalg_preferred_backend"
        " _set_math_sdp_allow_fp16_bf16_reduction _set_mkldnn_deterministic _set_mkldnn_enabled _set_nnpack_enabled"
        " _set_onednn_allow_tf32 _set_qengine _set_sdp_use_cudnn _set_sdp_use_flash _set_sdp_use_math"
        " _set_sdp_use_mem_efficient _set_sdp_use_overrideable _set_warnAlways"
    ),
}


def set_process_state_eagerly() -> Patch:
    """Make Dynamo end its graph where the default dtype, determinism or a flag of a backend of torch's is set.

    Dynamo records these calls in its graph, and some it makes while it traces: gradc's Programs hold ATen calls alone. An
    attribute of one of torch's modules it would set behind the graph.
    """

    handlers = TorchInGraphFunctionVariable._get_handlers()
    return Patch(
        "set_process_state_eagerly",
        "What a function sets for the whole process holds from there on, for what runs then: no Program can set it.",
        (
            *(before(handlers, setter, _set_state, may_be_missing=True) for setter in _setters()),
            before(SideEffects, "store_attr", _store),
        ),
    )


def _set_state(self: Any, tx: Any, *args: Any, **kwargs: Any) -> None:
    _end_graph(self.value.__name__)


def _store(self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> None:
    if isinstance(item, PythonModuleVariable) and item.is_torch:
        _end_graph(f"{item.value.__name__}.{name}")


def _setters() -> Iterator[Any]:
    """Those that this build of torch has."""
    for owner, names in _SETTERS.items():
        yield from (getattr(owner, name) for name in names.split() if hasattr(owner, name))


def _end_graph(what: str) -> None:
    end_graph("state of the process", "gradc sets what holds for the whole process as eager does, between two graphs.", what)
