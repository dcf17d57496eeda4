"""What of the machine and the installation decides how gradc runs: for the demo's first lines, and for bug reports.

    describe: () -> text, a line for each fact
    versions: () -> the facts that matter most, in a line
    has_bf16: () -> whether the CPU multiplies bfloat16 itself
    busyness: () -> that times say little, since others work on this machine; or ""

None of them raises where the extension was built for another torch: they say so.
"""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gradc import native

_EXTENSIONS = {"native": "extension for it", "interpreter": "no extension", "none": "extension for another torch"}
_INSTRUCTIONS = ("avx2", "avx512_f", "avx512_bf16", "amx_tile", "amx_bf16", "bf16", "sve_bf16")  # as torch names them

_DRIVER = Path("/proc/driver/nvidia/version")
_MOST_LOAD = 0.7  # of other processes, by the load of the last minute


def has_bf16() -> bool:
    """True if the CPU has instructions for bfloat16; without them bf16 autocast is right, but slower than float32."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def versions() -> str:
    """Those of gradc and torch, whether the extension is there, which of its kernels torch chose for this CPU, and the GPU."""
    parts = (f"gradc {installed_version()}", f"torch {torch.__version__}", _EXTENSIONS[native.status().name])
    cpu = f"CPU {torch.backends.cpu.get_cpu_capability()}{' with bf16' * has_bf16()}"
    return ", ".join((*parts, cpu, *([f"GPU {torch.cuda.get_device_name()}"] if torch.cuda.is_available() else [])))


def describe() -> str:
    """The versions of gradc, torch and Python, what the extension was built for, and what the CPU can do."""
    found = torch.cpu.get_capabilities()
    facts = {
        "gradc": installed_version(),
        "torch": torch.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "executor": str(native.status()),
        "cpu kernels": f"{torch.backends.cpu.get_cpu_capability()} (ATEN_CPU_CAPABILITY chooses others)",
        "cpu": ", ".join(name for name in _INSTRUCTIONS if found.get(name)) or "none of the instructions that torch asks for",
        "onednn": _onednn(),
        "bf16": "in hardware" if has_bf16() else "emulated: right, but slower than float32",
        "gpu": gpu(),
        **({"gpu numbers": gpu_numbers()} if torch.cuda.is_available() else {}),
        "threads": f"{torch.get_num_threads()} (torch.set_num_threads)",
    }
    width = max(map(len, facts))
    return "\n".join(f"{name.ljust(width)}  {fact}" for name, fact in facts.items())


def _onednn() -> str:
    if native.status().name != "native":
        return "called by ATen: there is no extension"
    if not native.extension.has_onednn():
        return "called by ATen: torch's library shows none of its functions"
    return "torch's own, its primitives kept"


def busyness(num_processes: int = 1) -> str:
    """In a sentence, that other processes were busy in the last minute, so that times say little; "" if they were not.

    Arguments:
        num_processes: our own, each with as many threads as torch has here.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= num_processes * torch.get_num_threads() + _MOST_LOAD:
        return ""
    return f"The machine was busy: a load of {load:.1f} on {os.cpu_count()} cores. The times say little."


def gpu() -> str:
    """Those that torch sees, or why it sees none."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "none: this torch is built for the CPU"
    if not torch.cuda.is_available():
        return f"none that torch sees (built for CUDA {torch.version.cuda or torch.version.hip})"
    cards = ", ".join(_card(number) for number in range(torch.cuda.device_count()))
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    return f"{cards}; driver {driver()}, {built}, cuDNN {torch.backends.cudnn.version() or 'none'}"


def _card(number: int) -> str:
    """``"NVIDIA H100 80GB HBM3 (sm_90, 79 GiB)"``"""
    card = torch.cuda.get_device_properties(number)
    return f"{card.name} (sm_{card.major}{card.minor}, {card.total_memory / 2**30:.0f} GiB)"


def driver() -> str:
    """The version of NVIDIA's kernel module, or "unknown"."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.[\d.]+)", _DRIVER.read_text())
    except OSError:
        return "unknown"
    return found[1] if found else "unknown"


def gpu_numbers() -> str:
    """The switches of torch's that decide how a GPU rounds, and whether it repeats its bits."""
    products, switches = torch.backends.cuda.matmul, torch.backends.cudnn
    return ", ".join(
        (
            f"products in {_precision(products)}",
            f"convolutions in {_precision(switches.conv)}",  # type: ignore[attr-defined]
            f"sums of bf16 products {_reduced(products.allow_bf16_reduced_precision_reduction)}",
            f"of fp16 {_reduced(products.allow_fp16_reduced_precision_reduction)}",
            f"cuDNN {'tries out its algorithms' if switches.benchmark else 'does not try out algorithms'}",
            f"deterministic algorithms {'asked for' if torch.are_deterministic_algorithms_enabled() else 'not asked for'}",
        )
    )


def _precision(switch: Any) -> str:
    """Of float32. torch's older switch raises where the newer one was set."""
    found: str = switch.fp32_precision
    return "float32" if found in ("none", "ieee") else found


def _reduced(is_allowed: Any) -> str:
    return "reduced" if is_allowed else "in full"


def installed_version() -> str:
    """The version of gradc that is installed, which may be another than that of a folder gradc is imported from."""
    try:
        return version("gradc")
    except PackageNotFoundError:
        return "not installed"
