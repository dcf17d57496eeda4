"""What a run is recorded as, call by call, to find where two runs part."""

from __future__ import annotations

import torch

from gradc.parity.recording import Recorder


def test_tensors_without_memory() -> None:
    """There is no autocast on "meta", and to ask whether it is on raises."""
    with Recorder() as recorder:
        torch.ones(3, device="meta") * 2
    assert [call.op for call in recorder.calls] == ["aten.ones", "aten.mul"]
    assert not any(call.has_autocast for call in recorder.calls)


def test_memory_that_nobody_has_written_has_no_numbers() -> None:
    """Else a mask of dropout, which is drawn into such memory, is taken for the first thing that differs."""
    with Recorder() as recorder:
        mask = torch.empty(4).bernoulli_(0.5)
        mask.view(2, 2) * 2
        torch.add(mask, 1, out=torch.empty(4)).neg()
    digests = {call.op: [bool(each.digest) for each in (*call.operands, *call.results)] for call in recorder.calls}
    assert digests["aten.empty"] == [False] and digests["aten.bernoulli"] == [False, True]
    assert digests["aten.mul"] == [True, True] and digests["aten.neg"] == [True, True]
