"""Layout, kinds of tensors: strides of gradients, dtypes, sparse and wrapped tensors, introspection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from tests.compilers import GRADC
from tests.oracle import constant, indices, leaf
from tests.semantics.registry import case

STRIDES = "Channels-last and other strides"


def conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))


@case(STRIDES, lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_(), conv)
def test_channels_last_input(compile, x, net):
    y = compile(net)(x)
    y.square().sum().backward()
    return y


@case(STRIDES, leaf(2, 3, 8, 8), lambda: conv().to(memory_format=torch.channels_last))
def test_channels_last_weights(compile, x, net):
    y = compile(net)(x)
    y.square().sum().backward()
    return y


@case(STRIDES, leaf(4, 6), leaf(6, 6))
def test_transposed_tangent(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    y.backward(torch.randn(6, 4).t())


@case(STRIDES, leaf(4, 6), leaf(6, 6))
def test_expanded_tangent(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w))
    for tangent in (torch.tensor(2.0).expand(4, 6), torch.randn(1, 6).expand(4, 6), torch.randn(4, 12)[:, ::2]):
        f(x, w).backward(tangent)


@case(STRIDES, lambda: torch.randn(6, 4).t().requires_grad_(), leaf(6, 6))
def test_transposed_leaf(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x * 2) @ w)(x, w)
    y.sum().backward()
    return y


@case(STRIDES, lambda: torch.randn(4, 12)[:, ::2].requires_grad_())
def test_strided_leaf(compile, x):
    y = compile(lambda x: torch.sin(x) * 2)(x)
    y.square().sum().backward()
    return y


@case(STRIDES, lambda: torch.randn(1, 6).expand(4, 6).requires_grad_())
def test_expanded_leaf(compile, x):
    y = compile(lambda x: torch.sin(x) * 2)(x)
    y.square().sum().backward()
    return y


@case(STRIDES, leaf(4, 6), leaf(6, 6))
def test_layout_changes_from_call_to_call(compile, x, w):
    f = compile(lambda x, w: torch.tanh(x @ w))
    outputs = [f(x, w), f(x.t().contiguous().t(), w), f(x.repeat(1, 2)[:, ::2], w)]
    sum(y.square().sum() for y in outputs).backward()
    return outputs


@case(STRIDES, leaf(0, 6), leaf(6, 6))
def test_empty_tensors(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    y.sum().backward()
    return y


@case(STRIDES, leaf(), leaf())
def test_scalars(compile, x, w):
    y = compile(lambda x, w: x * w + 2)(x, w)
    y.backward()
    return y


@case(STRIDES, leaf(4, 6))
def test_sizes_change(compile, x):
    f = compile(lambda x: (x.sin() * x.shape[0]).sum(0))
    for n in (4, 3, 2, 1):
        f(x[:n]).square().sum().backward()


@case(STRIDES, leaf(4, 6))
def test_sizes_dynamic_from_the_start(compile, x):
    f = compile(lambda x: F.softmax(x.view(-1, x.shape[0]), 0) * x.shape[1], dynamic=True)
    for n in (4, 3, 2):
        f(x[:n]).square().sum().backward()


@case("complex", leaf(4, 6, dtype=torch.complex64), leaf(6, 6, dtype=torch.complex64))
def test_complex(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w).conj() * x.imag)(x, w)
    y.abs().sum().backward()
    return y


@case("complex", leaf(4, 6), leaf(4, 6))
def test_complex_inside_only(compile, x, w):
    y = compile(lambda x, w: torch.fft.fft(torch.complex(x, w)).abs())(x, w)
    y.sum().backward()
    return y


@case("complex", leaf(4, 6, dtype=torch.complex64), min_graphs=0, fallback="no strided part")
def test_lazy_conjugate_output(compile, x):
    y = compile(lambda x: (x.conj(), x.mH, (x * 2).conj().imag))(x)
    y[0].abs().sum().backward()
    return y


@case("sparse embedding gradients", indices(4, 3, high=10), lambda: nn.Embedding(10, 6, sparse=True))
def test_sparse_embedding(compile, tokens, table):
    f = compile(lambda tokens: table(tokens).sin())
    for _ in range(2):
        f(tokens).sum().backward()


@case("sparse embedding gradients", indices(4, 3, high=10), lambda: nn.EmbeddingBag(10, 6, sparse=True, mode="sum"))
def test_sparse_embedding_bag(compile, tokens, table):
    compile(lambda tokens: table(tokens).sin())(tokens).sum().backward()


@case("sparse embedding gradients", lambda: torch.eye(4).to_sparse(), leaf(4, 6), fallback="sparse", min_graphs=0)
def test_sparse_input(compile, a, x):
    y = compile(lambda a, x: torch.sparse.mm(a, x).sin())(a, x)
    y.sum().backward()
    return y


@case("nested tensors", leaf(3, 6), leaf(5, 6), min_graphs=0)
def test_nested_tensor(compile, x, w):
    nested = torch.nested.as_nested_tensor([x, w], layout=torch.jagged)
    y = compile(lambda n: torch.sin(n) * 2)(nested)
    y.values().sum().backward()
    return y.values()


@case("subclasses", leaf(4, 6), leaf(4, 6), min_graphs=0)
def test_two_tensor(compile, x, w):
    both = TwoTensor(x.detach(), w.detach()).requires_grad_()
    y = compile(lambda t: torch.sin(t) * 2)(both)
    y.sum().backward()
    return y, both.grad


@case("subclasses", leaf(4, 6))
def test_tensor_subclass_with_torch_function(compile, x):
    class Tagged(torch.Tensor):
        pass

    y = compile(lambda t: torch.sin(t) * 2)(x.detach().as_subclass(Tagged))
    return y


@case("subclasses", lambda: nn.Parameter(torch.randn(4, 6)), lambda: nn.Buffer(torch.randn(4, 6)))
def test_parameter_and_buffer(compile, p, b):
    y = compile(lambda p, b: p * b)(p, b)
    y.sum().backward()
    return y


@case("bf16 and fp16 parameters", leaf(4, 6, dtype=torch.bfloat16), lambda: nn.Linear(6, 6).bfloat16())
def test_bf16(compile, x, net):
    y = compile(lambda x: F.layer_norm(net(x), (6,)).softmax(-1))(x)
    y.square().sum().backward()
    return y


@case("bf16 and fp16 parameters", leaf(4, 6, dtype=torch.float16), lambda: nn.Linear(6, 6).half())
def test_fp16(compile, x, net):
    y = compile(lambda x: torch.tanh(net(x)))(x)
    y.square().sum().backward()
    return y


@case("bf16 and fp16 parameters", leaf(4, 6, dtype=torch.float64), leaf(4, 6), indices(4, 6, high=3))
def test_mixed_dtypes(compile, x, w, n):
    y = compile(lambda x, w, n: (x * w + n, w * n, x.float().sin()))(x, w, n)
    sum(out.double().sum() for out in y).backward()
    return y


@case("Batch norm statistics", leaf(4, 3, 5, 5), conv)
def test_batch_norm_over_steps(compile, x, net):
    f = compile(net)
    for _ in range(3):
        f(x).square().sum().backward()
    net.eval()
    return f(x)


@case("Batch norm statistics", leaf(4, 6))
def test_buffer_written_by_forward(compile, x):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    net = Counting()
    f = compile(net)
    for _ in range(3):
        f(x).square().sum().backward()
    return net.calls, net.mean


@case("Introspection", leaf(4, 6), leaf(6, 6))
def test_grad_fn_exists(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    node, found = y.grad_fn, set()
    stack = [node]
    while stack:
        for target, _ in stack.pop().next_functions:
            if target is not None:
                stack.append(target)
                if hasattr(target, "variable"):
                    found.add("x" if target.variable is x else "w")
    return node is not None, len(node.next_functions) > 0, sorted(found)


@case("Introspection", leaf(4, 6))
def test_attributes_of_outputs(compile, x):
    y, n, z = compile(lambda x: (x.sin(), x.argmax(0), x.detach().exp()))(x)
    return [(t.requires_grad, t.is_leaf, t.grad_fn is None, t.output_nr) for t in (y, n, z)]


@case("Introspection", leaf(4, 6))
def test_non_tensor_outputs(compile, x):
    return compile(lambda x: {"y": x.sin(), "n": x.shape[0], "none": None, "word": "a", "pair": (x.ndim, [x])})(x)


def test_name_of_the_node_says_gradc():
    x = torch.randn(4, requires_grad=True)
    assert "gradc" in GRADC(lambda x: x.sin())(x).grad_fn.name().lower()


@case("Introspection", constant(4, 6))
def test_optimizer_step_after(compile, x):
    net = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    f = compile(net)
    for _ in range(3):
        optimizer.zero_grad()
        f(x).square().mean().backward()
        optimizer.step()
    return net.weight, net.bias
