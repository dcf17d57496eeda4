"""``gradc run`` behind a launcher: what each process prints is what it prints in eager, and the first one has the summary.

accelerate is looked for: `make world` installs it.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DDP = """
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4)))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(4, (4,)))
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {loss.item()!r}\\n", end="", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""
ACCELERATE = """
import argparse
import torch
from accelerate import Accelerator
from torch import nn

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    steps = parser.parse_args().steps
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader([(torch.randn(8), torch.randint(4, ())) for _ in range(4 * steps)], batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {loss.item()!r}\\n", end="", flush=True)

if __name__ == "__main__":
    main()
"""
LAUNCHERS = {
    "torchrun": (DDP, ("torch.distributed.run", "--nproc-per-node", "2"), 2),
    "accelerate": (ACCELERATE, ("accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"), 1),
}


def launched(launcher: tuple[str, ...], *words: str) -> tuple[list[str], str]:
    """The lines of all processes, sorted, and what they say on stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GRADC_COMPARE_WITH_EAGER": "0"}
    done = subprocess.run([sys.executable, "-m", *launcher, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\n")), done.stderr


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_script_prints_what_it_prints_in_eager(name, tmp_path):
    text, launcher, num_processes = LAUNCHERS[name]
    if name != "torchrun" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: make world runs it")
    script = tmp_path / "train.py"
    script.write_text(text)
    eager, _ = launched(launcher, str(script), "--steps", "70")
    compiled, said = launched(launcher, "-m", "gradc", "run", str(script), "--steps", "70")
    assert compiled == eager and sum(line.startswith("rank ") for line in eager) == num_processes
    assert said.count("gradc run: done in ") == 1 and "  compiled: Sequential, AdamW; compiling took " in said
    assert re.search(r"^  a step: .* in eager, .* compiled: ", said, re.MULTILINE) and "  nothing ran eagerly\n" in said
