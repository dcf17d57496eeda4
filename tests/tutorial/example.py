"""The tutorial's basic example as a script: what its logs say by environment variable is golden."""

import torch

import gradc


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(10, 10)

    def forward(self, x):
        return self.linear(x)


@gradc.compile
def train(model, x):
    loss = model(x).sum()
    loss.backward()


train(Model(), torch.randn(10))
