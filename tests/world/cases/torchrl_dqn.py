"""torchrl: DQN with a replay buffer and a soft target update."""

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from tests.world.harness.training import Training, Way

LIBRARIES = ("torchrl", "tensordict")


def make(way: Way) -> Training:
    network = MLP(in_features=4, out_features=3, num_cells=[16, 16], activation_class=nn.ReLU)
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    objective = DQNLoss(actor, delay_value=True, action_space="categorical")
    objective.make_value_estimator(gamma=0.99)
    update = SoftUpdate(objective, eps=0.9)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=16)
    buffer.extend(_transitions(48))
    compiled = way.model(objective)

    def step(data):
        optimizer.zero_grad()
        loss = compiled(data)["loss"]
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(step)

    def sampled():
        loss = step(buffer.sample())
        update.step()
        return loss

    return Training(sampled, (objective, optimizer))


def _transitions(count: int) -> TensorDict:
    following = {"observation": torch.randn(count, 4), "reward": torch.randn(count, 1)}
    following |= {name: torch.zeros(count, 1, dtype=torch.bool) for name in ("done", "terminated")}
    seen = {"observation": torch.randn(count, 4), "action": torch.randint(3, (count,))}
    return TensorDict({**seen, "next": TensorDict(following, [count])}, [count])
