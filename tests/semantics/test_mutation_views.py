"""Mutation, views: inputs changed in place, outputs that alias, version counters and their errors."""

from __future__ import annotations

import torch
from torch import nn

from tests.oracle import constant, leaf
from tests.semantics.registry import case

MUTATED = "Inputs mutated in place"
ALIASED = "Outputs that alias inputs or each other"


@case(MUTATED, constant(4, 6), leaf(4, 6))
def test_constant_input(compile, x, w):
    def f(x, w):
        x.add_(1)
        return x * w

    y = compile(f)(x, w)
    y.sum().backward()
    return y


@case(MUTATED, leaf(4, 6), leaf(4, 6))
def test_leaf_under_no_grad(compile, x, w):
    def f(x, w):
        with torch.no_grad():
            x.mul_(2)
        return x * w

    y = compile(f)(x, w)
    y.sum().backward()
    return y


@case(MUTATED, leaf(4, 6), leaf(4, 6), min_graphs=0, fallback="tracing failed")
def test_leaf_raises(compile, x, w):
    def f(x, w):
        x.mul_(2)
        return x * w

    compile(f)(x, w)


@case(MUTATED, leaf(4, 6), leaf(4, 6))
def test_non_leaf(compile, x, w):
    def f(a, w):
        a.mul_(w)
        return a.sin()

    a = x * 1
    y = compile(f)(a, w)
    (y.sum() + a.sum()).backward()
    return a, y


@case(MUTATED, leaf(4, 6), leaf(4, 6))
def test_non_leaf_by_copy(compile, x, w):
    def f(a, w):
        a[:, :3].copy_(w[:, 3:])
        return a * 2

    a = x * 1
    y = compile(f)(a, w)
    (y.sum() + a.exp().sum()).backward()
    return a


@case(MUTATED, constant(4, 6), leaf(4, 6))
def test_constant_becomes_differentiable(compile, x, w):
    def f(a, w):
        a.add_(w)
        return a * 2

    compile(f)(x, w)
    x.exp().sum().backward()
    return x


@case(MUTATED, constant(4, 6), leaf(4, 6))
def test_several_times(compile, x, w):
    def f(x, w):
        x.add_(1)
        y = x * 2
        x.mul_(3)
        x.zero_()
        return y * w

    y = compile(f)(x, w)
    y.sum().backward()
    return y


@case(MUTATED, constant(8), leaf(4))
def test_through_views_of_input(compile, x, w):
    def f(x, w):
        x[:4].add_(1)
        x.view(2, 4)[1].mul_(2)
        return x[2:6] * w

    y = compile(f)(x, w)
    y.sum().backward()


@case(MUTATED, constant(8), leaf(4))
def test_two_inputs_that_overlap(compile, x, w):
    def f(a, b, w):
        a.add_(1)
        return b * w

    y = compile(f)(x[:4], x[2:6], w)
    y.sum().backward()
    return y, x


@case(MUTATED, constant(8), leaf(8))
def test_same_tensor_twice(compile, x, w):
    def f(a, b, w):
        a.add_(1)
        return b * w

    y = compile(f)(x, x, w)
    y.sum().backward()
    return y


@case(MUTATED, leaf(8))
def test_base_and_view_of_it(compile, x):
    def f(base, view):
        view.mul_(2)
        return base.sin()

    base = x * 1
    y = compile(f)(base, base[:4])
    y.sum().backward()
    return base


@case(MUTATED, leaf(8))
def test_overlapping_views_read_only(compile, x):
    base = x * 1
    y = compile(lambda a, b: a * b.sin())(base[:5], base[3:])
    y.sum().backward()


@case(MUTATED, leaf(4), leaf(3, 4))
def test_expanded_input_read_only(compile, x, w):
    y = compile(lambda a, w: (a * w).exp())(x.expand(3, 4), w)
    y.sum().backward()


@case(MUTATED, lambda: nn.BatchNorm1d(6), leaf(4, 6))
def test_buffers(compile, norm, x):
    f = compile(norm)
    for training in (True, False, True):
        norm.train(training)
        f(x).square().sum().backward()


@case(MUTATED, constant(4, 6), leaf(4, 6))
def test_detached_alias_of_input(compile, x, w):
    def f(x, w):
        x.detach().add_(1)
        return x * w

    y = compile(f)(x, w)
    y.sum().backward()


@case(MUTATED, constant(4, 6), leaf(4, 6))
def test_set_data_outside_between_calls(compile, x, w):
    f = compile(lambda x, w: (x * w).sin())
    y = f(x, w)
    w.data = w.data * 2
    z = f(x, w)
    (y.sum() + z.sum()).backward()
    return y, z


@case(MUTATED, constant(4, 6), constant(4, 6))
def test_out_argument(compile, x, out):
    return compile(lambda x, out: torch.exp(x, out=out))(x, out)


@case(MUTATED, constant(4, 6), leaf(4, 6))
def test_copy_into_input_of_other_dtype(compile, x, w):
    target = torch.zeros(4, 6, dtype=torch.float64)
    y = compile(lambda t, x, w: t.copy_(x * w).sin())(target, x, w)
    y.sum().backward()
    return target


@case("Version counters", constant(4, 6), leaf(4, 6))
def test_versions_after_each_call(compile, x, w):
    def f(x, w):
        x.add_(1)
        x[0].mul_(2)
        return x.sum() * w

    versions = []
    g = compile(f)
    for _ in range(3):
        g(x, w)
        versions.append(x._version)
    return versions


@case("Version counters", leaf(4, 6), leaf(6, 6), compare_messages=False)
def test_modified_error(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    with torch.no_grad():
        x.zero_()
    y.sum().backward()


@case("Version counters", leaf(4, 6), leaf(6, 6))
def test_saved_output_modified_error(compile, x, w):
    y = compile(lambda x, w: torch.tanh(x @ w))(x, w)
    y.zero_()
    y.sum().backward()


@case("Version counters", leaf(4, 6))
def test_in_place_on_an_output_view(compile, x):
    y = compile(lambda x: (x * 2).view(2, 12))(x)
    y.mul_(3)
    y.sum().backward()
    return y


@case("Version counters", leaf(4, 6))
def test_in_place_on_multi_output_view_raises(compile, x):
    a, _ = compile(lambda x: (x * 2).unbind()[:2])(x)
    a.mul_(2)


@case("Version counters", leaf(4, 6))
def test_in_place_on_view_of_input_leaf_raises(compile, x):
    y = compile(lambda x: x.view(-1))(x)
    y.mul_(2)


@case("Version counters", leaf(4, 6))
def test_in_place_on_output_that_views_a_non_leaf_input(compile, x):
    a = x * 1
    y = compile(lambda a: a.view(-1)[2:])(a)
    y.mul_(2)
    a.sin().sum().backward()
    return a, y


@case("Version counters", leaf(4, 6))
def test_in_place_on_one_of_two_outputs_that_share_a_base(compile, x):
    def f(x):
        base = x * 2
        return base[:2], base[1:]

    a, b = compile(f)(x)
    a.mul_(3)
    b.sum().backward()
    return a, b


@case("Version counters", leaf(4, 6), min_graphs=0, fallback="tracing failed")
def test_in_place_on_an_unbind_view_inside_raises(compile, x):
    def f(x):
        first = (x * 2).unbind()[0]
        first.mul_(2)
        return first

    compile(f)(x)


@case(ALIASED, leaf(4, 6))
def test_view_of_input(compile, x):
    a, b = compile(lambda x: (x.view(-1), x.t()))(x)
    (a.sum() + b.sin().sum()).backward()
    return a, b


@case(ALIASED, leaf(4, 6))
def test_view_of_intermediate(compile, x):
    def f(x):
        base = x * 2
        return base, base[0], base.t()

    outputs = compile(f)(x)
    sum(out.sin().sum() for out in outputs).backward()
    return outputs


@case(ALIASED, leaf(4, 6))
def test_view_of_an_intermediate_not_returned(compile, x):
    def f(x):
        base = x * 2
        return base[0], base[1]

    outputs = compile(f)(x)
    outputs[1].sin().sum().backward()
    return outputs


@case(ALIASED, leaf(4, 6), leaf(4, 6))
def test_returned_input_is_the_same_object(compile, x, w):
    a, y, b = compile(lambda x, w: (x, x * w, w))(x, w)
    return a, y, b


@case(ALIASED, leaf(4, 6))
def test_same_output_twice(compile, x):
    def f(x):
        y = x.sin()
        return y, [y, y]

    outputs = compile(f)(x)
    outputs[0].sum().backward()
    return outputs


@case(ALIASED, constant(4, 6), leaf(4, 6))
def test_mutated_and_returned(compile, x, w):
    y = compile(lambda x, w: (x.add_(1), x[0]))(x, w)
    return y


@case(ALIASED, leaf(4, 6))
def test_detached_output(compile, x):
    y, z = compile(lambda x: (x.detach(), (x * 2).detach()))(x)
    return y, z


@case(ALIASED, leaf(4, 6))
def test_alias_by_no_op(compile, x):
    """contiguous, to, float and reshape return the input itself where there is nothing to do."""
    return compile(lambda x: (x.contiguous(), x.to(torch.float32), x.reshape(4, 6), x.float(), x.expand(4, 6)))(x)


@case(ALIASED, leaf(4, 6))
def test_chunk_and_split(compile, x):
    outputs = compile(lambda x: (x * 2).chunk(2) + x.split(2))(x)
    sum(out.exp().sum() for out in outputs).backward()
    return outputs


@case(ALIASED, leaf(4, 6, dtype=torch.complex64))
def test_view_as_real(compile, x):
    y = compile(lambda x: torch.view_as_real(x * 2))(x)
    y.sum().backward()
    return y


@case(ALIASED, leaf(4, 6))
def test_as_strided(compile, x):
    y = compile(lambda x: (x * 2).as_strided((3, 3), (1, 2), 1))(x)
    y.sum().backward()
    return y


@case(ALIASED, leaf(4, 6))
def test_view_under_no_grad(compile, x):
    def f(x):
        with torch.no_grad():
            return x.view(-1), x[0]

    return compile(f)(x)


@case(ALIASED, leaf(4, 6))
def test_dtype_view(compile, x):
    return compile(lambda x: (x.detach() * 2).view(torch.int32))(x)


@case(ALIASED, leaf(4, 6), leaf(6))
def test_in_place_inside_on_intermediates(compile, x, w):
    def f(x, w):
        y = x * 2
        y[0] = w
        y[:, 1].mul_(3)
        y.t()[2] += 1
        y.relu_()
        return y

    y = compile(f)(x, w)
    y.sum().backward()
    return y


@case(ALIASED, leaf(4, 6), leaf(4, 6))
def test_attribute_mutation(compile, x, w):
    class Cache:
        last = None

    def f(x, w):
        cache.last = (x * w).detach()
        return cache.last + x

    cache = Cache()
    y = compile(f)(x, w)
    y.sum().backward()
    return cache.last, y


@case(ALIASED, leaf(4, 6))
def test_graph_break_between(compile, x):
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        y.mul_(2)
        return y, y.view(-1)

    outputs = compile(f)(x)
    outputs[1].sum().backward()
    return outputs
