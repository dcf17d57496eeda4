"""torchrl: clipped PPO with GAE over tensordicts."""

import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from tests.world.harness.training import Training, Way, loop

LIBRARIES = ("torchrl", "tensordict")


def transitions(actor, count: int) -> TensorDict:
    data = TensorDict(
        {
            "observation": torch.randn(count, 4),
            "next": TensorDict(
                {
                    "observation": torch.randn(count, 4),
                    "reward": torch.randn(count, 1),
                    "done": torch.zeros(count, 1, dtype=torch.bool),
                    "terminated": torch.zeros(count, 1, dtype=torch.bool),
                },
                [count],
            ),
        },
        [count],
    )
    with torch.no_grad():
        return actor(data)


def make(way: Way) -> Training:
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), ["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    objective = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    batches = [(advantage(transitions(actor, 12)),) for _ in range(2)]

    def loss(objective, data):
        found = objective(data.clone())
        return found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]

    return loop(way, objective, loss, batches, torch.optim.Adam(objective.parameters(), lr=1e-3))
