"""Force models, whose neighbour lists have another length at each step, are captured a few times and then replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from tests.observe import same_with_strides
from tests.oracle import Step, check

pytestmark = pytest.mark.usefixtures("nothing_captured")
NUM_STEPS, MAX_CAPTURES = 50, 3


class SchNet(nn.Module):
    """Continuous-filter convolutions: messages weighted by filters of the distance."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.centers = nn.Embedding(5, width), torch.linspace(0, 3, width)
        self.filter = nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
        self.inside, self.out = nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, kinds: torch.Tensor, positions: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        distance = (positions[pairs[0]] - positions[pairs[1]]).norm(dim=1)
        weights = self.filter((-(distance[:, None] - self.centers).square()).exp())
        x = self.embedding(kinds)
        x = x + torch.zeros_like(x).index_add(0, pairs[0], self.inside(x)[pairs[1]] * weights)
        return self.out(x).sum()


class PaiNN(SchNet):
    """With vectors beside scalars: the filters are split in three."""

    def __init__(self, width: int = 8) -> None:
        super().__init__(width)
        self.filter[2], self.inside = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, kinds: torch.Tensor, positions: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        difference = positions[pairs[0]] - positions[pairs[1]]
        distance = difference.norm(dim=1, keepdim=True)
        weights = self.filter((-(distance - self.centers).square()).exp())
        x = self.embedding(kinds)
        scalar, radial, mixed = (self.inside(x)[pairs[1]] * weights).chunk(3, dim=-1)
        vectors = torch.zeros(*x.shape, 3).index_add(0, pairs[0], radial[..., None] * (difference / distance)[:, None])
        x = x + torch.zeros_like(x).index_add(0, pairs[0], scalar)
        x = x + (vectors.square().sum(-1) * torch.zeros_like(x).index_add(0, pairs[0], mixed))
        return self.out(x).sum()


def molecule(number: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(number)
    atoms = int(torch.randint(6, 14, (), generator=generator))
    positions = 1.5 * torch.randn(atoms, 3, generator=generator)
    pairs = ((torch.cdist(positions, positions) < 3) & ~torch.eye(atoms, dtype=torch.bool)).nonzero().t()
    return torch.randint(0, 5, (atoms,), generator=generator), positions, pairs, torch.randn(atoms, 3, generator=generator)


def training(model_type: type[nn.Module], counted: list[Any]) -> Step:
    """Losses and gradients of energies and forces, with new molecules at each step; not captured where not compiled."""

    def step(compile: Any) -> list[Any]:
        model = model_type()
        compiled, optimizer, seen = compile(model), torch.optim.SGD(model.parameters(), lr=1e-3), []
        for number in range(NUM_STEPS):
            kinds, positions, pairs, wanted = molecule(number)
            positions.requires_grad_()
            energy = compiled(kinds, positions, pairs)
            (forces,) = torch.autograd.grad(-energy, positions, create_graph=True)
            loss = (forces - wanted).square().mean() + energy.square()
            optimizer.zero_grad()
            with compiled_autograd.enable() if compiled is not model else compiled_autograd.disable():
                loss.backward()
            optimizer.step()
            seen.append((loss.detach(), [p.grad.clone() for p in model.parameters()]))
        counted.append(dict(gradc.counters["compiled_autograd"]))
        return seen

    return step


@pytest.mark.parametrize("model_type", [SchNet, PaiNN])
def test_forces_are_captured_a_bounded_number_of_times(model_type: type[nn.Module]) -> None:
    counted: list[Any] = []
    check(training(model_type, counted), allow_fallback=True)  # the first derivative is for torch's engine
    of_eager, of_compiled = counted
    assert "captures" not in of_eager
    assert of_compiled["captures"] <= MAX_CAPTURES and of_compiled["hits"] >= NUM_STEPS - MAX_CAPTURES


def test_what_eager_adds_in_place_to_needs_no_capture_for_each_length() -> None:
    """A node that runs live returned it, with strides in a dimension of size 1 that no sum has. Found in e3nn and PaiNN."""
    found: list[list[Any]] = [[], []]
    for number in range(NUM_STEPS):
        weight = torch.ones(1, 3 + number, requires_grad=True)
        for is_captured, seen in enumerate(found):
            early, late = weight.sin(), weight.exp()
            assert late.grad_fn is not None
            late.grad_fn.register_hook(lambda grads, _: (torch.empty_strided(grads[0].shape, (1, 1)).copy_(grads[0]),))
            with compiled_autograd.enable() if is_captured else compiled_autograd.disable():
                seen.append(torch.autograd.grad((early + late).sum(), weight))
    assert same_with_strides(*found)
    assert {grad.stride() for (grad,) in found[0]} == {(1, 1)}
    assert gradc.counters["compiled_autograd"] == {"captures": 2, "made dynamic": 1, "hits": NUM_STEPS - 2}
    assert not gradc.counters["fallbacks"]
