"""Kernels that are proven beside ATen's (prove.h): the same bits for numbers of every kind, the zeros' signs included."""

import pytest
import torch
from torch import Tensor

from tests.executor.agree import check_agree

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
