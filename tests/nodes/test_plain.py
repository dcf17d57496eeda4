"""Plain tensors, whose numbers are what their memory holds, so that a Program may take them: one list of dispatch keys says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradc import native
from tests.oracle import leaf

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def dual(tensor: torch.Tensor) -> torch.Tensor:
    return torch.autograd.forward_ad.make_dual(tensor, torch.ones_like(tensor))


class Wrapper(torch.Tensor):
    """A subclass whose ops do not reach kernels as they are."""

    @staticmethod
    def __new__(cls) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    __torch_dispatch__ = classmethod(lambda cls, op, types, args=(), kwargs=None: NotImplemented)


NOT_PLAIN = {
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "lazy zero": lambda: torch._efficientzerotensor(3),
    "sparse": lambda: torch.ones(3).to_sparse(),
    "sparse rows": lambda: torch.ones(3, 3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "functional": lambda: torch._to_functional_tensor(torch.ones(3)),
    "wrapper": Wrapper,
    "batched": lambda: torch._C._functorch._add_batch_dim(torch.ones(3, 2), 0, 1),
}
PLAIN = {
    "a leaf": lambda: leaf(3)(),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "a result": lambda: leaf(3)().sin(),
    "a view": lambda: torch.ones(3, 3).t()[1:],
    "of complex numbers": lambda: torch.ones(3, dtype=torch.complex64),
    "of bools": lambda: torch.ones(3).bool(),
    "meta": lambda: torch.ones(3, device="meta"),
    "made in inference mode": lambda: torch.inference_mode()(torch.ones)(3),
    "empty": lambda: torch.empty(0),
}


@pytest.mark.parametrize("make", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_a_tensor_that_is_not_plain(make: Any):
    assert not native.extension.is_plain(make())


def test_a_tensor_with_a_forward_gradient_is_not_plain():
    with torch.autograd.forward_ad.dual_level():
        assert not native.extension.is_plain(dual(torch.ones(3)))


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_plain_tensor(make: Any):
    assert native.extension.is_plain(make())
