"""Branches on the values of one argument: one graph for each answer, and eager's choice at each call."""

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.bits import same_bits

ONES, HOLES = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 0, 1], [1, 1, 1]])


@pytest.fixture(autouse=True)
def fresh() -> None:
    gradc.reset()


def check(function: Callable[..., Tensor], *masks: Tensor, graphs: bool = True, make: bool = False) -> None:
    made = [function() if make else function for _ in range(2)]
    compiled, eager = gradc.compile(made[0]), made[1]
    for mask in masks or (ONES, ONES, HOLES, ONES, HOLES.bool(), torch.ones(1, 3), torch.zeros(4, 3, dtype=torch.int32)):
        x, y = (torch.arange(3.0).requires_grad_() for _ in range(2))
        given = [mask.clone(), mask.clone()]
        results = compiled(x, given[0]), eager(y, given[1])
        assert same_bits(*results) and same_bits(*given)
        for result in results:
            result.sum().backward()
        assert same_bits(x.grad, y.grad)
    assert (not gradc.counters["uncompiled"]) == graphs, dict(gradc.counters["uncompiled"])


def chosen(choice: object, x: Tensor) -> Tensor:
    return x * 2 if choice else x.sin()


@pytest.mark.parametrize(
    "asked",
    [
        lambda mask: mask.all(),
        lambda mask: not torch.any(mask == 0),
        lambda mask: bool((mask > 0).all()),
        lambda mask: mask.eq(1).all().item(),
        lambda mask: mask.to(dtype=torch.bool).long().sum() == mask.numel(),
        lambda mask: mask[:, :2].clone().reshape(-1).all() and mask.shape[0] == 2,
        lambda mask: mask.shape[0] == 4 or mask.all(),
        lambda mask: torch.ones_like(mask, dtype=torch.long).sum() == mask.numel(),
        lambda mask: torch.zeros(1) or torch.full((), 2),
        lambda mask: (mask.bool() & torch.zeros(3, dtype=torch.bool)).any(),
    ],
)
def test_one_graph(asked):
    check(lambda x, mask: chosen(asked(mask), x))


def test_masks_of_many_sizes():
    def function(x, mask):
        width = mask.shape[1]
        return chosen(mask[:, :width].sum() == mask.numel(), x[:1])

    masks = [torch.ones(2, width, dtype=torch.long) for width in (3, 4, 5, 6)]
    check(function, *masks, *(mask.triu() for mask in masks))
    assert gradc.counters["captured"]["forward"] <= 4


def test_a_nan_that_is_looked_for():
    def function(x, mask):
        if mask.isnan().any():
            raise ValueError("NaN")
        return x * 2

    check(function)
    with pytest.raises(ValueError, match="NaN"):
        gradc.compile(function)(torch.ones(3), torch.tensor([torch.nan]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: chosen(mask.fill_(0).any(), x),
        lambda x, mask: chosen(mask.view(-1)[1:].zero_().any() or mask.all(), x),
        lambda x, mask: chosen(torch.ones_like(mask).mul_(mask).all(), x),
        lambda x, mask: chosen((x * mask).sum() > 1, x),
        lambda x, mask: chosen(mask.float().sum() == 6, x),
        lambda x, mask: chosen(torch.rand(3).sum() >= 0, x),
    ],
)
def test_what_is_no_argument_as_it_came(function):
    """Written into before, made of another argument, or of floats that are added up."""
    check(function, graphs=False)


class Initialised(nn.Module):
    """By the first batch, as a normalising flow's layers."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("done", torch.tensor(False))
        self.register_buffer("number", torch.tensor(0))

    def forward(self, x, mask):
        is_first = self.number == 0
        if not self.done and is_first:
            with torch.no_grad():
                self.scale.mul_(x.std())
                self.done.fill_(True)
                self.number += 1
        return x * self.scale


def test_a_module_that_is_initialised_by_its_first_batch():
    check(Initialised, make=True)


def test_a_buffer_that_a_batch_norm_writes():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x, mask):
            x = self.norm(x * mask)
            return chosen((self.norm.running_mean == 0).all(), x)

    check(Module, HOLES, HOLES, ONES, make=True, graphs=False)


def test_a_transformer_encoder_asks_whether_its_mask_is_causal():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x, mask):
            return self.encoder(torch.outer(x, torch.arange(4.0)), mask=mask)

    causal = nn.Transformer.generate_square_subsequent_mask(3)
    check(Model, causal, causal, torch.zeros(3, 3), causal.T, causal, make=True)


ALIASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "a view": lambda: (given := torch.ones(4), given[:2]),
    "its base": lambda: ((base := torch.ones(4))[:2], base),
    "of one base": lambda: ((base := torch.ones(4))[:3], base[1:]),
    "its data": lambda: (given := torch.ones(4), given.data),
    "itself": lambda: (given := torch.ones(4), given),
    "of one array": lambda: (torch.from_numpy(array := numpy.ones(4)), torch.from_numpy(array[1:])),
}


@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "write",
    [
        lambda other: other.zero_(),
        lambda other: other.data[:1].fill_(0),
        lambda other: torch._foreach_zero_([other]),
        lambda other: torch.mul(other, 0, out=other),
        lambda other: nn.functional.dropout(other, 1.0, True, True),
    ],
)
def test_written_into_by_another_argument(write, is_first, alias):
    """Which shares its memory, from the first call on or since a later one."""

    def function(mask, other):
        write(other)
        return chosen(mask.all(), mask) + 5

    compiled = gradc.compile(function)
    if not is_first:
        compiled(torch.ones(4), torch.ones(4)), compiled(torch.zeros(4), torch.ones(4))
    given, expected = ALIASES[alias](), ALIASES[alias]()
    assert same_bits(compiled(*given), function(*expected)) and same_bits(given, expected)


def test_a_tensor_without_values():
    def function(x, mask):
        return chosen(mask.all(), x)

    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        gradc.compile(function)(torch.ones(3), torch.ones(3, device="meta"))


def test_answers_that_come_and_go():
    """Four masks have sixteen answers: one graph for each is not to be had."""

    def function(x, masks):
        for mask in masks:
            x = chosen(mask.any(), x)
        return x

    compiled, x = gradc.compile(function, options={"compare_with_eager": False}), torch.randn(3)
    for number in range(48):
        masks = [torch.tensor([number >> bit & 1]) for bit in range(4)]
        assert same_bits(compiled(x, masks), function(x, masks))
    uncompiled = dict(gradc.counters["uncompiled"])
    assert uncompiled.keys() == {"Data-dependent branching"}, uncompiled
