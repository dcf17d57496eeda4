"""Ops of ``torch.library.Library``, with kernels in Python: gradients are eager's, whatever was registered for them."""

import warnings

import pytest
import torch

from tests.compilers import find
from tests.oracle import check, leaf

COMPILERS = [find(name) for name in ("gradc", "gradc:eager", "gradc_captured")]
NO_FORMULA = "op without a formula for its gradient"
each_compiler = pytest.mark.parametrize("compiler", COMPILERS, ids=lambda compiler: compiler.name)

library = torch.library.Library("gradc_library_tests", "DEF")  # ops live as long as it does


def define(name, kernel, key="CPU", formula=()):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, kernel, key)
    if key != "CompositeImplicitAutograd":
        torch.library.register_fake(f"gradc_library_tests::{name}", torch.empty_like, lib=library)
    if formula:
        torch.library.register_autograd(f"gradc_library_tests::{name}", formula[0], setup_context=formula[1], lib=library)
    return getattr(torch.ops.gradc_library_tests, name)


def save_input(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos() * 3


with_formula = define("with_formula", lambda x: x.sin() * 3, formula=(backward, save_input))
composite = define("composite", lambda x: x.sin() * 3, key="CompositeImplicitAutograd")
without_formula = define("without_formula", lambda x: x.sin() * 3)
explicit = define("explicit", lambda x: x.sin() * 3, key="CompositeExplicitAutograd")
falling_through = define("falling_through", lambda x: x.sin() * 3)
library.impl("falling_through", torch.library.fallthrough_kernel, "Autograd")
refusing = define("refusing", lambda x: x.sin() * 3, formula=(None, save_input))


def steps(op):
    def alone(compile, x, w):
        y = compile(lambda x, w: (op(x) * w).sum())(x, w)
        y.backward()
        return y

    def between(compile, x, w):
        y = compile(lambda x, w: (op(x.exp() * w).tanh() * w).sum())(x, w)
        y.backward()
        return y

    def twice(compile, x, w):
        f = compile(lambda x, w: op(op(x * w)).cos())
        return [torch.autograd.grad(f(x, w).sum(), (x, w), create_graph=True) for _ in range(2)]

    def under_no_grad(compile, x, w):
        def f(x, w):
            with torch.no_grad():
                y = op(x)
            return (y * w).sum()

        y = compile(f)(x, w)
        y.backward()
        return y

    return alone, between, twice, under_no_grad


@each_compiler
@pytest.mark.parametrize("number", range(4), ids=["alone", "between", "twice", "under_no_grad"])
@pytest.mark.parametrize("op", [with_formula, composite, without_formula, explicit, falling_through, refusing], ids=str)
def test_a_library_op(op, number, compiler):
    """One with a formula crashed: Dynamo compiled its kernel. One without got no gradient; eager goes through its kernel."""
    has_none, is_compiled = op in (without_formula, explicit, falling_through), op in (with_formula, composite)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of ops without a formula
        report = check(steps(op)[number], leaf(4), leaf(4), compiler=compiler, allow_fallback=not is_compiled)
    assert (NO_FORMULA in report.fallbacks) == (has_none and number != 3)


def test_a_kernel_is_no_region_of_its_own():
    graphs = find("gradc")
    report = check(steps(with_formula)[0], leaf(4), leaf(4), compiler=graphs)
    assert report.num_graphs == 1
