"""autograd.Function: what its two methods get, what they may return, and what is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.oracle import constant, leaf
from tests.peers.registry import behaviour, refusal


class Blend(Function):
    """x + number * y + x * y"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: float, y: Tensor) -> Tensor:
        ctx.number = number
        ctx.save_for_backward(x, y)
        return x + number * y + x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad + grad * y, None, grad * ctx.number + grad * x


class BlendOnce(Blend):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return Blend.backward(ctx, grad)


@behaviour(leaf(5, 5), leaf(5, 5))
def a_number_gets_no_gradient(compile: Any, x: Tensor, y: Tensor) -> Any:
    compile(lambda x, y: Blend.apply(x, 2, y).sum())(x, y).backward(torch.ones(()), create_graph=True)
    return [x.grad.detach(), y.grad.detach(), torch.autograd.grad(x.grad.sum(), [x, y], allow_unused=True)]


@behaviour(leaf(5, 5), leaf(5, 5))
def once_differentiable_is_refused_twice(compile: Any, x: Tensor, y: Tensor) -> Any:
    out = compile(lambda x, y: BlendOnce.apply(x, 2, y).sum())(x, y)
    first = torch.autograd.grad(out, [x, y], torch.ones((), requires_grad=True), create_graph=True)
    return [g.detach() for g in first], refusal(lambda: torch.autograd.grad(first[0].sum(), y))


class Same(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@behaviour(leaf(3))
def a_returned_argument_is_a_view_of_it(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: Same.apply(x))(x)
    described = out is x, out._is_view(), out._base is x, out.data_ptr() == x.data_ptr()
    out.sum().backward()
    return described, out


@behaviour(leaf(3))
def a_returned_intermediate_is_doubled_on_the_way_back(compile: Any, x: Tensor) -> Any:
    compile(lambda x: Same.apply(x.clone()).exp().sum())(x).backward()


@behaviour(leaf(3))
def written_into_what_returns_its_argument(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        root = x * 2
        out = Same.apply(root)
        return refusal(lambda: out.mul_(3)), root

    words, root = compile(function)(x)
    root.sum().backward()
    return words.split("\n")[0], root


class Nothing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


@behaviour(leaf(3))
def no_gradient_is_none_and_not_zeros(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: Nothing.apply(x**2))
    function(x).sum().backward()
    before = x.grad
    return before, torch.autograd.grad(function(x).sum(), x, allow_unused=True)


class Pair(Function):
    """exp and sin, whose missing gradients are what ``materialize`` says."""

    materialize = True

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(Pair.materialize)
        ctx.save_for_backward(x)
        return x.exp(), x.sin()

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        (x,) = ctx.saved_tensors
        parts = [g * f(x) for g, f in ((first, torch.exp), (second, torch.cos)) if g is not None]
        Pair.seen.append([g is None for g in (first, second)])
        return sum(parts[1:], parts[0]) if parts else None

    seen: list[Any] = []


def _pair(compile: Any, x: Tensor, materialize: bool) -> Any:
    Pair.materialize, Pair.seen = materialize, []
    function = compile(lambda x: Pair.apply(x * 2))
    for pick in (0, 1):
        function(x)[pick].sum().backward()
    return Pair.seen


@behaviour(leaf(3))
def a_missing_gradient_is_zeros(compile: Any, x: Tensor) -> Any:
    return _pair(compile, x, True)


@behaviour(leaf(3))
def a_missing_gradient_is_none_on_request(compile: Any, x: Tensor) -> Any:
    return _pair(compile, x, False)


class Faulty(Function):
    """Its backward returns what ``answer`` makes of the gradient."""

    answer: Any = None

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return Faulty.answer(grad)


def _faulty(compile: Any, x: Tensor, answer: Any) -> Any:
    Faulty.answer = staticmethod(answer)
    out = compile(lambda x: Faulty.apply(x * 2).sum())(x)
    return refusal(out.backward)


def _raise(grad: Tensor) -> Any:
    raise KeyError("of the user's")


@behaviour(leaf(5, 5))
def an_error_in_backward_is_the_users(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, _raise)


@behaviour(leaf(5, 5))
def a_gradient_of_another_shape_is_refused(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: torch.ones(10))


@behaviour(leaf(5, 5))
def a_gradient_that_broadcasts_is_summed(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: torch.ones(3, 5, 5))


@behaviour(leaf(5, 5))
def too_many_gradients_are_refused(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: (grad, grad))


@behaviour(leaf(5, 5))
def nones_too_many_are_dropped(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: (grad, None, None))


@behaviour(leaf(5, 5))
def a_number_is_no_gradient(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: 3.0)


@behaviour(leaf(5, 5))
def a_gradient_of_another_type_is_cast(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: grad.double() / 3)


@behaviour(leaf(5, 5))
def a_complex_gradient_is_made_real(compile: Any, x: Tensor) -> Any:
    return _faulty(compile, x, lambda grad: torch.complex(grad, grad))


class SavesItsOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        ctx.save_for_backward(x, out, None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _, out, nothing = ctx.saved_tensors
        assert nothing is None
        return grad * out


@behaviour(leaf(3))
def a_saved_output_leads_back_to_the_function(compile: Any, x: Tensor) -> Any:
    (first,) = torch.autograd.grad(compile(lambda x: SavesItsOutput.apply(x * 2))(x).sum(), x, create_graph=True)
    first.sum().backward()
    return first.detach()


@behaviour(leaf(3))
def a_saved_output_written_into_is_noticed(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Tensor:
        out = SavesItsOutput.apply(x * 2)
        out.mul_(2)
        return out

    return refusal(compile(function)(x).sum().backward)


@behaviour(leaf(3))
def what_was_saved_is_gone_after_backward(compile: Any, x: Tensor) -> Any:
    out = compile(lambda x: SavesItsOutput.apply(x * 2))(x)
    out.sum().backward()
    return refusal(out.sum().backward)


class Mixed(Function):
    """Takes and returns what is no tensor, too."""

    @staticmethod
    def forward(ctx: Any, name: str, xs: list[Tensor], x: Tensor, flag: bool) -> Any:
        ctx.save_for_backward(x)
        ctx.flag, ctx.many = flag, len(xs)
        return name + "!", x * 2 if flag else x * 3, None, xs[0] * x

    @staticmethod
    def backward(ctx: Any, _name: Any, grad: Tensor, _none: Any, other: Tensor) -> Any:
        assert _name is None and _none is None
        return None, None, grad * (2 if ctx.flag else 3) + other * ctx.many, None


@behaviour(leaf(3), leaf(3))
def what_is_no_tensor_passes_through(compile: Any, x: Tensor, y: Tensor) -> Any:
    name, out, nothing, other = compile(lambda x, y: Mixed.apply("name", [y, y], x, True))(x, y)
    (out.sum() + other.sum()).backward()
    return name, out, nothing, other, y.grad


class Asks(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, z)
        Asks.seen.append((torch.is_grad_enabled(), x.requires_grad, y.requires_grad))
        return x * y + z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y, z = ctx.saved_tensors
        Asks.seen.append((ctx.needs_input_grad, torch.is_grad_enabled(), x.requires_grad, x.is_leaf, grad.requires_grad))
        needs = ctx.needs_input_grad
        return grad * y if needs[0] else None, grad * x if needs[1] else None, grad if needs[2] else None

    seen: list[Any] = []


@behaviour(leaf(3), constant(3), leaf(3))
def what_a_function_can_ask(compile: Any, x: Tensor, y: Tensor, z: Tensor) -> Any:
    Asks.seen = []
    function = compile(lambda x, y, z: Asks.apply(x, y, z * 2).sum())
    function(x, y, z).backward()
    torch.autograd.grad(function(x, y, z), [z], create_graph=True)
    with torch.no_grad():
        out = function(x, y, z)
    return Asks.seen, out


class Differentiates(Function):
    """Runs a backward pass inside its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.out = (ctx.x.sin() * ctx.x).sum()
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        ctx.out.backward()
        return ctx.x.grad * grad


@behaviour(leaf(3))
def a_pass_inside_a_pass(compile: Any, x: Tensor) -> Any:
    compile(lambda x: Differentiates.apply(x * 2) * 3)(x).backward()


class CallsAnother(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return Blend.apply(grad, 3.0, x**2) * grad


@behaviour(leaf(3))
def a_function_in_the_backward_of_another(compile: Any, x: Tensor) -> Any:
    (first,) = torch.autograd.grad(compile(lambda x: CallsAnother.apply(x).sum())(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    second.sum().backward()
    return first.detach(), second.detach()


class Part(Function):
    """Returns a view of its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)[:2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.cat([grad, grad.new_zeros(4)]).view(2, 3)


class Parts(Part):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x[0], x[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.stack(grads)


def _first(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


def _view_of_a_function(compile: Any, x: Tensor, kind: Any, is_inside: bool) -> Any:
    def function(x: Tensor) -> Any:
        root = x * 2
        view = _first(kind.apply(root))
        words = refusal(lambda: view.mul_(3)) if is_inside else ""
        return root, view, words

    root, view, words = compile(function)(x)
    described = view._is_view(), view._base is root, view.requires_grad, view._version
    words = words or refusal(lambda: view.mul_(3))
    error = refusal(lambda: (root.sum() + view.sum()).backward())
    return described, words[:300], error[:300], root, view


@behaviour(leaf(2, 3))
def a_view_made_in_a_function_written_into_outside(compile: Any, x: Tensor) -> Any:
    return _view_of_a_function(compile, x, Part, False)


@behaviour(leaf(2, 3))
def a_view_made_in_a_function_written_into_inside(compile: Any, x: Tensor) -> Any:
    return _view_of_a_function(compile, x, Part, True)


@behaviour(leaf(2, 3))
def several_views_made_in_a_function_written_into_outside(compile: Any, x: Tensor) -> Any:
    return _view_of_a_function(compile, x, Parts, False)


@behaviour(leaf(2, 3))
def several_views_made_in_a_function_written_into_inside(compile: Any, x: Tensor) -> Any:
    return _view_of_a_function(compile, x, Parts, True)


class Twice(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        out = x * 2
        return out, out

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return (first + second) * 2


@behaviour(leaf(3))
def one_tensor_returned_twice(compile: Any, x: Tensor) -> Any:
    first, second = compile(lambda x: Twice.apply(x))(x)
    (first.sin() + second.cos()).sum().backward()
    return first, second, first is second


class Dirty(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


@behaviour(leaf(3))
def dirty_arguments(compile: Any, x: Tensor) -> Any:
    def function(x: Tensor) -> Any:
        root = x * 2
        part = root[1:]
        out = Dirty.apply(part)
        return root, out, out is part

    root, out, is_same = compile(function)(x)
    (root.sum() + out.exp().sum()).backward()
    return root, out, is_same


@behaviour(leaf(3))
def a_dirty_leaf_is_refused(compile: Any, x: Tensor) -> Any:
    return refusal(lambda: compile(lambda x: Dirty.apply(x))(x))


class Cast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


@behaviour(leaf(4, 4), leaf(4, 4))
def a_function_out_of_autocast(compile: Any, x: Tensor, w: Tensor) -> Any:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return Cast.apply(x @ w, w) @ w

    out = compile(function)(x, w)
    out.sum().backward()
    return out


class Transformed(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].cos() * 2  # to be told from sin's own

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0].cos() * 3


@behaviour(leaf(4))
def a_function_under_transforms(compile: Any, x: Tensor) -> Any:
    function = compile(lambda x: Transformed.apply(x) * x)
    per_sample = torch.func.vmap(torch.func.grad(lambda x: function(x)))(x.detach())
    _, tangent = torch.func.jvp(function, (x.detach(),), (torch.ones(4),))
    function(x).sum().backward()
    return per_sample, tangent
