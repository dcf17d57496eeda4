"""Kernels of gradc's own without a GPU: their text compiled as C++, one thread after the other.

    kernel: (source, device) -> DeviceKernel, whose tensors lie on ``device``
    add_simulated_card: () -> None     from then on the simulated device of tests.devices takes kernels

Arithmetic is the host's, which rounds as CUDA's does. Where the device is the simulated one, its addresses are made the host's.
"""

from __future__ import annotations

import ctypes
import hashlib
import pathlib
import subprocess

import torch

from gradc import native
from gradc.optim import cards, kernels

BUILD = pathlib.Path(__file__).parents[2] / "build" / "host_kernels"

# The CPU's kernels, which the simulated device runs, round otherwise than CUDA's (gradc/optim/csrc/block_update.cpp).
ON_SIMULATED = {
    **kernels.ON_CUDA,
    "lerp": "absolute(number) < Number(0.5) ? fused(number, minus(b, a), a) : fused(minus(number, 1), minus(b, a), b)",
    "addcmul": "fused(multiply(number, b), c, a)",
    "addcdiv": "plus(a, divide(multiply(number, b), c))",
}
_DISTANCE = {"cpu": 0, "simulated": 1 << 50}  # of a device's addresses from the host's

_BEFORE = """\
#include <cmath>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#define __device__
#define __global__
#define __grid_constant__
using std::fabs;
struct Index { unsigned x; };
static thread_local Index blockIdx, threadIdx;
// ATen takes square roots on the CPU by MKL, which does not always give the nearest number.
template <class T> static T root(T a) {
  using Roots = void (*)(int, const T*, T*, int64_t);
  static void* const torch = ROOTS ? dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  static const auto roots = reinterpret_cast<Roots>(torch ? dlsym(torch, sizeof(T) == 4 ? "vmsSqrt" : "vmdSqrt") : nullptr);
  if (!roots) return std::sqrt(a);
  T out;
  roots(1, &a, &out, 0x2 | 0x140000 | 0x100);
  return out;
}
static unsigned __float_as_uint(float a) { unsigned word; std::memcpy(&word, &a, 4); return word; }
static float __uint_as_float(unsigned word) { float a; std::memcpy(&a, &word, 4); return a; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static float __fsqrt_rn(float a) { return root(a); }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dsub_rn(double a, double b) { return a - b; }
static double __dmul_rn(double a, double b) { return a * b; }
static double __ddiv_rn(double a, double b) { return a / b; }
static double __dsqrt_rn(double a) { return root(a); }
static double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
"""

_BEHIND = """
extern "C" const char* start(void*, uint32_t num_blocks, uint32_t num_threads, void* given, const void*) {
  Arguments arguments;
  std::memcpy(&arguments, given, sizeof(arguments));
  for (unsigned i = 0; i < arguments.num_rows; ++i) {
    for (auto& operand : arguments.rows[i].operands) {
      operand = reinterpret_cast<Real*>(reinterpret_cast<uintptr_t>(operand) - DISTANCE);
    }
  }
  for (blockIdx.x = 0; blockIdx.x < num_blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < num_threads; ++threadIdx.x) {
      update(arguments);
    }
  }
  return nullptr;
}
"""


def kernel(source: str, device: torch.device):
    text = _BEFORE + source + _BEHIND
    flags = [f"-DDISTANCE={_DISTANCE[device.type]}ull", f"-DROOTS={int(device.type != 'cpu')}"]
    name = hashlib.sha256("\0".join((text, *flags)).encode()).hexdigest()[:20]
    library = BUILD / f"{name}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(".tmp")
        command = [
            "c++",
            "-O0",
            "-std=c++17",
            "-ffp-contract=off",
            "-w",
            "-shared",
            "-fPIC",
            "-x",
            "c++",
            "-",
            *flags,
            "-o",
            str(made),
        ]
        subprocess.run(command, input=text, text=True, check=True)
        made.rename(library)
    start = ctypes.cast(ctypes.CDLL(str(library)).start, ctypes.c_void_p).value
    return native.extension.DeviceKernel(device, start, 0)


def add_simulated_card() -> None:
    cards.CARDS["simulated"] = lambda device: cards.Card(
        device, "simulated", lambda source: kernel(source, device), tuple(ON_SIMULATED.items())
    )
