"""What an op refuses by value is refused compiled, too, with eager's error, though nobody reads what the op would return."""

import pytest
import torch
from torch.nn import functional as F

from tests.compilers import COMPILERS, GRADC
from tests.oracle import check, constant, leaf

SINGULAR, NEGATIVE = torch.zeros(2, 2), -torch.eye(2)
GOOD, FAR, BELOW = torch.tensor([1]), torch.tensor([9]), torch.tensor([-7])
NUMBERS = torch.arange(3.0)
REFUSED = {
    "cholesky": (torch.linalg.cholesky, torch.eye(2), NEGATIVE),
    "inv": (torch.linalg.inv, torch.eye(2), SINGULAR),
    "solve": (lambda a: torch.linalg.solve(a, torch.ones(2)), torch.eye(2), SINGULAR),
    "lu_factor": (torch.linalg.lu_factor, torch.eye(2), SINGULAR),
    "ldl_factor": (torch.linalg.ldl_factor, torch.eye(2), SINGULAR),
    "tensorinv": (lambda a: torch.linalg.tensorinv(a, ind=1), torch.eye(2), SINGULAR),
    "tensorsolve": (lambda a: torch.linalg.tensorsolve(a, torch.ones(2)), torch.eye(2), SINGULAR),
    "matrix_power": (lambda a: torch.linalg.matrix_power(a, -1), torch.eye(2), SINGULAR),
    "one_hot": (lambda index: F.one_hot(index, 3), GOOD, FAR),
    "one_hot, negative": (lambda index: F.one_hot(index, 3), GOOD, BELOW),
    "one_hot, no number of classes": (F.one_hot, GOOD, BELOW),
    "index": (lambda index: NUMBERS[index], GOOD, FAR),
    "index in a second dimension": (lambda index: NUMBERS[None][:, index], GOOD, BELOW),
    "quantile": (lambda q: NUMBERS.quantile(q), torch.tensor(0.5), torch.tensor(3.0)),
    "nanquantile": (lambda q: torch.nanquantile(NUMBERS, q=q), torch.tensor(0.5), torch.tensor(3.0)),
    "division": (lambda divisor: (divisor + 8) // divisor, GOOD, torch.tensor([0])),
    "_assert_async": (lambda x: torch._assert_async(x.sum() > 0), torch.ones(2), -torch.ones(2)),
    "_assert_async with words": (lambda x: torch._assert_async(x.sum() > 0, "below"), torch.ones(2), -torch.ones(2)),
}


def outcome(function, *arguments):
    """Its result, or its error as text."""
    try:
        return function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_is_refused(name):
    call, good, bad = REFUSED[name]

    def step(compile, x):
        used, unused = compile(call), compile(lambda value, x: (call(value), x * 2)[1])
        return [[outcome(used, value), outcome(unused, value, x)] for value in (good, bad, good)]

    check(step, constant(2))


@pytest.mark.parametrize("name", ["cholesky", "one_hot", "index"])
def test_a_value_that_is_refused_at_the_first_call(name):
    call, _, bad = REFUSED[name]
    check(lambda compile, x: outcome(compile(lambda value, x: (call(value), x * 2)[1]), bad, x), constant(2))


def test_a_method_of_tensors_that_is_called_on_a_number():
    def step(compile, x):
        return outcome(compile(lambda x: (torch.Tensor.__radd__(2, x), x * 2)[1]), x)

    check(step, constant(2))


def test_a_part_of_memory_that_there_is_not():
    check(lambda compile, x: outcome(compile(lambda x: (x.as_strided((2,), (1,), 9), x * 2)[1]), x), constant(3))


def test_an_element_that_a_list_names():
    check(lambda compile, x: outcome(compile(lambda x: (x[[0, 9]], x * 2)[1]), x), constant(3))


@pytest.mark.parametrize("name", ["cholesky", "one_hot", "index", "_assert_async"])
def test_between_backward_and_update_of_a_whole_step(name):
    call, good, bad = REFUSED[name]

    def step(compile, w):
        optimizer = torch.optim.SGD([w], 0.1)

        @compile
        def train(value):
            loss = (w * w).sum()
            loss.backward()
            call(value)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return [outcome(train, value) for value in (good, bad)], w

    check(step, leaf(3))


@pytest.mark.parametrize("name", ["cholesky", "one_hot", "division", "_assert_async"])
@pytest.mark.parametrize("compiler", [GRADC, COMPILERS["captured"]], ids=lambda compiler: compiler.name)
def test_in_a_backward(name, compiler):
    call, good, bad = REFUSED[name]

    @torch.library.custom_op("gradc_tests::double", mutates_args=())
    def double(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return x * 2

    def backward(ctx, grad):
        call(*ctx.saved_tensors)
        return grad * 2, None

    double.register_fake(lambda x, value: torch.empty_like(x))
    double.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]))

    def step(compile, w):
        f = compile(lambda value: double(w.sin(), value).sum())
        return [outcome(lambda value: f(value).backward(), value) for value in (good, bad)]

    check(step, leaf(3), compiler=compiler)


def test_beside_a_gradient_of_a_gradient():
    def step(compile, w):
        @compile
        def penalty(matrix):
            (grad,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
            torch.linalg.cholesky(matrix)
            (grad * grad).sum().backward()

        return [outcome(penalty, matrix) for matrix in (torch.eye(2), NEGATIVE)]

    check(step, leaf(3))


def test_an_op_of_others_that_returns_nothing_is_called():
    seen = []

    @torch.library.custom_op("gradc_tests::look", mutates_args=())
    def look(x: torch.Tensor) -> None:
        seen.append(float(x.sum()))

    look.register_fake(lambda x: None)

    def step(compile, x):
        seen.clear()
        f = compile(lambda x: (look(x), x * 2)[1])
        return [f(x), f(x + 1)], list(seen)

    check(step, constant(2))
