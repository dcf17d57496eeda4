"""``sum`` and ``+`` of what is no tensor, in compiled code: Python's own, be it older or newer than 3.12."""

import array

import pytest
import torch

import gradc
from gradc.bits import same_bits
from gradc.torch_private.dynamo_patches import sums


@pytest.fixture(params=[False, True], ids=["chain", "corrected"], autouse=True)
def corrects_rounding(request, monkeypatch):
    """Both ways, whichever this Python has: constants are added up by Python itself, so each gives its own bits."""
    monkeypatch.setattr(sums, "CORRECTS_ROUNDING", request.param or sums.CORRECTS_ROUNDING)
    gradc.reset()


WEIGHTS = (0.1, 0.2, 0.3, 1e16, -1e16)


@pytest.mark.parametrize(
    "total",
    [
        lambda x: sum(WEIGHTS) * x,
        lambda x: sum(weight for weight in WEIGHTS) * x,
        lambda x: sum(weight * 0.5 for weight in WEIGHTS) * x,
        lambda x: sum([*WEIGHTS, x, 0.1]),
        lambda x: sum((weight for weight in (0.1, 1, True, 2.5)), 0.3) * x,
        lambda x: sum(weight * x for weight in WEIGHTS),
        lambda x: sum([x, x], x),
        lambda x: sum([[1], [2]], [0])[2] * x,
        lambda x: sum(len(x.shape) for _ in range(3)) * x,
        lambda x: sum([]) + x,
        lambda x: sum([1, 2j]) * x,
        lambda x: sum(x.shape) * x,
    ],
)
def test_sums_have_pythons_bits(total):
    x = torch.linspace(-1, 1, 4)
    assert same_bits(gradc.compile(total)(x), total(x))


@pytest.mark.parametrize(
    "total",
    [
        lambda x: sum(x * i for i in range(3)),
        lambda x: sum([x, x * 2]),
        lambda x: sum((x * i for i in range(3)), torch.zeros(())),
        lambda x: sum({"a": x, "b": x * 2}.values()),
        lambda x: sum(map(torch.sin, [x, x])),
    ],
)
def test_sums_of_tensors_are_in_the_graph(total):
    x = torch.linspace(-1, 1, 4)
    gradc.counters.clear()
    assert same_bits(gradc.compile(total, fullgraph=True)(x), total(x))
    assert gradc.counters["stats"]["unique_graphs"] == 1 and not gradc.counters["uncompiled"]


def test_a_sum_of_floats_that_change():
    def total(x, rate):
        return x * sum([rate, 0.2, 0.3])

    x, compiled = torch.linspace(-1, 1, 4), gradc.compile(total)
    for rate in (0.1, 0.7, 1.3):
        assert same_bits(compiled(x, rate), total(x, rate))


def test_a_sum_of_strings_raises():
    def total(x):
        return x.sin(), sum((each for each in "ab"), "")

    for compiled in (total, gradc.compile(total)):
        with pytest.raises(TypeError, match="can't sum strings"):
            compiled(torch.ones(2))


@pytest.mark.parametrize("make", [lambda: bytearray(b"a"), lambda: array.array("i", [1])], ids=["bytearray", "array"])
def test_sequences_of_builtin_types_join(make):
    """Their sum was NotImplemented."""

    def joined(x):
        own = make()
        own += make()
        return x.sin(), make() + own

    assert gradc.compile(joined)(torch.ones(2))[1] == make() + make() + make()


def test_two_that_nobody_adds_raise():
    class Own:
        def __add__(self, other):
            return NotImplemented

    def total(x):
        return x.sin(), Own() + Own()

    for compiled in (total, gradc.compile(total)):
        with pytest.raises(TypeError, match="unsupported operand"):
            compiled(torch.ones(2))
