"""What a Program that was saved as a file needs beside its calls: these functions are copied into it, as they stand here.

They use torch and nothing else. ``PROGRAM`` and ``GRAD_MODE`` get the name and the value that they have in the file.
"""

from __future__ import annotations

import torch


def PROGRAM(args: list[object]) -> list[object]:
    raise NotImplementedError("in a file, the printed calls stand here")


GRAD_MODE = False


def devices() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def set_autocast(dtypes: dict[str, torch.dtype]) -> None:
    """Switch autocast on for these devices and off for others: what an op's own calls see, as when it was captured."""
    for device in devices():
        torch.set_autocast_enabled(device, device in dtypes)
        torch.set_autocast_dtype(device, dtypes.get(device, torch.get_autocast_dtype(device)))


def run(inputs: list[object]) -> list[object]:
    """Make the calls, on inputs that require no gradients: a list, which is emptied, so that each dies at its last use.

    Some kernels ask whether gradients are recorded, so they seem to be where they were.
    """
    before = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices()]
    try:
        set_autocast({})
        with torch.set_grad_enabled(GRAD_MODE):
            return PROGRAM(inputs)
    finally:
        for device, is_enabled, dtype in before:
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)


def flatten(tree: object) -> list[object]:
    """What a call returns, lists among it, as one list."""
    if not isinstance(tree, (tuple, list)):
        return [tree]
    return [leaf for item in tree for leaf in flatten(item)]


def random(size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of this layout, of normal numbers; of zeros and ones, where numbers are whole."""
    length = offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True) if n > 0)
    if dtype.is_complex:
        numbers = torch.randn(length, dtype=torch.complex128)
    else:
        numbers = torch.randn(length) if dtype.is_floating_point else torch.randint(0, 2, (length,))
    return numbers.to(device, dtype).as_strided(size, stride, offset)


def float_of(bits: int) -> float:
    """The float with these bits: a float that changes from call to call is given so."""
    return float(torch.tensor(bits, dtype=torch.int64).view(torch.float64).item())


def negative_of(bits: int) -> float:
    return -float_of(bits)


def one_less_than(bits: int) -> float:
    return float_of(bits) - 1


def two_less_than(bits: int) -> float:
    return float_of(bits) - 1 - 1


def three_less_than(bits: int) -> float:
    return float_of(bits) - 1 - 1 - 1


def one_minus(bits: int) -> float:
    return 1 - float_of(bits)
