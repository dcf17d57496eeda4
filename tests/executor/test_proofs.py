"""Kernels that are proven beside ATen's (prove.h): the same bits for numbers of every kind, the zeros' signs included."""

import pytest
import torch
from torch import Tensor

from gradc import native
from gradc.bits import same_bits
from tests.executor.agree import check_agree
from tests.forked import python

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))

aten = torch.ops.aten
ROWS, COLUMNS = 40, 32
KINDS = {
    "negative zeros": lambda sizes: torch.full(sizes, -0.0),
    "zeros of both signs": lambda sizes: torch.where(torch.rand(sizes) < 0.5, -0.0, 0.0),
    "denormals": lambda sizes: torch.randn(sizes) * 1e-40,
    "infinities and NaNs": lambda sizes: torch.randn(sizes).where(torch.rand(sizes) < 0.95, torch.inf) * torch.randn(sizes),
}
PLACES = torch.randint(COLUMNS, (ROWS, 7))
FUNCTIONS = {
    "sum of columns": lambda x: x.sum(0),
    "sum of few columns": lambda x: (x[:, :3].contiguous().sum(0), x[:, :3].contiguous().sum(1)),
    "sum of everything": lambda x: (x.sum(), x.mean()),
    "mse_loss": lambda x: (aten.mse_loss(x, -x), aten.mse_loss(x, x, 2)),
    "mse_loss_backward": lambda x: aten.mse_loss_backward(x[0, 0].clone(), x, -x, 1),
    "rows added up": lambda x: x.index_add(0, PLACES[:, 0] % ROWS, x),
    "picked numbers added up": lambda x: x.scatter_add(1, PLACES, x[:, :7].contiguous()),
    "batch norm": lambda x: aten.native_batch_norm(x.view(4, 16, 20), x[0, :16].clone(), None, None, None, True, 0.1, 1e-5),
    "log_softmax": lambda x: aten._log_softmax(x[:, :3].contiguous(), 1, False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_every_kind(name: str, kind: str) -> None:
    values: Tensor = KINDS[kind]((ROWS, COLUMNS))
    check_agree(FUNCTIONS[name], [values])
    check_agree(FUNCTIONS[name], [values.double()])


# What a kernel makes of x in the place of x itself, and whether it is as good.
ALMOST = {
    "itself": (lambda x: x.clone(), True),
    "no negative zeros": (lambda x: x + 0.0, False),
    "no zeros": (lambda x: torch.where(x == 0, -0.0, x), False),
    "no denormals": (lambda x: torch.where(x.abs() < torch.finfo(x.dtype).tiny, x * 0, x), False),
    "no infinities": (lambda x: x.clamp(-1e30, 1e30), False),
    "other NaNs": (lambda x: torch.where(x.isnan(), -x, x), True),
}


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("name", ALMOST)
def test_a_kernel_with_another_zero_is_refused(name: str, dtype: torch.dtype) -> None:
    kernel, is_as_good = ALMOST[name]

    def trial(numbers):
        x = numbers([2, 500], dtype)
        assert same_bits(x, kernel(x)) == native.extension.have_same_bits(x, kernel(x))
        return native.extension.have_same_bits(x, kernel(x))

    assert native.extension.prove(f"{name}, {dtype}", trial) is is_as_good


def test_a_claim_is_tried_once() -> None:
    tried = []
    for _ in range(2):
        assert not native.extension.prove("refused at once", lambda numbers: bool(tried.append(numbers)))
    assert len(tried) == 1
    assert ("refused at once", torch.float, [], False) in native.extension.proofs()


def test_what_raises_proves_nothing() -> None:
    def trial(numbers):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        native.extension.prove("raises", trial)
    assert native.extension.prove("raises", lambda numbers: True)


PROVEN = """
import torch
from gradc import native
from tests.executor.agree import check_agree
from tests.executor.test_proofs import FUNCTIONS

for function in FUNCTIONS.values():
    check_agree(function, [torch.randn(40, 32)])
    check_agree(function, [torch.randn(40, 32).double()])
print(*sorted({f"{kernel} {dtype}" for kernel, dtype, _, holds in native.extension.proofs() if holds}), sep="\\n")
"""


def test_which_kernels_are_proven_here() -> None:
    """Of a machine with AVX2: what fell out of its proof would be slow, and nobody would see it."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("other registers, other orders")
    done = python("-c", PROVEN)
    assert done.returncode == 0, done.stderr
    sums = ["sum of columns", "sum of a row", "short sum", "rows added up", "picked numbers added up"]
    expected = {f"{name} {dtype}" for name in (*sums, "mse_loss", "mse_loss_backward") for dtype in (torch.float, torch.double)}
    assert expected | {"batch norm torch.float32", "log_softmax torch.float32"} <= {*done.stdout.splitlines()}
