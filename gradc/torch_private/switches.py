"""Switches of torch's that decide in C++ which ops a call is made of: what was recorded holds while they stand as they did.

    guard_switches: FX graph -> None

Dynamo guards what Python reads. Which kernel attention takes, torch chooses below: by ``torch.nn.attention.sdpa_kernel``,
which is a context, and by the flags of ``torch.backends.cuda``, whatever the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx
from torch._dynamo.guards import install_guard
from torch._dynamo.source import GlobalStateSource
from torch._guards import Guard

_ATTENTION = (
    "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled", "_get_fa3_sdp_enabled", "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_sdp_priority_order",
)  # fmt: skip


def _attention() -> tuple[Any, ...]:
    return tuple(getter() for getter in _attention_getters)


def _cudnn() -> tuple[Any, ...]:
    return (torch._C._get_cudnn_enabled(),)


def _einsum() -> tuple[Any, ...]:
    return torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy


_attention_getters = [getter for name in _ATTENTION if (getter := getattr(torch._C, name, None)) is not None]

# The name of a call -> what is read where it is made.
_SWITCHES: Mapping[str, Callable[[], tuple[Any, ...]]] = {
    "scaled_dot_product_attention": _attention,
    "_native_multi_head_attention": _attention,
    "_transformer_encoder_layer_fwd": _attention,
    "ctc_loss": _cudnn,
    "einsum": _einsum,
}


def guard_switches(graph: torch.fx.GraphModule) -> None:
    """Dynamo compiles again where a switch stands otherwise than now that a call of ``graph`` goes by."""
    for read in {switch for name in _names(graph) if (switch := _SWITCHES.get(name)) is not None}:
        install_guard(standing_at(read.__name__.strip("_"), read))


def _names(graph: torch.fx.GraphModule) -> Iterator[str]:
    """Those of the calls, in the graphs inside, too, as of checkpoints."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function":
                    yield _name(node.target)


def _name(target: Any) -> str:
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "")
    return str(name).rpartition("::")[2]


def standing_at(what: str, read: Callable[[], Any]) -> Guard:
    """The guard that what is read stays what it is now."""
    now = read()

    def add(builder: Any, guard: Guard) -> None:
        words = [f"{what} as when it was traced: {now}"]
        builder.guard_manager.root.add_lambda_guard(lambda _: read() == now, words, guard.user_stack)

    return GlobalStateSource().make_guard(add)
