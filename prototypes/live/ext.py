"""Builds the prototype's extension."""
import os
import torch  # noqa: F401
from torch.utils.cpp_extension import load

here = os.path.dirname(__file__)
ext = load("live_ext", [f"{here}/live.cpp"], extra_cflags=[os.environ.get("LIVE_O", "-O2"), "-std=c++20"], verbose=False)
