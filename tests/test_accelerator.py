"""Where a GPU is asked for times and memory, with one that is made up; and by the host's clock, where there is none."""

from __future__ import annotations

import contextlib
import types

import pytest
import torch

import gradc
from gradc import accelerator, environment


class Gpu:
    """What is asked of it, in order: ``asked``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        note = lambda what: lambda *_: self.asked.append(what)
        event = types.SimpleNamespace(record=note("event"), synchronize=note("wait"), elapsed_time=lambda end: 0.25)
        patch.setattr(torch.cuda, "Event", lambda enable_timing: event)
        patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        patch.setattr(torch.cuda, "synchronize", note("wait"))
        patch.setattr(torch.cuda, "_sleep", note("hold"))
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", note("forget the peak"))
        patch.setattr(torch.cuda, "memory_allocated", lambda: 100)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda: 350)


def test_a_call_on_a_gpu_is_timed_by_events_while_it_is_held(monkeypatch):
    gpu = Gpu(monkeypatch)
    on_it = types.SimpleNamespace(device=torch.device("cuda", 0))
    result, seconds = accelerator.timed(lambda: gpu.asked.append("the call") or "result", [torch.ones(1), on_it])
    assert (result, seconds) == ("result", 0.00025)
    assert gpu.asked == ["wait", "hold", "event", "the call", "event", "wait"]


def test_a_call_on_the_host_is_timed_there(monkeypatch):
    gpu = Gpu(monkeypatch)
    result, seconds = accelerator.timed(lambda: "result", [torch.ones(1)])
    assert result == "result" and 0 < seconds < 1 and not gpu.asked


def test_memory_is_the_allocators_peak(monkeypatch):
    Gpu(monkeypatch)
    with accelerator.peak() as found:
        pass
    assert found.num_bytes == 250


def test_without_a_gpu_there_is_no_such_peak():
    with accelerator.peak() as found:
        pass
    assert found.num_bytes is None


def test_env_names_cards_driver_and_what_decides_how_they_round(monkeypatch, tmp_path):
    card = types.SimpleNamespace(name="A card", major=9, minor=0, total_memory=79 << 30)
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.3\n")
    monkeypatch.setattr(environment, "_DRIVER", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    facts = dict(line.split("  ", 1) for line in environment.describe().splitlines())
    gpu = "A card (sm_90, 79 GiB)"
    assert facts["gpu"].strip() == f"{gpu}, {gpu}; driver 570.86.15, CUDA 13.0, cuDNN 91300"
    assert facts["gpu numbers"].strip() == (
        "products in float32, convolutions in tf32, sums of bf16 products reduced, of fp16 reduced, "
        "cuDNN does not try out algorithms, deterministic algorithms not asked for"
    )


def test_a_report_has_a_note_of_both_peaks(monkeypatch):
    Gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: None)
    from gradc.parity.against import GRADC, compiler_of, redirected
    from gradc.reporting.collect import collect

    with redirected(compiler_of(GRADC, None)) as redirection:
        found = collect(redirection, torch.nn.Linear(2, 2), (torch.ones(1, 2),), 1, is_checked=False)
    gradc.reset()
    assert any("by its allocator: 0.0 MiB compiled, 0.0 MiB in eager" in note for note in found.notes)
