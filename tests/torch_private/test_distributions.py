"""``torch.distributions`` in one graph: what they check of values is asked in its place, and raises what eager raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributions as D
from torch import nn

import gradc
from tests.oracle import check, constant, leaf

Made = Callable[[torch.Tensor], D.Distribution]
NAN, BAD = float("nan"), -1.0


@pytest.fixture(autouse=True)
def validating() -> Iterator[None]:
    """Other compilers turn it off for the whole process."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


def attempts(run: Callable[..., Any], *calls: tuple[Any, ...]) -> list[Any]:
    """The result of each call, or its error."""
    seen = []
    for call in calls:
        try:
            seen.append(run(*call))
        except ValueError as error:
            seen.append((type(error).__name__, str(error)))
    return seen


def num_graphs() -> int:
    assert not gradc.counters["uncompiled"], gradc.counters["uncompiled"]
    assert not gradc.counters["fallbacks"], gradc.counters["fallbacks"]
    return int(gradc.counters["stats"]["unique_graphs"])


DISTRIBUTIONS: dict[str, Made] = {
    "normal": lambda x: D.Normal(x.sin(), x),
    "normal of a number": lambda x: D.Normal(0.0, x.exp().log()),
    "laplace": lambda x: D.Laplace(x * 2, x * 3),
    "uniform": lambda x: D.Uniform(-x.abs(), x * 2),
    "gamma": lambda x: D.Gamma(x + 0.0, x * 2),
    "beta": lambda x: D.Beta(x * 2, x),
    "exponential": lambda x: D.Exponential(x * 1.5),
    "bernoulli": lambda x: D.Bernoulli(logits=x.log()),
    "categorical": lambda x: D.Categorical(logits=x.log()),
    "categorical by probabilities": lambda x: D.Categorical(probs=x * 2),
    "independent": lambda x: D.Independent(D.Normal(x.sin(), x * 2), 1),
    "student": lambda x: D.StudentT(x * 3, x.sin(), x),
    "half normal": lambda x: D.HalfNormal(x * 2),
    "log normal": lambda x: D.LogNormal(x.sin(), x * 2),
    "tanh of a normal": lambda x: D.TransformedDistribution(D.Normal(x.sin(), x * 2), D.transforms.TanhTransform()),
    "poisson": lambda x: D.Poisson(x * 2),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_values_that_turn_invalid(name: str) -> None:
    """The first calls are valid; then an argument is not, and after that a sample."""
    make = DISTRIBUTIONS[name]

    def log_prob(x: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return make(x).log_prob(sample).sin()

    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(log_prob)
        good, bad, nan = x.detach().abs() + 0.5, -x.detach().abs() - 0.5, x.detach() * NAN
        valid = torch.zeros_like(good) if good.ndim else good
        valid = valid + 0.25 if name in ("beta", "gamma", "exponential", "half normal", "log normal") else valid
        valid = valid[..., 0] if name.startswith("categorical") else valid
        inputs = [value.requires_grad_() for value in (good, good.clone(), bad, nan, good.clone())]
        seen = attempts(run, *((value, valid) for value in inputs), (inputs[0], valid * NAN), (inputs[0], valid))
        torch.autograd.backward([value.sum() for value in seen if isinstance(value, torch.Tensor)])
        return seen, [value.grad for value in inputs]

    report = check(step, leaf(3, 4), allow_fallback=True)
    assert "ValueError" in str(report.eager)


@pytest.mark.parametrize(
    "name", ["normal", "laplace", "gamma", "bernoulli", "student", "categorical", "half normal", "log normal"]
)
def test_one_graph(name: str) -> None:
    make = DISTRIBUTIONS[name]
    torch._dynamo.reset()
    gradc.counters.clear()
    run = gradc.compile(lambda x, sample: make(x.sin().abs() + 0.5).log_prob(sample).sin().sum())
    sample = torch.ones(3) if name == "categorical" else torch.ones(3, 4)
    for _ in range(3):
        run(torch.ones(3, 4, requires_grad=True), sample).backward()
    assert num_graphs() == 1


def test_a_policys_loss_is_one_graph() -> None:
    def step(compile: Any, net: nn.Module, x: torch.Tensor) -> Any:
        def loss_of(x: torch.Tensor) -> torch.Tensor:
            mean, log_std = net(x).chunk(2, 1)
            normal = D.Normal(mean, log_std.exp())
            action = normal.rsample()
            log_prob = normal.log_prob(action)
            log_prob -= torch.log(1 - action.tanh().square() + 1e-6)
            return log_prob.sum() + normal.entropy().mean()

        run, losses = compile(loss_of), []
        for _ in range(3):
            losses.append(run(x))
            losses[-1].backward()
        return losses

    assert check(step, lambda: nn.Linear(4, 2), constant(8, 4)).num_graphs == 1


def test_a_policy_of_actions_by_number_is_one_graph() -> None:
    """Probabilities are made of logits when they are first asked for."""

    def step(compile: Any, net: nn.Module, x: torch.Tensor) -> Any:
        def loss_of(x: torch.Tensor) -> Any:
            policy = D.Categorical(logits=net(x))
            action = policy.sample()
            return (policy.log_prob(action) * 2 - policy.entropy()).mean(), action

        run, seen = compile(loss_of), []
        for _ in range(3):
            seen.append(run(x))
            seen[-1][0].backward()
        return seen

    assert check(step, lambda: nn.Linear(4, 3), constant(8, 4)).num_graphs == 1


@pytest.mark.parametrize("size", [1, 3, 40])
def test_the_text_of_tensors_is_that_of_eager(size: int) -> None:
    """A tensor's text has the name of its node, breaks its lines by its length, and shows the one value of a parameter."""

    def step(compile: Any, x: torch.Tensor, scale: nn.Parameter) -> Any:
        of_node = compile(lambda x: D.Normal(x.sin().exp(), (x * 2).tanh()).mean * 2)
        of_leaf = compile(lambda x: D.Normal(x, x).mean * 2)
        of_parameter = compile(lambda x: D.Normal(x, scale).mean * 2)
        of_constant = compile(lambda x: D.Normal(x, scale.detach() - 5).mean * 2)
        by_two = compile(lambda x: D.Normal(x.reshape(1, -1), x.chunk(2)[0][0]).mean * 2)
        with torch.no_grad():
            scale.mul_(0).sub_(1)
        return [attempts(run, (x,)) for run in (of_node, of_leaf, of_parameter, of_constant, by_two)]

    check(step, lambda: (-torch.rand(size)).requires_grad_(), lambda: nn.Parameter(torch.ones(size)), allow_fallback=True)


def test_without_validation_nothing_is_raised() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x: D.Normal(x, x, validate_args=False).log_prob(x * 2))
        return attempts(run, (x.abs(),), (-x.abs(),))

    check(step, leaf(4))


def test_validation_that_is_turned_off_and_on() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run, seen = compile(lambda x: D.Normal(x * 2, x).log_prob(x * 2)), []
        for on in (True, False, True):
            D.Distribution.set_default_validate_args(on)
            seen += attempts(run, (x.abs(),), (-x.abs(),))
        return seen

    check(step, leaf(4))


def test_nothing_after_the_check_is_done() -> None:
    """Neither a number is drawn, nor a buffer written."""

    def step(compile: Any, x: torch.Tensor) -> Any:
        calls = torch.zeros(1)

        def draw(x: torch.Tensor) -> torch.Tensor:
            calls.add_(1)
            normal = D.Normal(x, x)
            calls.add_(10)
            return normal.rsample() * 2

        run = compile(draw)
        return attempts(run, (x.abs(),), (-x.abs(),), (x.abs(),)), calls, torch.rand(2)

    check(step, leaf(4))


def test_a_try_around_it() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        def density(x: torch.Tensor) -> torch.Tensor:
            try:
                return D.Normal(x, x).log_prob(x)
            except ValueError:
                return x.sin()

        def around(x: torch.Tensor) -> torch.Tensor:
            return density(x) * 2

        run = compile(around)
        return attempts(run, (x.abs(),), (-x.abs(),))

    check(step, leaf(4), allow_fallback=True)


def test_a_distribution_from_outside() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        normal, gamma = D.Normal(torch.zeros(4), torch.ones(4)), D.Gamma(torch.ones(4), torch.ones(4))
        run = compile(lambda x: normal.log_prob(x) + gamma.log_prob(x * 2))
        return attempts(run, (x.abs(),), (-x.abs(),), (x * NAN,))

    check(step, leaf(4), allow_fallback=True)


def test_a_distribution_of_ones_own() -> None:
    class Shifted(D.Normal):
        def __init__(self, loc: torch.Tensor, shift: float) -> None:
            self.shift, self.names = shift, ("a", "b")
            super().__init__(loc + shift, loc)

        def __repr__(self) -> str:
            return f"Shifted(by {self.shift}, {self.names}, {tuple(self.scale.shape)})"

    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x: Shifted(x, 0.5).log_prob(x))
        return attempts(run, (x.abs(),), (-x.abs(),))

    check(step, leaf(4), allow_fallback=True)


def test_sizes_that_change() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x: D.Normal(x.sin(), x).log_prob(x * 2))
        return attempts(run, *((sign * x[:size].abs(),) for size in (3, 4, 5, 6) for sign in (1, -1)))

    check(step, leaf(8, 2), allow_fallback=True)


def test_under_fullgraph_and_no_grad() -> None:
    def step(compile: Any, x: torch.Tensor) -> Any:
        run = compile(lambda x: D.Normal(x.sin(), x).log_prob(x * 2))
        with torch.no_grad():
            return attempts(run, (x.abs(),), (-x.abs(),))

    check(step, leaf(4))
    torch._dynamo.reset()
    run = gradc.compile(lambda x: D.Normal(x.sin(), x).log_prob(x * 2), fullgraph=True)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        run(-torch.ones(3, requires_grad=True))
