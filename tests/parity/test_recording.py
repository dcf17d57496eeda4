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
