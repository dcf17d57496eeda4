"""Backend "eager", the Python interpreter: what its kernels find is what eager's find."""

from torch import nn

from tests import compilers
from tests.oracle import check, leaf


def test_an_lstm_keeps_the_workspace_that_its_backward_reads():
    """Out of grad mode its kernel makes none, and rounds otherwise; the call raised: 'NoneType' has no '_is_view'."""

    def step(compile, lstm, x):
        out, _ = compile(lstm)(x)
        out.sum().backward()
        return out

    check(step, lambda: nn.LSTM(6, 8, 2), leaf(5, 2, 6), compiler=compilers.find("gradc:eager"))
