"""MACE: energies and forces of molecules; the first derivative is taken inside of the model."""

import ase
import numpy
import torch
from e3nn import o3
from mace import data, modules, tools
from mace.tools import torch_geometric
from torch.nn.functional import mse_loss, silu

from tests.world.cases._molecules import CUTOFF
from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("mace-torch", "e3nn")
ELEMENTS = tools.AtomicNumberTable([1, 6, 8])


def molecule(atoms: int):
    found = ase.Atoms(numbers=numpy.random.choice(ELEMENTS.zs, atoms), positions=1.3 * numpy.random.randn(atoms, 3))
    graph = data.AtomicData.from_config(data.config_from_atoms(found), z_table=ELEMENTS, cutoff=CUTOFF)
    inputs = next(iter(torch_geometric.DataLoader([graph], batch_size=1))).to_dict()
    return inputs, torch.randn(1), torch.randn(atoms, 3)


def loss(model, inputs, energy, forces):
    own = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    found = model(own, training=True, compute_force=True)
    return mse_loss(found["energy"], energy) + mse_loss(found["forces"], forces)


def make(way: Way) -> Training:
    model = modules.MACE(
        r_max=CUTOFF,
        num_bessel=4,
        num_polynomial_cutoff=3,
        max_ell=2,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        num_interactions=2,
        num_elements=len(ELEMENTS.zs),
        hidden_irreps=o3.Irreps("4x0e + 4x1o"),
        MLP_irreps=o3.Irreps("4x0e"),
        gate=silu,
        atomic_energies=numpy.zeros(len(ELEMENTS.zs)),
        avg_num_neighbors=5,
        atomic_numbers=ELEMENTS.zs,
        correlation=2,
        radial_type="bessel",
    )
    return loop(way, model, loss, [molecule(atoms) for atoms in (6, 8, 7, 9)])
