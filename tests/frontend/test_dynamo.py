"""What Dynamo hands over: ops it would take apart stay whole."""

import torch

import gradc


def test_addcdiv_is_not_taken_apart():
    def function(x, a, b):
        return torch.addcdiv(x, a, b, value=0.3)

    x, a, b = (torch.rand(50, 50) + 0.5 for _ in range(3))
    assert torch.equal(gradc.compile(function, fullgraph=True)(x, a, b), function(x, a, b))
    # div, mul and add round twice: this is what torch.compile runs
    assert not torch.equal(torch.div(a, b) * 0.3 + x, function(x, a, b))
