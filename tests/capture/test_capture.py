"""A captured backward is eager's: gradients, Nones, strides, identities, errors, hooks, generator state."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gradc
from gradc import compiled_autograd
from gradc.bits import same_bits
from tests.observe import same_with_strides

Step = Callable[[int], Any]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    compiled_autograd.reset()
    gradc.counters.clear()
    yield


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


def check(make: Callable[[], Step], steps: int = 4, captures: int | None = 1, fallbacks: tuple[str, ...] = ()) -> None:
    """Run the step several times eagerly and captured, from the same start, and compare all that it returns."""
    torch.manual_seed(0)
    step = make()
    expected = [step(i) for i in range(steps)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    gradc.counters.clear()
    step = make()
    with compiled_autograd.enable():
        for i in range(steps):
            assert same_with_strides(expected[i], step(i)), f"step {i}"
    assert same_bits(state, torch.get_rng_state())
    counts = gradc.counters["compiled_autograd"]
    if captures is not None:
        assert counts["captures"] == captures, counts
        assert captures == 0 or counts["hits"] == steps - captures, (counts, gradc.counters["fallbacks"])
    assert {name.removeprefix("compiled autograd: ") for name in gradc.counters["fallbacks"]} == set(fallbacks)


def grads(*tensors: torch.Tensor) -> list[torch.Tensor | None]:
    return [None if tensor.grad is None else tensor.grad.clone() for tensor in tensors]


def model_step(model: nn.Module, *shape: int, zero: bool = True) -> Step:
    def step(i: int) -> Any:
        x = torch.randn(*shape)
        model(x).square().mean().backward()
        result = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if zero:
            model.zero_grad(set_to_none=True)
        return result

    return step


def test_mlp() -> None:
    check(lambda: model_step(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), 5, 4))


def test_gradients_accumulate_in_place() -> None:
    def make() -> Step:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        run = model_step(model, 5, 4, zero=False)

        def step(i: int) -> Any:
            before = [p.grad for p in model.parameters()]
            result = run(i)
            after = [p.grad for p in model.parameters()]
            return [result, [i == 0 or a is b for a, b in zip(before, after)]]

        return step

    check(make, steps=5, captures=2)


def test_convolution_norm_dropout() -> None:
    def make() -> Step:
        layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 5)]
        return model_step(nn.Sequential(*layers), 2, 3, 6, 6)

    check(make)


def test_transformer_layer() -> None:
    check(lambda: model_step(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, 5, 8), steps=3)


def test_lstm_and_tied_weights() -> None:
    def make() -> Step:
        cell, tied = nn.LSTMCell(4, 4), nn.Linear(4, 4)

        def step(i: int) -> Any:
            h = c = torch.zeros(2, 4)
            for _ in range(3):
                h, c = cell(tied(torch.randn(2, 4)), (tied(h), c))
            h.sum().backward()
            parameters = [*cell.parameters(), *tied.parameters()]
            result = [p.grad.clone() for p in parameters if p.grad is not None]
            versions = [p.grad._version for p in parameters if p.grad is not None]
            for p in parameters:
                p.grad = None
            return [result, versions]

        return step

    check(make)


def test_autograd_grad() -> None:
    def make() -> Step:
        w = leaf(3, 3)

        def step(i: int) -> Any:
            x = leaf(2, 3, seed=i)
            y = (x @ w).tanh()
            z = y * y
            return [*torch.autograd.grad(z.sum(), [x, y, w], retain_graph=True), w.grad]

        return step

    check(make)


def test_autograd_grad_allow_unused_and_unused_error() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, unused = leaf(3), leaf(2)
            result = list(torch.autograd.grad(x.sin().sum(), [x, unused], allow_unused=True))
            with pytest.raises(RuntimeError, match="appears to not have been used"):
                torch.autograd.grad(x.sin().sum(), [x, unused])
            return result

        return step

    check(make, captures=None)


def test_backward_inputs() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, w = leaf(3, seed=i), leaf(3, seed=9)
            y = x * w
            y.exp().sum().backward(inputs=[x])
            return grads(x, w)

        return step

    check(make)


def test_backward_inputs_non_leaf() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            y = x * 2
            y.exp().sum().backward(inputs=[y])
            return [x.grad, y.grad]

        return step

    check(make)


def test_multiple_roots_and_given_gradients() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            y = x.sin()
            z = y * x
            torch.autograd.backward([z, y, x], [torch.full((3,), 2.0), torch.ones(3), torch.ones(3)])
            return grads(x)

        return step

    check(make)


def test_stealing_and_sharing() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            a, b, c = leaf(3), leaf(3), leaf(3, 1)
            g = torch.ones(3)
            (a + b + c.view(3)).backward(g)
            assert a.grad is not None and b.grad is not None and c.grad is not None
            pointers = [t.data_ptr() for t in (a.grad, b.grad, c.grad, g)]
            aliases = [pointers.index(pointer) for pointer in pointers]
            return [a.grad.clone(), b.grad.clone(), c.grad.clone(), aliases]

        return step

    check(make)


def test_sharing_of_inner_gradient() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            a, b, c = leaf(3), leaf(3), leaf(3, 1)
            (a + b + c.view(3)).exp().sum().backward()
            assert a.grad is not None and b.grad is not None and c.grad is not None
            pointers = [t.data_ptr() for t in (a.grad, b.grad, c.grad)]
            return [a.grad.clone(), c.grad.clone(), [pointers.index(pointer) for pointer in pointers]]

        return step

    check(make)


def test_layout_of_gradients() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            a, b = leaf(3, 4), leaf(4, 3)
            (a.t() @ b.t()).sum().backward()
            conv = nn.Conv2d(2, 2, 1).to(memory_format=torch.channels_last)
            conv(torch.ones(1, 2, 3, 3)).sum().backward()
            return [*grads(a, b), *grads(*conv.parameters())]

        return step

    check(make, captures=None)


def test_retain_graph_then_freed() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            loss = x.exp().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            return grads(x)

        return step

    check(make, captures=None, fallbacks=("saved tensor that cannot be read",))


def test_modified_saved_tensor_raises() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3)
            y = x.exp()
            loss = y.sum()
            with torch.no_grad():
                y.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            return grads(x)

        return step

    check(make, captures=0, fallbacks=("saved tensor that cannot be read",))


def test_scalar_that_changes_is_seen() -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            (w.sin() * (i % 2 + 1.5)).sum().backward()
            (w.sin() ** (i % 2 + 2)).sum().backward()
            return grads(w)

        return step

    check(make, captures=None)


def test_op_that_changes_is_seen() -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            [torch.sin, torch.cos, torch.exp][i % 3](w).sum().backward()
            return grads(w)

        return step

    check(make, steps=6, captures=3)


def test_shape_that_changes_is_seen() -> None:
    def make() -> Step:
        w = leaf(3, 3)

        def step(i: int) -> Any:
            w.grad = None
            (torch.ones(2 + i % 2, 3) @ w).exp().mean().backward()
            return grads(w)

        return step

    check(make, steps=6, captures=2)


def test_order_of_creation_is_seen() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(4, seed=i) * 1e3
            order = [1, 2, 0] if i % 2 else [0, 1, 2]
            parts: list[Any] = [None] * 3
            y = x * 1.1
            for k in order:
                parts[k] = [torch.sin, torch.cos, torch.tanh][k](y)
            y.retain_grad()
            leafed = parts[0] * 1e-3 + parts[1] * 7 + parts[2] * 1e4
            return list(torch.autograd.grad(leafed.sum(), [x]))

        return step

    check(make, steps=6, captures=None)


def test_autocast_around_backward_is_seen() -> None:
    def make() -> Step:
        linear = nn.Linear(4, 4)

        def step(i: int) -> Any:
            linear.zero_grad()
            loss = linear(torch.ones(2, 4)).sum()
            with torch.autocast("cpu", enabled=i % 2 == 0):
                loss.backward()
            with torch.autocast("cpu"):
                loss = linear(linear(torch.ones(2, 4))).float().sum()
            loss.backward()
            return grads(*linear.parameters())

        return step

    check(make, steps=6, captures=None)


@pytest.mark.parametrize("kind", ["tensor", "leaf", "pre", "post", "accumulate", "retain", "multi"])
def test_hooks(kind: str) -> None:
    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            seen: list[Any] = []

            def hook(g: torch.Tensor) -> torch.Tensor | None:
                seen.append(g.clone())
                return g * (i + 1) if i % 2 else None

            x = w * 2
            y = x.exp()
            handles: list[Any] = []
            if kind == "tensor":
                handles.append(x.register_hook(hook))
            if kind == "leaf":
                handles.append(w.register_hook(hook))
            if kind == "pre":
                handles.append(y.grad_fn.register_prehook(lambda gs: tuple(g * i for g in gs)))
            if kind == "post":
                handles.append(y.grad_fn.register_hook(lambda outs, ins: tuple(g + i for g in outs)))
            if kind == "accumulate":
                handles.append(w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())))
            if kind == "multi":
                handles.append(torch.autograd.graph.register_multi_grad_hook([x, y], lambda gs: seen.append(list(gs))))
            if kind == "retain":
                x.retain_grad()
            (y.sin() + x).sum().backward()
            result = [*grads(w), seen, x.grad.clone() if kind == "retain" and x.grad is not None else None]
            for handle in handles:
                handle.remove()
            return result

        return step

    check(make, steps=5)


def test_hook_that_drops_gradients() -> None:
    def make() -> Step:
        w, v = leaf(3), leaf(3, seed=1)
        total = torch.zeros(3)

        def step(i: int) -> Any:
            def drop(p: torch.Tensor) -> None:
                assert p.grad is not None
                total.add_(p.grad)
                p.grad = None

            handles = [w.register_post_accumulate_grad_hook(drop), v.register_post_accumulate_grad_hook(drop)]
            ((w * v).exp() * v).sum().backward()
            for handle in handles:
                handle.remove()
            return [total.clone(), w.grad, v.grad]

        return step

    check(make)


class Scale(torch.autograd.Function):
    factor = 1.0
    mode = ""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        if Scale.mode == "none":
            return None, grad * x * Scale.factor
        if Scale.mode == "transposed":
            return (grad * y).t().contiguous().t(), grad * x
        return grad * y * Scale.factor, grad * x


def test_function_with_changing_state() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            Scale.factor, Scale.mode = i + 1.0, ["", "none", "transposed"][i % 3]
            x, y = leaf(3, 3, seed=i), leaf(3, 3, seed=7)
            Scale.apply(x.sin(), y.cos()).exp().sum().backward()
            return grads(x, y)

        return step

    check(make, steps=7)
    assert gradc.counters["compiled_autograd"]["finished live"] >= 3


def test_checkpoint() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):

        def make() -> Step:
            layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())

            def step(i: int) -> Any:
                layer.zero_grad()
                x = leaf(2, 3, seed=i)
                y = checkpoint(layer, layer(x).sin(), use_reentrant=reentrant)
                y.exp().sum().backward()
                return grads(x, *layer.parameters())

            return step

        compiled_autograd.reset()
        check(make, captures=None)


def test_saved_tensors_hooks() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2 + i):
                y = x.sin().exp()
            (y * x).sum().backward()
            return grads(x)

        return step

    check(make)


def test_create_graph_is_left_to_the_engine() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            (g,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
            g.square().sum().backward()
            return grads(x)

        return step

    check(make, fallbacks=("create_graph",))


def test_sparse_embedding() -> None:
    def make() -> Step:
        table = nn.Embedding(5, 3, sparse=True)

        def step(i: int) -> Any:
            table.zero_grad()
            table(torch.tensor([1, 2, 1, i % 4])).exp().sum().backward()
            return [table.weight.grad.clone()]

        return step

    check(make, captures=None)


def test_views_slices_and_indexing() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, index = leaf(4, 4, seed=i), torch.tensor([0, 2, 2])
            y = x.clone()
            y[0].mul_(3)
            y[:, 1] = x[:, 2] * 2
            z = y[index] + torch.cat([x[:2], x[3:]])[:3] + torch.stack([x[0], x[1], x[2]])
            z.masked_fill(z > 0.5, 0.25).logsumexp(1).sum().backward()
            return grads(x)

        return step

    check(make)


def test_data_slices_do_not_recapture() -> None:
    data = torch.randn(20, 3)

    def make() -> Step:
        w = leaf(3, 3)

        def step(i: int) -> Any:
            w.grad = None
            (data[4 * i : 4 * i + 4] @ w).exp().sum().backward()
            return grads(w)

        return step

    check(make, steps=5)


def test_aliases_that_part_are_seen() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, a = leaf(3, seed=i), torch.ones(3)
            b = a.detach() if i % 2 == 0 else torch.full((3,), 2.0)
            ((x * a) * b).exp().sum().backward()
            return grads(x)

        return step

    check(make, captures=2)


def test_saved_tensors_are_freed() -> None:
    def run() -> bool:
        x = leaf(3)
        y = x.exp()
        saved = weakref.ref(y.untyped_storage())
        loss = y.sum()
        del y
        loss.backward()
        gc.collect()
        return saved() is None

    with compiled_autograd.enable():
        assert [run() for _ in range(3)][1:] == [True, True]  # what is captured is held until the capture is done


def test_hook_error_passes() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3)
            y = x * 2

            def fail(g: torch.Tensor) -> None:
                raise ValueError("mine")

            y.register_hook(fail)
            with pytest.raises(ValueError, match="mine"):
                y.sum().backward()
            return grads(x)

        return step

    check(make, captures=None)


def test_final_callbacks() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x, called = leaf(3), list[str]()

            def hook(g: torch.Tensor) -> None:
                torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(str(x.grad is None)))

            y = x * 2
            y.register_hook(hook)
            y.sum().backward()
            return [called, *grads(x)]

        return step

    check(make)


def test_threads_share_recordings() -> None:
    import threading

    results: list[Any] = []

    def work(seed: int) -> None:
        with compiled_autograd.enable():
            for i in range(20):
                x = leaf(4, 4, seed=seed * 100 + i)
                x.exp().sum().backward()
                results.append(x.grad is not None and same_bits(x.grad, x.detach().exp()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 60


def test_off_by_default_and_disable() -> None:
    leaf(3).exp().sum().backward()
    with compiled_autograd.enable(), compiled_autograd.disable():
        leaf(3).exp().sum().backward()
    assert not gradc.counters["compiled_autograd"]
    with gradc.config.patch(compiled_autograd=True):
        leaf(3).exp().sum().backward()
    assert gradc.counters["compiled_autograd"]["captures"] == 1


def test_reentrant_checkpoint_under_inputs_raises_as_eager() -> None:
    from torch.utils.checkpoint import checkpoint

    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(3, seed=i)
            with pytest.raises(RuntimeError, match="use_reentrant"):
                torch.autograd.grad(checkpoint(torch.sin, x * 2, use_reentrant=True).sum(), [x])
            return grads(x)

        return step

    check(make, captures=0, fallbacks=("autograd.Function under inputs=",))


def test_node_with_thousands_of_edges() -> None:
    def make() -> Step:
        def step(i: int) -> Any:
            x = leaf(2, seed=i)
            torch.stack([x] * 3000).exp().sum().backward()
            return grads(x)

        return step

    check(make, captures=0, fallbacks=("node with thousands of edges",))


def test_inner_accumulation_by_a_checkpoint_is_seen() -> None:
    """A reentrant pass gives the weight a gradient before the outer pass does."""
    from torch.utils.checkpoint import checkpoint

    def make() -> Step:
        w = leaf(3)

        def step(i: int) -> Any:
            w.grad = None
            x = leaf(3, seed=i)
            y = checkpoint(lambda v: v * w.sin(), x * w, use_reentrant=True)
            (y * w).sum().backward()
            return grads(w, x)

        return step

    check(make, captures=None)


@pytest.mark.parametrize("is_captured", [False, True])
def test_kernels_that_call_others_see_the_autocast_around_backward(is_captured: bool) -> None:
    """The kernel of roll calls cat, and autocast to bfloat16 refuses float16 there. Found by the fuzzer."""
    y = leaf(3, 4, dtype=torch.float16).roll((1, 1), (0, 1)).sum()
    chosen = compiled_autograd.enable if is_captured else compiled_autograd.disable
    with torch.autocast("cpu", torch.bfloat16), chosen(), pytest.raises(RuntimeError, match="autocast::prioritize"):
        y.backward()


def test_gradients_that_are_one_tensor_stay_one_object() -> None:
    """Also where a hooked node returned them. Found by the fuzzer."""
    for _ in range(3):
        x, y = leaf(3), leaf(3, seed=1)
        total = x + y
        total.retain_grad()
        with compiled_autograd.enable():
            first, second = torch.autograd.grad(total.sin().sum(), (x, y))
        assert first is second
    assert gradc.counters["compiled_autograd"] == {"captures": 1, "hits": 2}


def test_strides_where_eager_adds_in_place_to_what_a_hooked_node_returned() -> None:
    """In a dimension of size 1 a sum has other strides. Found by the fuzzer."""

    def make() -> Step:
        def step(_: int) -> Any:
            x = leaf(2, 1, 2)
            noise = torch.empty_strided((2, 1, 2), (1, 2, 2)).fill_(0.5)
            early = x.transpose(0, -1) * noise
            late = x.exp()
            late.register_hook(lambda grad: grad * 2)
            (early.transpose(0, -1) * 3 + late).sum().backward()
            return x.grad

        return step

    check(make)


@pytest.mark.parametrize("compile", [lambda function: function, gradc.compile])
def test_strides_where_a_node_hands_on_its_gradient(compile: Callable[..., Any]) -> None:
    """A leaf steals it, and its strides in a dimension of size 1, unless somebody else holds it. Found by the fuzzer."""

    def make() -> Step:
        f = compile(lambda x, y: (x + y).mT)

        def step(i: int) -> Any:
            x, y, kept = leaf(2, 1), leaf(2, 1, seed=1), []
            out = f(x, y)
            if i % 2:
                out.grad_fn.next_functions[0][0].register_prehook(lambda grads: kept.append(grads))
            (out * 2).sum().backward()
            return x.grad, y.grad, x.grad.stride(), y.grad.stride()

        return step

    check(make, captures=None)


def test_over_a_derivative_that_cannot_be_traced() -> None:
    """Its nodes are live ones with no Program behind them. Found by the fuzzer."""
    f = gradc.compile(lambda x: x.cumprod(0).sin())

    def grads_of(f: Callable[..., Any]) -> Any:
        x = leaf(5)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        with compiled_autograd.enable():
            first.square().sum().backward()
        return first.detach(), x.grad

    expected = grads_of(lambda x: x.cumprod(0).sin())
    for _ in range(3):
        assert same_with_strides(expected, grads_of(f))
    assert gradc.counters["fallbacks"] == {"derivative that cannot be traced": 3}


def test_strides_behind_an_opaque_node() -> None:
    """Found by the fuzzer."""

    def make() -> Step:
        def step(_: int) -> Any:
            x = leaf(2, 1)
            y = x.cumprod(0).view_as(x)
            torch.dropout(y.mT, 0.5, True).sum().backward()
            return x.grad, x.grad.stride()

        return step

    check(make)


def test_strides_of_a_sum_of_two_slices_of_a_gradient() -> None:
    """Both with strides in a dimension of size 1 that no fresh tensor has. Found by the fuzzer."""

    def make() -> Step:
        f = gradc.compile(lambda x, y: -(torch.stack([x, y, x], 1) / 9))

        def step(_: int) -> Any:
            x = leaf(1, 3)
            f(x, leaf(1, 3).detach().double()).sum().backward()
            assert x.grad is not None and x.grad.stride() == (9, 1)
            return x.grad

        return step

    check(make)


def test_strides_of_the_gradient_of_masked_select() -> None:
    """Its formula takes another way while a mode records, and loses the strides of a transposed input. Found by the fuzzer."""

    def make() -> Step:
        def step(_: int) -> Any:
            x = leaf(2, 4)
            y = x.mT
            (grad,) = torch.autograd.grad(y.masked_select(y > 0).sum(), y)
            assert grad.stride() == (1, 4)
            return grad

        return step

    check(make)


def test_strides_of_the_gradient_of_ormqr() -> None:
    """Its formula calls householder_product, whose kernel lays out its result by itself."""

    def make() -> Step:
        reflectors = leaf(5, 5).detach().mT.requires_grad_()  # by columns, as geqrf gives them
        scales, other = leaf(5, seed=1), leaf(5, 5, seed=2)
        return lambda i: torch.autograd.grad(torch.ormqr(reflectors, scales, other).sum(), [reflectors, scales, other])

    check(make)
