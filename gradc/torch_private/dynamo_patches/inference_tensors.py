"""Where a call would save for backward what was made in inference mode, Dynamo's graph ends: eager raises there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo import utils
from torch._dynamo.variables import builder
from torch.utils import _pytree

from gradc.torch_private.autograd import next_sequence_nr, packed_by, sequence_nr, storage_key
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around


def break_graph_where_inference_tensors_are_saved() -> Patch:
    """End the graph before a call whose node saves an inference tensor, or a view of one, whether its result is used or not.

    What is made of inference tensors elsewhere is a tensor like any other, and a call that saves nothing of them is compiled.
    """
    return Patch(
        "break_graph_where_inference_tensors_are_saved",
        "What Dynamo traces in the place of an inference tensor is none, and can be saved.",
        (
            after(builder, "wrap_to_fake_tensor_and_record", _wrap),
            around(utils, "run_node", _run),
        ),
    )


def _wrap(fake: Any, e: Any, tx: Any, **kwargs: Any) -> Any:
    if isinstance(e, torch.Tensor) and e.is_inference():
        _memory_of_inference_tensors(tx.output).add(storage_key(fake))
    return fake


def _run(original: Method, tracer: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
    first_number = next_sequence_nr()
    result = original(tracer, node, *args, **kwargs)
    known = tracer.__dict__.get(_KEY)
    if known and any(storage_key(saved) in known for saved in _saved(result, first_number)):
        name = getattr(node.target, "__name__", str(node.target))
        end_graph("inference tensor saved for backward", "Eager raises at this call.", name)
    return result


_KEY = "gradc_inference_tensors"


def _memory_of_inference_tensors(output: Any) -> set[int]:
    """Of those that came into the graph so far."""
    found: set[int] = output.__dict__.setdefault(_KEY, set())
    return found


def _saved(result: Any, first_number: int) -> Iterator[torch.Tensor]:
    """What the nodes saved that were made for ``result`` from ``first_number`` on."""
    waiting = [value.grad_fn for value in _pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen and sequence_nr(node) >= first_number and node.next_functions:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield from (saved for saved, _ in packed_by(node) if isinstance(saved, torch.Tensor))
