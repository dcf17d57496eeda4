"""The key of a walked graph in words: a line for each part, and for each difference between two graphs."""

from __future__ import annotations

import pytest
import torch

from gradc import native

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def words(loss, inputs=None, accumulates=True):
    """The key in words, by the name of the part."""
    walk = native.extension.Walk([loss], [torch.ones_like(loss)], False, inputs, accumulates)
    return dict(line.split(": ", 1) for line in walk.describe().splitlines())


def loss_of(number=2.0):
    x = torch.ones(3, requires_grad=True)
    return torch.add(torch.tanh(x), x, alpha=number).sum(), x


def changed(before, now):
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def test_each_part_has_a_name():
    x = torch.ones(3, requires_grad=True)
    found = words(torch.tanh(x).sum())
    assert list(found)[:10] == [
        "autocast", "is_deterministic", "matmul_precision", "is_mkldnn_enabled", "default_dtype", "is_layout_enforced",
        "asked for", "create_graph", "roots", "inputs=",
    ]  # fmt: skip
    assert found["asked for"] == "the gradient of every leaf"
    assert found["roots"] == "node 0 input 0"
    assert found["node 0"].startswith("SumBackward0, leads to node 1 input 0; ")
    assert found["node 1"].startswith("TanhBackward0, leads to node 2 input 0; ")
    assert found["tensor 0"] == "Float[], strides []"
    assert found["tensor 2"] == "Float[3], strides [1], requires a gradient"


def test_equal_graphs_say_the_same():
    assert not changed(words(loss_of()[0]), words(loss_of()[0]))


def test_a_constant_of_a_formula_changes_its_node():
    assert changed(words(loss_of(2.0)[0]), words(loss_of(3.0)[0])) == {"node 1"}


def test_autocast_changes_one_part():
    loss, _ = loss_of()
    before = words(loss)
    with torch.autocast("cpu", torch.bfloat16):
        now = words(loss)
    assert changed(before, now) == {"autocast"}
    assert now["autocast"] == "cpu torch.bfloat16"


def test_a_hook_changes_its_node():
    loss, x = loss_of()
    before = words(loss)
    x.register_hook(lambda grad: None)
    now = words(loss)
    assert [name for name, value in now.items() if "runs as it is" in value] == ["node 3"]
    assert "node 3" in changed(before, now)


def test_what_is_asked_for():
    loss, x = loss_of()
    found = words(loss, [x], accumulates=False)
    assert found["asked for"] == "the gradients of inputs=, to be returned"
    assert found["inputs="] == "node 3 input 0"


def test_memory_that_is_shared():
    x = torch.ones(4, requires_grad=True)
    left, right = x.detach()[:2], x.detach()[2:]
    found = words((x[:2] * left * right).sum())
    assert [value for value in found.values() if "on the memory of tensor" in value]
