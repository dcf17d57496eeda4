"""Random training steps over random small models, optimizers and schedules.

    generate: (seed, number) -> the text of a module, whose ``drive(compile, call)`` calls what it compiles

What is compiled is the whole step, or the model and the optimizer each for itself. The driver takes several steps, and changes
the model, the optimizer, hooks and settings between them.
"""

from __future__ import annotations

import random
import textwrap

from tests.fuzz_steps.changes import HELPERS, write_changes
from tests.fuzz_steps.models import Model, write_model
from tests.fuzz_steps.optimizers import Optimizer, write_optimizer

_HEAD = """
from __future__ import annotations

from tests.fuzz_steps.toolbox import *

EVENTS, HANDLES, SAVED, LEAVES = [], [], [], []
SETTINGS = {"gain": 1.5, "clip": 1.0, "number": 0, "fails": 0}
"""
_LOSSES = (
    "out.square().mean()",
    "out.square().mean()",
    "F.mse_loss(out, y)",
    "F.cross_entropy(out, y.argmax(1), label_smoothing=0.1)",
    "F.smooth_l1_loss(out, y, reduction='sum')",
    "(out.sin() * y).sum()",
    "-F.log_softmax(out, -1)[:, 0].mean()",
)
_PENALTIES = (
    "loss = loss + 1e-3 * sum(p.square().sum() for p in MODEL.parameters())",
    "loss = loss + 0.1 * torch.autograd.grad(loss, MODEL.scale, create_graph=True)[0].square()",
    "(slope,) = torch.autograd.grad(loss, MODEL.extra, create_graph=True)\nloss = loss + slope.square().sum()",
    "loss = loss * SETTINGS['gain']",
    "loss = loss + (torch.randn_like(out) * out).mean()",
    "if MODEL.training:\n    loss = loss * 0.5",
    "loss = loss / (1 + SETTINGS['number'])",
)
_LEAVES = (
    "x = x.clone().requires_grad_()",
    "x = x.detach().clone().requires_grad_()",
    "x = x.detach().requires_grad_()",
    "x = x.to(MODEL.scale.dtype).requires_grad_()",
    "x = x.detach().contiguous()\nx.requires_grad = True",
    "x = torch.rand_like(x, requires_grad=True)",
    "x = torch.rand(*x.shape, dtype=x.dtype).requires_grad_()",
    "noise = torch.rand_like(x).requires_grad_()\nx = x + noise",
    "x.requires_grad_()",
)
_USES_OF_LEAVES = (
    "(slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)\nloss = loss + slope.square().mean()",
    "(slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)\n"
    "(bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)\nloss = loss + bend.sin().mean()",
    "(slope,) = torch.autograd.grad(out.sum(), x, retain_graph=True)\nEVENTS.append(slope.sum().item())",
    "x.register_hook(lambda grad: grad * 2)",
    "x.register_hook(lambda grad: EVENTS.append(grad.sum().item()))",
    "LEAVES.append(x)",
    "LEAVES.append(x)",
)
_ZEROS = (
    "OPTIMIZER.zero_grad()",
    "OPTIMIZER.zero_grad()",
    "OPTIMIZER.zero_grad(set_to_none=False)",
    "MODEL.zero_grad()",
    "MODEL.zero_grad(set_to_none=False)",
    "for p in MODEL.parameters():\n    p.grad = None",
    "",
)
_BACKWARDS = (
    "loss.backward()",
    "loss.backward()",
    "loss.backward()",
    "loss.backward(retain_graph=True)\nloss.backward()",
    "torch.autograd.backward([loss])",
    "loss.backward(torch.tensor(SETTINGS['gain'], dtype=loss.dtype))",
    "chosen = [p for p in MODEL.parameters() if p.requires_grad]\n"
    "for p, grad in zip(chosen, torch.autograd.grad(loss, chosen, allow_unused=True)):\n    p.grad = grad",
)
_CLIPS = (
    "norm = nn.utils.clip_grad_norm_(MODEL.parameters(), SETTINGS['clip'])",
    "nn.utils.clip_grad_norm_(MODEL.parameters(), 0.5, norm_type=float('inf'))",
    "nn.utils.clip_grad_norm_(MODEL.parameters(), 0.1, foreach=True)",
    "nn.utils.clip_grad_value_(MODEL.parameters(), 0.05)",
    "for p in MODEL.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)",
    "for p in MODEL.parameters():\n    if p.grad is not None:\n        p.grad = p.grad.clamp(-0.1, 0.1)",
)
_LOGS = (
    "EVENTS.append(loss.item())",
    "print(f'loss {loss.item():.4f}')",
    "EVENTS.append(sum(float(p.grad.norm()) for p in MODEL.parameters() if p.grad is not None))",
    "SETTINGS['number'] += 1",
    "EVENTS.append(OPTIMIZER.param_groups[0]['lr'])",
    "EVENTS.append([group.get('capturable') for group in OPTIMIZER.param_groups])",
    "for group in OPTIMIZER.param_groups:\n    group['lr'] = group['lr'] * 0.9",
    "loss = loss * OPTIMIZER.param_groups[0]['lr']",
    "EVENTS.append(len(OPTIMIZER.state))",
    "EVENTS.append([name for name in OPTIMIZER.param_groups[-1] if name != 'params'])",
)
_EMAS = (
    "with torch.no_grad():\n    for kept, p in zip(EMA.parameters(), MODEL.parameters()):\n        kept.lerp_(p, 0.1)",
    "with torch.no_grad():\n    for kept, p in zip(EMA.parameters(), MODEL.parameters()):\n"
    "        kept.mul_(0.9).add_(p, alpha=0.1)",
    "AVERAGE.update_parameters(MODEL)",
)
_RETURNS = ("loss.detach()", "loss.detach()", "loss.item()", "loss", "None", "out.detach(), loss.detach()")
_EXTREMES = ("1e30", 'float("inf")', "0")
_SCOPES = ("torch.no_grad()", 'torch.autocast("cpu", torch.bfloat16)', "torch.enable_grad()", "torch.inference_mode()")


def generate(seed: int, number: int) -> str:
    """Program ``number`` of ``seed``; always the same."""
    rng = random.Random(f"{seed}/{number}")
    model, optimizer = write_model(rng), write_optimizer(rng)
    is_whole = not optimizer.is_native or rng.random() < 0.7
    is_scaled = optimizer.name != "LBFGS" and rng.random() < 0.2
    ema = rng.choice(_EMAS) if rng.random() < 0.2 else ""
    step = _step(rng, optimizer, is_whole, is_scaled, model.is_real, ema)
    made = [model.text, "", "", optimizer.text]
    made += ["SCALER = torch.amp.GradScaler('cpu', init_scale=4.0, growth_interval=2)"] * is_scaled
    made += ["EMA = copy.deepcopy(MODEL)"] * ("EMA" in ema) + ["AVERAGE = AveragedModel(MODEL)"] * ("AVERAGE" in ema)
    scopes = _SCOPES[:-1] if "torch.enable_grad()" in "".join(step) else _SCOPES  # see "Not eager's still": graphs that raise
    driver = _driver(rng, model, optimizer, is_whole, scopes)
    return "\n".join([_HEAD.strip(), "", *made, "", HELPERS, "", "", *step, "", "", *driver]) + "\n"


def _step(rng: random.Random, optimizer: Optimizer, is_whole: bool, is_scaled: bool, is_real: bool, ema: str) -> list[str]:
    """The training step. Each part may be missing."""
    lines = [rng.choice(_ZEROS), *["may_fail(1)"] * (is_whole and rng.random() < 0.3)]
    lines += _backward(rng, is_scaled, is_real)
    lines += ["may_fail(2)"] * (rng.random() < 0.4)
    has_clip = rng.random() < 0.35
    if is_scaled and rng.random() < 0.6:
        lines.append("SCALER.unscale_(OPTIMIZER)")
    lines += [rng.choice(_CLIPS)] * has_clip
    lines += [rng.choice(_LOGS)] * (rng.random() < 0.3)
    lines += _update(rng, optimizer, is_scaled)
    lines += ["may_fail(3)"] * (rng.random() < 0.3)
    lines += ["SCHEDULE.step()"] * optimizer.has_schedule + [ema]
    lines += [rng.choice(_LOGS)] * (rng.random() < 0.2) + ["OPTIMIZER.zero_grad()"] * (rng.random() < 0.15)
    head = "def step(x, y):" if is_whole else "def step(model, x, y):"
    lines.append(f"return {rng.choice(_RETURNS)}")
    return [head, *_indented([line.replace("$model", "MODEL" if is_whole else "model") for line in lines if line])]


def _backward(rng: random.Random, is_scaled: bool, is_real: bool) -> list[str]:
    """Loss and backward; in a loop over parts of the batch, perhaps, which may be made leaves."""
    has_leaves = is_real and rng.random() < 0.25
    loss = [*[rng.choice(_LEAVES)] * has_leaves, "out = $model(x)", f"loss = {rng.choice(_LOSSES)}"]
    loss += rng.sample(_USES_OF_LEAVES, rng.choice((0, 1, 1, 2))) * has_leaves
    loss += rng.sample(_PENALTIES, rng.choice((0, 0, 0, 1, 1, 2)))
    loss.append("SCALER.scale(loss).backward()" if is_scaled else rng.choice(_BACKWARDS))
    if rng.random() < 0.2:
        return ["for x, y in zip(x.chunk(2), y.chunk(2)):", *_indented(loss)]
    if rng.random() < 0.15:
        return [f"with {rng.choice(_SCOPES[1:3])}:", *_indented(loss)]
    return loss


def _update(rng: random.Random, optimizer: Optimizer, is_scaled: bool) -> list[str]:
    if is_scaled:
        return ["SCALER.step(OPTIMIZER)", "SCALER.update()"]
    if optimizer.name != "LBFGS" and rng.random() < 0.85:
        return [rng.choice(("OPTIMIZER.step()", "OPTIMIZER.step()", "if SETTINGS['number'] % 3 != 2:\n    OPTIMIZER.step()"))]
    closure = ["OPTIMIZER.zero_grad()", *["may_fail(4)"] * (rng.random() < 0.3), "again = $model(x).square().mean()"]
    closure += ["again.backward()", "return again"]
    return ["def closure():", *_indented(closure), "loss = OPTIMIZER.step(closure)"]


def _driver(rng: random.Random, model: Model, optimizer: Optimizer, is_whole: bool, scopes: tuple[str, ...]) -> list[str]:
    lines = ["run = compile(step)"] if is_whole else ["run = functools.partial(step, compile(MODEL))", "compile(OPTIMIZER)"]
    if not is_whole and rng.random() < 0.3:
        lines = ["run = functools.partial(compile(step), compile(MODEL))"]
    size = 4
    for number in range(rng.choice((3, 4, 4, 5, 6))):
        lines += write_changes(rng, optimizer, rng.choice((0, 0, 1, 1, 2))) if number else []
        size = rng.choice((4, 4, 4, 4, 6, 5))
        lines.append(f"x = {model.batch.format(n=size)}")
        lines.append(f"y = torch.randn({size}, 4{', dtype=torch.float64' if '.double()' in model.text else ''})")
        if model.is_real and rng.random() < 0.08:
            lines.append(f"x = x.detach() * {rng.choice(_EXTREMES)}")
        call = "call(run, x, y)"
        lines += [f"with {rng.choice(scopes)}:", f"    {call}"] if rng.random() < 0.06 else [call]
    return ["def drive(compile, call):", *_indented(lines)]


def _indented(lines: list[str], width: int = 4) -> list[str]:
    return textwrap.indent("\n".join(lines), " " * width).splitlines()
