"""The wheel of torchvision on PyPI is for CUDA: beside a CPU torch its C++ ops do not load, and it cannot be imported.

    declare_missing_ops() -> None           before the first import of torchvision, timm, lightning or torchmetrics

Its models and transforms need none of these ops. Their names are declared, so that it can be imported; they have no kernel.
"""

from __future__ import annotations

import importlib.util
import os

import torch

MISSING = ("nms", "qnms")  # those that torchvision registers fakes for while it is imported
_libraries: list[torch.library.Library] = []


def declare_missing_ops() -> None:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _libraries:
        return
    try:
        torch.ops.load_library(os.path.join(os.path.dirname(spec.origin), "_C.so"))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in MISSING:
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)  # what it declared goes with it
