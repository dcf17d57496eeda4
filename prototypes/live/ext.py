"""Builds the prototype's extension at its first import; LIVE_EXT names one that was built."""

import importlib.util
import os
from typing import Any

import torch  # noqa: F401
from torch.utils.cpp_extension import load


def _load() -> Any:
    built = os.environ.get("LIVE_EXT")
    if not built:
        source = os.path.join(os.path.dirname(__file__), "live.cpp")
        return load("live_ext", [source], extra_cflags=["-O2", "-std=c++20"], verbose=False)
    spec = importlib.util.spec_from_file_location("live_ext", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ext = _load()
