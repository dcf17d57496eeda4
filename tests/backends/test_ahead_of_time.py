"""Inductor's code for a Program, ahead of time: it leaves behind what the Program leaves, up to rounding, or is refused."""

import pytest
import torch

from gradc import executor, native
from gradc.backends import ahead_of_time
from gradc.backends.ahead_of_time import compile_program
from gradc.backends.side_effects import left_by
from gradc.bits import same_bits
from gradc.errors import UnsupportedError
from gradc.executor.core.candidates import input_of, with_constants
from gradc.ir.pickled import pickled, unpickled
from tests.ir.build import recorded

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))


def compiled(function, *inputs):
    """The Program of a function, and its code, as another process would make it."""
    program = unpickled(pickled(recorded(function, *inputs)))
    return program, compile_program(program, tuple(map(input_of, inputs)), 1)


def test_all_that_a_program_may_leave():
    """An output that is an input, one twice, views of inputs and of results, what is written, versions, draws."""
    constant = torch.arange(4.0)

    def function(x, y, z):
        made = (x.sin() * 2 + constant).cos()
        y.add_(1).mul_(made)
        return made, x, made, x.t(), made[1], z.bernoulli(0.5), y.sum(), x.t().t(), made.view(4, 4)

    given = torch.randn(4, 4), torch.randn(4, 4), torch.rand(64)
    program, spec = compiled(function, *given)
    firsts = (("made", 0), ("input", 0), ("again", 0))
    assert spec.outputs == (*firsts, *(("made", number) for number in range(1, 7)))
    assert spec.counted == ((1, 2),) and spec.written == (1,)
    assert spec.views == ((3, True, 0), (4, False, 0), (7, True, 0), (8, False, 0))

    candidate = native.extension.Candidate(with_constants(spec, program))
    ours, eagers = [v.clone() for v in given], [v.clone() for v in given]
    left, reference = left_by(candidate, ours, 3), left_by(executor.lower(program), eagers, 3)
    for name in ("outputs", "counted", "views", "layouts", "memories"):
        assert getattr(left, name) == getattr(reference, name)
    for own, other in zip(left.values, reference.values, strict=True):
        torch.testing.assert_close(own, other)
    assert same_bits(left.values[8], reference.values[8])  # the draws


def test_results_that_would_lie_otherwise_are_refused():
    """Functional code writes into an input at its end, and returns another tensor than that."""
    with pytest.raises(UnsupportedError, match="results that lie otherwise"):
        compiled(lambda x: x.add_(1).t(), torch.zeros(2, 3))


def test_results_that_are_far_off_are_refused(monkeypatch):
    other = recorded(lambda x: x + 2, torch.zeros(3))
    monkeypatch.setattr(ahead_of_time.interpret, "lower", lambda program, lower=ahead_of_time.interpret.lower: lower(other))
    with pytest.raises(UnsupportedError, match="results that are far from eager's"):
        compiled(lambda x: x + 1, torch.zeros(3))


@pytest.mark.parametrize("layout", [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((4, 3), (0, 1)), ((0, 3), (3, 1)), ((), ())], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool])
def test_inputs_made_up_have_their_layout(layout, dtype):
    wanted = ahead_of_time.Layout(dtype, *layout)
    made = ahead_of_time._made_up(wanted)
    assert input_of(made) == wanted
    (copy,) = ahead_of_time._copies([made])
    assert (
        input_of(copy) == wanted and copy.untyped_storage().data_ptr() != made.untyped_storage().data_ptr()
    ) or not made.numel()


@pytest.mark.parametrize(
    ("own", "other", "is_close"),
    [
        ([1.0, 2.0], [1.0, 2.0001], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([float("nan"), 1.0], [float("nan"), 1.0], True),
        ([float("nan"), 1.0], [0.0, 1.0], False),
        ([float("inf"), 1.0], [float("inf"), 1.0], True),
        ([float("inf"), 1.0], [float("-inf"), 1.0], False),
        ([float("inf"), 1.0], [float("nan"), 1.0], False),
    ],
)
def test_what_counts_as_close(own, other, is_close):
    assert ahead_of_time._is_close(torch.tensor(own), torch.tensor(other)) is is_close
