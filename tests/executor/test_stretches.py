"""Stretches (fused_block.h): values that are addresses, chains that go over memory in parts. Random programs, eager's bits."""

import random

import pytest
import torch

from gradc import executor
from gradc.bits import same_bits
from tests.executor.agree import capture, check_agree, copies

aten = torch.ops.aten
SHAPES = [(), (1,), (7,), (8, 8), (8, 1), (1, 8), (64, 32), (3, 5, 4), (300, 301), (5000,), (40_000,)]
UNARY = [
    torch.neg,
    torch.abs,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.exp,
    lambda x: x * 0.7,
    lambda x: x + 1,
    lambda x: x.clone(),
]
BINARY = [torch.add, torch.sub, torch.mul, aten.tanh_backward, aten.sigmoid_backward, lambda a, b: torch.where(a < b, a, b)]
IN_PLACE = [
    lambda a, b: a.add_(b),
    lambda a, b: a.mul_(b),
    lambda a, b: a.sub_(b),
    lambda a, b: a.sigmoid_(),
    lambda a, b: a.neg_(),
    lambda a, b: a.fill_(0.3),
    lambda a, b: a.masked_fill_(b > 0, 2.0),
]


def _viewed(x: torch.Tensor, choice: random.Random) -> torch.Tensor:
    views = [lambda x: x.detach(), lambda x: x.unsqueeze(0).squeeze(0), lambda x: x.view(-1) if x.is_contiguous() else x.t()]
    if x.dim() == 2:
        views += [
            torch.t,
            lambda x: x[: max(len(x) // 2, 1)],
            lambda x: x[:, 1:] if x.shape[1] > 1 else x,
            lambda x: x.t()[::2].t(),
        ]
    if x.dim():
        views += [lambda x: x[0].expand(x.shape), lambda x: x[len(x) // 3 :]]
    return choice.choice(views)(x) if x.dim() < 3 else x.transpose(0, 2)


def _step(values: list[torch.Tensor], num_inputs: int, choice: random.Random) -> torch.Tensor:
    """One more value, made of those that are there; or one of them, changed in place."""
    x = choice.choice(values)
    alike = [value for value in values if value.shape == x.shape]
    match choice.choice(["unary", "binary", "binary", "binary", "in place", "view", "broadcast", "matrix", "sum", "rows"]):
        case "unary":
            return choice.choice(UNARY)(x)
        case "binary":
            return choice.choice(BINARY)(x, choice.choice(alike))
        case "in place":
            made = choice.choice(values[num_inputs:] or values)
            alike = [value for value in values if value.shape == made.shape and not _overlap(value, made)]
            writable = not any(size > 1 and stride == 0 for size, stride in zip(made.shape, made.stride(), strict=True))
            return choice.choice(IN_PLACE)(made, choice.choice(alike)) if alike and writable else made * 2
        case "view":
            return _viewed(x, choice)
        case "broadcast":
            return x * torch.full((), 0.5) + (x[:1] if x.dim() else x)
        case "matrix" if x.dim() == 2 and x.numel() < 5000:
            return x @ x.t()
        case "sum" if x.dim() == 2:
            return x.sum(0)
        case "rows" if x.dim():
            return x[torch.arange(len(x) - 1, -1, -1)]
        case _:
            return x + x


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _program(seed: int):
    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        choice = random.Random(seed)
        values = list(inputs)
        for _ in range(choice.randint(3, 40)):
            values.append(_step(values, len(inputs), choice))
        return choice.sample(values[len(inputs) :], 3) + [values[-1]]

    return run


def _inputs(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    shape = SHAPES[seed % len(SHAPES)]
    dtype = torch.float64 if seed % 5 == 4 else torch.float32
    return [
        torch.randn(shape, dtype=dtype),
        torch.randn(shape, dtype=dtype),
        torch.randn(SHAPES[seed // 11 % len(SHAPES)], dtype=dtype),
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("part", range(8))
def test_random_programs(part, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in range(60 * part, 60 * part + 60):
            check_agree(_program(seed), _inputs(seed))
    finally:
        torch.set_num_threads(before)


def test_versions_and_aliases_are_eagers():
    def function(x, y):
        a = x * y
        b = a.t()
        c = (b + 1).mul_(3).add_(b)
        a.add_(y)
        return a, b, c, c[0], (c * a).sum(0)

    inputs = [torch.randn(8, 8), torch.randn(8, 8)]
    run = executor.lower(capture(function, inputs))
    for _ in range(3):
        outputs, expected = run(list(inputs)), function(*inputs)
        assert [out._version for out in outputs] == [out._version for out in expected]
        assert all(same_bits(*pair) for pair in zip(outputs, expected, strict=True))
        outputs[0].zero_()
        assert outputs[1].eq(0).all()
        assert not outputs[2].eq(0).any()


def test_inputs_that_share_memory_in_some_runs_only():
    def function(x, y):
        z = x * 2
        x.add_(z)
        x.mul_(y)
        return y + x, z - y

    apart = [torch.randn(50), torch.randn(50)]
    run = executor.lower(capture(function, copies(apart)))
    for shift in (0, 0, 1, 7):
        memory = [torch.randn(60)]
        pairs = [(base[:50], base[shift : shift + 50]) for base in (memory[0], memory[0].clone())]
        if shift == 0:
            pairs = [(first, second.clone()) for first, second in pairs]
            pairs[1] = tuple(copies(pairs[0]))
            assert all(same_bits(*each) for each in zip(run(list(pairs[0])), function(*pairs[1]), strict=True))
        else:  # eager refuses what overlaps in part
            with pytest.raises(RuntimeError):
                function(*pairs[1])
            with pytest.raises(RuntimeError):
                run(list(pairs[0]))


def test_what_leaves_lives_on_when_the_next_run_writes():
    run = executor.lower(capture(lambda x: ((x * 2 + 1).neg(), (x * 3).abs().t()), [torch.randn(9, 9)]))
    inputs = [torch.randn(9, 9) for _ in range(5)]
    kept = [run([x]) for x in inputs]
    for x, (first, second) in zip(inputs, kept, strict=True):
        assert same_bits(first, (x * 2 + 1).neg())
        assert same_bits(second, (x * 3).abs().t())


def test_windows_that_overlap_are_not_met_in_parts():
    def function(x, w):
        read_after, written_after = x * 1, x * 1
        read_after[:15_000].mul_(w)
        first = read_after[3_000:18_000] + w
        second = written_after[:15_000] + w
        written_after[3_000:18_000].mul_(w)
        third = written_after[1_000:16_000] - first
        return first, second, third, read_after * 1, written_after * 1

    check_agree(function, [torch.randn(20_000), torch.randn(15_000)])


@pytest.mark.parametrize(
    "show",
    [
        lambda a: [a.t()],
        lambda a: [a.t().unsqueeze(0).detach()],
        lambda a: [a[2:, 1:]],
        lambda a: [a[2:, 1:].t(), a[0]],  # two views
        lambda a: [a.view(-1), a],  # and the value itself
        lambda a: a.split(4),
        lambda a: [a.detach().mul_(2).t()],  # written into
        lambda a: [a.t(), aten.cumsum(a.t(), 0)],  # read by a call with tensors
    ],
)
def test_a_view_that_leaves_while_its_value_does_not(show):
    def function(x, w):
        first, second = torch.mm(x, w), x.sum(0, keepdim=True) * 2
        return [*show(first), second.view(8), (first + 1).sum(0)]

    inputs = [torch.randn(8, 8), torch.randn(8, 8)]
    check_agree(function, inputs)
    run = executor.lower(capture(function, inputs))
    for _ in range(3):
        outputs, expected = run(list(inputs)), function(*inputs)
        for out, eager in zip(outputs, expected, strict=True):
            assert (out._version, out.untyped_storage().nbytes()) == (eager._version, eager.untyped_storage().nbytes())
            assert not out._is_view()
