"""What the benchmarks of steps store makes the page of step times, and JAX's steps are those of torch's models."""

import importlib.util
import subprocess
import sys

import pytest

from benchmarks import never_slower, report, results
from benchmarks.models import SMALL
from benchmarks.parts import part_of, parts_of
from benchmarks.results import DOCS, BackwardResult, Entry, WholeResult
from gradc.bits import same_bits
from tests import forked

HAS_JAX = importlib.util.find_spec("jax") is not None


def entry(*more: WholeResult, ratio: float = 0.25) -> Entry[WholeResult]:
    eager = WholeResult("eager", 0.004, 1.0, is_eagers=True)
    ours = WholeResult("gradc: step", 0.001, ratio, first_call=0.5, is_eagers=True)
    return Entry("gradc bench step", "2.13.0", 1.0, [eager, ours, *more], "a CPU", "0.10")


ENTRIES = {
    "CNN": entry(
        WholeResult("torch.compile: model", 0.005, 1.25),
        WholeResult("torch.compile: step", 0.002, 0.5),
        WholeResult("gradc: step, auto", 0.0008, 0.2),
        WholeResult("JAX: step", 0.0004, 0.1),
        WholeResult("JAX: step, lax.scan", 0.0002, 0.05),
    ),
    "Linear+Tanh": entry(WholeResult("torch.compile: model", error="RuntimeError: a | b"), ratio=2.0),
}


def test_what_is_stored_is_there_again(tmp_path):
    store = tmp_path / "benchmarks" / "whole-steps-1.json"
    results.save(ENTRIES, store)
    assert results.load(store, WholeResult) == ENTRIES
    assert list(results.load(store, WholeResult)) == ["Linear+Tanh", "CNN"]  # as in models.py
    assert results.load(tmp_path / "none.json", WholeResult) == {}


def test_the_page_leads_with_whole_steps_and_the_best_of_each(tmp_path):
    results.save(ENTRIES, tmp_path / "benchmarks" / "whole-steps-1.json")
    backward = Entry("gradc bench", "2.13.0", 1.0, [BackwardResult("eager", 0.001, 1.0), BackwardResult("gradc", 0.0005, 0.5)])
    results.save({"CNN": backward}, tmp_path / "benchmarks" / "threads-2.json")
    report.write(tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.index("\n## Whole steps\n") < page.index("\n## Forward and backward\n")
    assert "| model | eager ms | gradc: model | gradc: model, optimizer | gradc: step | gradc: auto, best |" in page
    assert "| CNN | 4.000 |  |  | 4.00 | 5.00 | 2.00 | 20.00 |\n" in page
    assert "| Linear+Tanh | 4.000 |  |  | 0.50 |  | raises |  |\n" in page
    assert "| Linear+Tanh | torch.compile: model |  |  |  |  | RuntimeError: a \\| b |\n" in page
    assert "| CNN | gradc: step | 1.000 | 4.00 | eager's | 0.50 |  |\n" in page
    assert "- on 2 of 2 with `gradc: step`\n- on 0 of 1 with `torch.compile: model`, `torch.compile: step`," in page
    assert "Made by `gradc bench step` with torch 2.13.0 and JAX 0.10 on a CPU.\n" in page
    assert "### Forward and backward, 2 threads\n\nMade by `gradc bench` with torch 2.13.0.\n" in page
    assert (tmp_path / "whole-steps.png").exists() and (tmp_path / "benchmarks.png").exists()


def test_the_page_of_docs_is_that_of_the_stored_figures():
    assert (DOCS / "benchmarks.md").read_text() == report.page(DOCS), "python -m benchmarks.report writes it anew"


def test_the_machine_is_named():
    assert "cores" in results.machine()


@pytest.mark.skipif(not HAS_JAX, reason="JAX is not installed: pip install jax")
def test_the_first_losses_in_jax_are_eagers():
    """It ends with an error where they are not."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.jax_steps"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(SMALL) + 1 and all("5 losses" in line for line in lines), done.stdout


def test_without_jax_it_is_said_what_to_install():
    program = "import sys; sys.modules['jax'] = None; from gradc.cli import main; main(['bench', 'step', '--jax'])"
    done = forked.python("-c", program)
    assert done.returncode == 2
    assert done.stderr.endswith("--jax: JAX is not installed here. Install it with: pip install jax\n")


@pytest.mark.parametrize("name", [name for name in never_slower.ALL if name != "tensordicts"])
def test_a_script_trains(name: str) -> None:
    script = never_slower.made(name, "eager")
    before = [tensor.detach().clone() for tensor in script.tensors]
    script.step()
    assert any(not same_bits(a, b) for a, b in zip(before, script.tensors, strict=True))


def test_the_page_of_scripts_says_how_many_gain() -> None:
    cost = never_slower.Cost(total=2.0, eager=1.0, settled=0.5, worst=0.9, verdicts="compiled 20", is_bitwise=True)
    slow = never_slower.Cost(total=9.0, eager=1.0, settled=1.2, worst=6.9, verdicts="compiled 20, eager 90", is_bitwise=True)
    page = never_slower.page({"a_b": {"model": slow, "step": cost}, "c": {"model": slow, "step": slow}}, 300)
    assert "**1 of 2 take at most 0.9" in page and "3 of 4 settled runs are slower" in page and "6.9 s" in page
    assert "| a b | 1.20 (eager) | 0.50 | 1.0 | 9.0 | 2.0 |" in page


def test_a_look_counts_for_the_innermost_part() -> None:
    step, guard = "step (tests/world/harness/training.py:87)", "torch::dynamo::RootGuardManager::check (libtorch_python.so)"
    kernel = "gradc::run_steps (gradc/_C.so);at::native::mm (libtorch_cpu.so);memcpy (libc.so.6)"
    looks = f"{step} 3\n{step};{guard} 2\n{step};{kernel} 4\n"
    assert parts_of(looks) == {"Python": 3, "guards": 2, "kernels": 4}
    assert part_of([step, "gradc::run_steps (gradc/_C.so)", "c10::alloc_cpu (libc10.so)"]) == "dispatch"
