"""The backward of a cross entropy in one pass (cross_entropy_backward.h): ATen's bits, whatever targets and gradients are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradc import native
from tests.executor.agree import check_agree

aten = torch.ops.aten
MEAN, SUM, IGNORED = 1, 2, -100


def is_proven(columns: int) -> bool:
    claims = native.extension.proofs()
    return any(kernel.startswith("cross entropy") and shape == [columns] and holds for kernel, _, shape, holds in claims)


def inputs(rows: int, columns: int, grad: float = 0.7, scale: float = 3.0) -> list[Tensor]:
    """The gradient of the loss, the logarithms, the targets, some of them ignored, and how many count."""
    targets = torch.randint(columns, (rows,))
    targets[::7] = IGNORED
    logs = torch.log_softmax(torch.randn(rows, columns) * scale, -1)
    return [torch.tensor(grad), logs, targets, torch.tensor(float((targets != IGNORED).sum()))]


def of_scores(
    grad: Tensor, logs: Tensor, targets: Tensor, total: Tensor, reduction: int = MEAN, weight: Tensor | None = None
) -> Tensor:
    of_logs = aten.nll_loss_backward(grad, logs, targets, weight, reduction, IGNORED, total)
    return aten._log_softmax_backward_data(of_logs, logs, 1, torch.float32)


def of_sliced(start: int, end: int, parts: int, length: int, dim: int = 1) -> Callable[..., Tensor]:
    """Of scores (parts, length, columns), of which the loss has those from ``start`` to ``end`` along ``dim``."""

    def function(grad: Tensor, logs: Tensor, targets: Tensor, total: Tensor) -> Tensor:
        columns = logs.shape[1]
        sizes = [parts, length, columns]
        viewed = [parts, end - start, columns] if dim == 1 else [end - start, length, columns]
        return aten.slice_backward(of_scores(grad, logs, targets, total).view(viewed), sizes, dim, start, end, 1)

    return function


@pytest.mark.parametrize("reduction", [MEAN, SUM])
@pytest.mark.parametrize("columns", [1000, 1003])
def test_rows(threads: int, columns: int, reduction: int) -> None:
    check_agree(lambda *args: of_scores(*args, reduction), inputs(70, columns))
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert is_proven(columns)


@pytest.mark.parametrize("grad", [0.0, -0.0, 1e-30, -3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("scale", [0.01, 3.0, 100.0])
def test_gradients_and_logarithms_of_every_kind(grad: float, scale: float) -> None:
    check_agree(of_scores, inputs(70, 1000, grad, scale))


def test_nothing_counts() -> None:
    grad, logs, targets, _ = inputs(70, 1000)
    check_agree(of_scores, [grad, logs, targets.fill_(IGNORED), torch.tensor(0.0)])


@pytest.mark.parametrize("start, end", [(0, 19), (1, 20), (3, 11), (0, 20), (0, 1)])
def test_a_slice_of_the_scores(threads: int, start: int, end: int) -> None:
    check_agree(of_sliced(start, end, 8, 20), inputs(8 * (end - start), 5000))


def test_a_slice_of_whole_parts() -> None:
    check_agree(of_sliced(2, 7, 9, 10, dim=0), inputs(50, 1000))


@pytest.mark.parametrize("shape", [(2, 40_000), (5000, 10), (3, 7)])
def test_few_rows_few_classes_and_few_numbers(shape: tuple[int, int]) -> None:
    check_agree(of_scores, inputs(*shape))


def test_what_else_reads_what_comes_between() -> None:
    def function(grad: Tensor, logs: Tensor, targets: Tensor, total: Tensor) -> list[Tensor]:
        of_logs = aten.nll_loss_backward(grad, logs, targets, None, MEAN, IGNORED, total)
        return [of_logs, aten._log_softmax_backward_data(of_logs, logs, 1, torch.float32)]

    check_agree(function, inputs(70, 1000))


def test_weights_and_losses_one_by_one() -> None:
    grad, logs, targets, total = inputs(70, 1000)
    check_agree(lambda *args: of_scores(*args[:-1], MEAN, args[-1]), [grad, logs, targets, total, torch.rand(1000)])
    check_agree(lambda *args: of_scores(*args, 0), [torch.randn(70), logs, targets, total])


def test_logarithms_of_a_transposed_matrix() -> None:
    grad, logs, targets, total = inputs(70, 1000)
    check_agree(of_scores, [grad, logs.t().contiguous().t(), targets, total])
