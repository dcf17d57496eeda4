"""The compiler of CUDA C++ that torch itself uses at run time.

nvrtc_library: () -> the library, as ctypes has it. Raises OSError where there is none
"""

import ctypes
import os

import torch


def nvrtc_library() -> ctypes.CDLL:
    """See the module's docstring.

    torch's own stub, which its kernels compiled at run time go through, brings the library in from wherever it is installed.
    """
    if torch.version.cuda is None:
        raise OSError("torch was not built for CUDA")
    ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libcaffe2_nvrtc.so"))
    return ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}")
