"""Views and writes: what shares memory with what, which history a write makes, what is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.oracle import constant, leaf
from tests.peers.registry import behaviour, refusal


@behaviour(leaf(4, 4))
def a_write_into_a_view_reaches_its_base(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        root = x * 2
        row = root[0]
        row.mul_(3)
        corner = row[1:].view(3)
        corner.add_(root[1, 1:])
        return root, row, corner

    root, row, corner = compile(function)(x)
    (root.sum() + row.exp().sum() + corner.sin().sum()).backward()
    return root, row, corner, corner._base is root


@behaviour(leaf(4, 4))
def a_write_outside_into_a_returned_view(compile: Any, x: Tensor) -> Any:
    root, row = compile(lambda x: ((root := x * 2), root[0]))(x)
    row.mul_(3)
    root[1].add_(row)
    (root.sum() + row.exp().sum()).backward()
    return root, row, row._base is root, root._version


@behaviour(leaf(4, 4))
def one_of_several_views_may_not_be_written_into(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        root = x * 2
        return root.unbind(), root.chunk(2), root.split([1, 3]), root.tensor_split(2)

    words = [refusal(lambda: views[0].mul_(2)) for views in compile(function)(x)]
    inside = refusal(lambda: compile(lambda x: (x * 2).unbind()[0].mul_(2))(x))
    return words, inside


@behaviour(leaf(4, 4))
def several_views_of_an_input_without_gradient(compile: Any, x: Tensor) -> Any:
    plain = x.detach().clone()
    views = compile(lambda x: x.unbind())(plain)
    return refusal(lambda: views[0].mul_(2)), refusal(lambda: views[0].mul_(x.sum())), plain


@behaviour(leaf(4))
def overlapping_memory_may_not_be_written_into(compile: Any, x: Tensor) -> Any:
    return refusal(lambda: compile(lambda x: (x * 2).expand(3, 4).add_(1))(x))


@behaviour(leaf(4, 4), leaf(4))
def an_assigned_part(compile: Any, x: Tensor, y: Tensor) -> Any:
    def function(x: Tensor, y: Tensor) -> Tensor:
        root = x * 2
        root[1] = y
        root[:, 2] = 5
        root[[0, 0], [1, 1]] = y[:2]
        root[root > 3] = 0
        return root

    out = compile(function)(x, y)
    out.sin().sum().backward()
    return out


@behaviour(leaf(4), leaf(4))
def a_constant_becomes_part_of_the_graph(compile: Any, x: Tensor, y: Tensor) -> Any:
    def function(x: Tensor, y: Tensor) -> Any:
        made = torch.zeros(2, 4)
        made[0] = x
        before = made.requires_grad, made.is_leaf
        made[1].copy_(y * x)
        return made, before

    made, before = compile(function)(x, y)
    made.exp().sum().backward()
    return made, before


@behaviour(constant(2, 4), leaf(4))
def an_input_becomes_part_of_the_graph(compile: Any, made: Tensor, x: Tensor) -> Any:
    compile(lambda made, x: made[0].mul_(x))(made, x)
    described = made.requires_grad, made.is_leaf, made._version
    made.exp().sum().backward()
    return described, made


@behaviour(leaf(4, 4))
def views_made_under_no_grad(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        root = x * 2
        with torch.no_grad():
            view = root[0]
            several = root.unbind()
        return root, view, several

    root, view, several = compile(function)(x)
    described = view._is_view(), view._base is root, view.requires_grad, view.grad_fn is None
    words = refusal(lambda: view.mul_(2)), refusal(lambda: several[1].mul_(2))
    with torch.no_grad():
        view.mul_(3)
    return described, words, root, root._version, refusal(lambda: view.requires_grad)


@behaviour(leaf(4, 4))
def a_view_made_under_no_grad_of_an_input(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        with torch.no_grad():
            return x[0], x.detach()[1]

    view, apart = compile(function)(x)
    return view._is_view(), view._base is x, apart._base is x, refusal(lambda: view.mul_(2)), refusal(lambda: apart.mul_(2)), x


@behaviour(leaf(4, 4))
def views_with_recording_of_what_was_made_without(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        with torch.no_grad():
            root = x * 2
        row = root[0]
        row.mul_(x[1])
        return root, row

    root, row = compile(function)(x)
    (root.sum() + row.exp().sum()).backward()
    return root, row, root.requires_grad


@behaviour(leaf(6))
def strided_views(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        overlapping = (x * 2).as_strided((3, 3), (1, 1))
        return overlapping, overlapping.exp().sum() + x.as_strided((2,), (3,), 1).sum()

    overlapping, out = compile(function)(x)
    (out + overlapping.sum()).backward()
    return overlapping


@behaviour(leaf(4, 4))
def a_detached_view_shares_memory_and_versions(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        root = x.exp()
        apart = root.detach()
        out = root.sin().sum()
        return root, apart, out

    root, apart, out = compile(function)(x)
    apart.zero_()
    return root._version, refusal(out.backward), root


@behaviour(leaf(4, 4))
def data_shares_memory_but_no_versions(compile: Any, x: Tensor) -> Any:
    root = compile(lambda x: x.exp())(x)
    out = root.sin().sum()
    root.data.mul_(2)
    out.backward()
    return root._version


@behaviour(leaf(4, 4))
def versions_that_are_kept(compile: Any, x: Tensor) -> Any:
    root, out = compile(lambda x: ((root := x.exp()), root.sin().sum()))(x)
    with torch.autograd._unsafe_preserve_version_counter(root):
        root.detach().mul_(2)
    kept = root._version
    torch.autograd.graph.increment_version(root)
    return kept, root._version, refusal(out.backward)


@behaviour(leaf(3, dtype=torch.complex64))
def lazy_conjugates(compile: Any, z: Tensor) -> Any:
    def function(z: Tensor) -> Any:
        root = z * 2
        return root.conj(), root.conj().imag, torch.fft.ifft(root), root

    results = compile(function)(z)
    described = [(one.is_conj(), one.is_neg(), one._is_view()) for one in results]
    (torch.view_as_real(results[0].resolve_conj()).sum() + results[1].exp().sum() + results[2].abs().sum()).backward()
    return described, [one.resolve_conj().resolve_neg() for one in results]


@behaviour(leaf(3, dtype=torch.complex64))
def a_write_into_a_lazy_conjugate(compile: Any, z: Tensor) -> Any:
    root, view = compile(lambda z: ((root := z * 2), root.conj()))(z)
    view.mul_(2j)
    (root.abs().sum() + view.real.sum()).backward()
    return root, view.resolve_conj()


@behaviour(leaf(3))
def a_view_of_another_type(compile: Any, x: Tensor) -> Any:
    bits = compile(lambda x: (x * 2).detach().view(torch.int32))(x)
    seen = bits.dtype, bits._is_view(), bits._base is None, bits.clone()
    return seen, refusal(lambda: compile(lambda x: (x * 2).view(torch.int32))(x).requires_grad)


@behaviour(leaf(4, 4))
def swapped_contents(compile: Any, x: Tensor) -> Any:
    root = compile(lambda x: x.exp())(x)
    out = root.sin().sum()
    words = refusal(lambda: root.set_(torch.zeros(2)))
    return words, refusal(out.backward)
