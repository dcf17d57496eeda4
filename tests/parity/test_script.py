"""gradc check of a whole training script, as it is."""

import json
import sys
from pathlib import Path

import pytest

from gradc.cli import main
from gradc.parity.against import compiler_of, redirected
from gradc.parity.differences import Order
from gradc.parity.script import ScriptRuns

HELPER = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.fc2(self.norm(self.fc1(x)).relu())
"""

SCRIPT = """
import argparse
import torch
from net import Net
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
epochs = parser.parse_args().epochs
model = Net()
compiled = COMPILED
scale = nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1, momentum=0.9)
x, y = torch.randn(32, 8), torch.randint(4, (32,))
for epoch in range(epochs):
    for i in range(0, 32, 16):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(scale * compiled(x[i:i + 16]), y[i:i + 16])
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
if __name__ != "__main__":
    raise RuntimeError("not as a script")
"""

UNUSED_HEAD = """
import torch
from torch import nn

class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x), self.unused(x)

model = TwoHeads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 3))[0].sum().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "net.py").write_text(HELPER)

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("compiled", ["model", "torch.compile(model)", 'torch.compile(model, backend="inductor")'])
@pytest.mark.parametrize("against", ["gradc", "aot_eager"])
def test_a_script_that_is_eagers(script, compiled, against, capsys):
    path = script(SCRIPT.replace("COMPILED", compiled))
    assert main(["check", path, "--against", against, "--words=--epochs 3", "--steps", "4"]) == 0
    done = capsys.readouterr()
    assert "values compared in 4 steps (3 runs): all equal eager, bit for bit." in done.out
    assert done.err.count("epoch 0") == 1 and "epoch" not in done.out


def test_a_script_that_ends_before_all_steps_were_made(script, capsys):
    assert (
        main(["check", script(SCRIPT.replace("COMPILED", "model")), "--words=--epochs 1", "--json", "--against", "aot_eager"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["num_steps"] == 2 and report["num_compiled"] > 0


def test_an_unused_head_is_found_and_named(script, capsys):
    path = script(UNUSED_HEAD)
    assert main(["check", path, "--against", "aot_eager"]) == 1
    out = capsys.readouterr().out
    assert "\nAgainst aot_eager: " in out and ": in step 2, " in out and "wrong: grad of TwoHeads.unused.weight: zeros" in out
    line = UNUSED_HEAD.splitlines().index("        return self.used(x), self.unused(x)") + 1
    assert f"\n  at {path}:{line} in forward: return self.used(x)" in out
    assert "\n  What gets the gradient is read by forward's aten.addmm." in out
    assert main(["check", path]) == 0


DROPOUT_AND_AUTOCAST = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.dropout = nn.Linear(16, 64), nn.Linear(64, 8), nn.Dropout(0.5)
    def forward(self, x):
        hidden = self.dropout(torch.tanh(self.body(x)))
        with torch.autocast("cpu", enabled=False):
            return hidden.float() @ self.head.weight.float().T

def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(9):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(32, 16)).square().mean()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""


def test_inductors_draws_are_those_of_eager_so_that_the_fault_beside_dropout_is_named_at_once(script, capsys):
    path = script(DROPOUT_AND_AUTOCAST)
    assert main(["check", path, "--against", "inductor", "--steps", "2"]) == 1
    cause, line, *rest = capsys.readouterr().out.splitlines()
    assert cause.startswith("Likely cause: backward's mm ran in bfloat16: autocast was on where"), rest
    assert line.endswith(" in forward: return hidden.float() @ self.head.weight.float().T")
    assert "Inductor was told to draw the random numbers of eager (fallback_random); of itself it draws others." in rest
    assert len(rest) < 10 and "random numbers" not in rest[1], rest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "it makes no step of an optimizer, so there is nothing to compare."),
        ("import sys; sys.exit(3)", "it ends itself with 3, before anything could be compared."),
        ("raise KeyError('mine')", "train.py raises KeyError: 'mine' in eager"),
    ],
)
def test_mistakes(script, text, message, capsys):
    assert main(["check", script(text)]) == 2
    assert message in capsys.readouterr().err


def test_two_optimizers_and_models_of_one_class(script, capsys):
    path = script("""
import torch
from net import Net
first, second = Net(), Net()
optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.SGD(second.parameters(), lr=0.1)]
for _ in range(2):
    for optimizer in optimizers:
        optimizer.zero_grad()
        second(torch.nn.functional.pad(first(torch.randn(4, 8)), (0, 4))).square().sum().backward()
        optimizer.step()
""")
    assert main(["check", path, "--steps", "4", "--against", "aot_eager", "--json"]) in (0, 1)
    report = json.loads(capsys.readouterr().out)
    assert report["num_steps"] == 4 and report["num_compiled"] >= 2 and report["kind"] != "wrong"


def test_random_numbers_that_only_an_import_draws(script, tmp_path, capsys):
    """The first run alone imports what lies elsewhere: the two in eager seemed to differ."""
    library = tmp_path.parent / f"{tmp_path.name}_library"
    library.mkdir()
    (library / "drawing.py").write_text("import random\nrandom.random()\n")
    text = f"import sys\nsys.path.append({str(library)!r})\nimport drawing\n" + SCRIPT.replace("COMPILED", "model")
    try:
        assert main(["check", script(text), "--steps", "2", "--words=--epochs 3"]) == 0
    finally:
        sys.modules.pop("drawing", None)
        sys.path[:] = [folder for folder in sys.path if folder != str(library)]
    assert "not reproducible" not in capsys.readouterr().out


def test_hooks_are_heard_from_the_second_step_on(script):
    path = script(SCRIPT.replace("COMPILED", "model") + "\n")
    text = Path(path).read_text().replace("compiled =", "model.fc2.bias.register_hook(lambda grad: grad * 2)\ncompiled =")
    Path(path).write_text(text)
    with redirected(compiler_of("gradc")) as redirection:
        seen = ScriptRuns(redirection, Path(path), [], 3).eagerly()
    orders = [step["order of hooks"].value if "order of hooks" in step else None for step in seen]
    assert orders == [None, *[Order(("hook on Net.fc2.bias",))] * 2]
