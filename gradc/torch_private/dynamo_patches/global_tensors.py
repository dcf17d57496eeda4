"""Functions whose tensors and modules are globals are compiled like those that have them as arguments.

Dynamo looks for tensors among a function's variables, and leaves one that has none to Python. So the rest of a training step
behind ``optimizer.zero_grad()``, in a script whose model is a global, ran eagerly: and nothing showed it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import convert_frame

from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around


def see_global_tensors() -> Patch:
    """Compile a function that names a tensor or a module among its globals."""
    return Patch(
        "see_global_tensors",
        "Dynamo looks for tensors among a function's variables only: one whose model is a global would run eagerly.",
        (around(convert_frame, "has_tensor_in_frame", _has_tensor_in_frame),),
    )


def _has_tensor_in_frame(original: Method, frame: Any) -> bool:
    return original(frame) or _names_a_tensor(frame)


def _names_a_tensor(frame: Any) -> bool:
    values = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    return any(issubclass(type(value), (torch.Tensor, torch.nn.Module)) for value in values)
