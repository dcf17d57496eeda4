"""What happens between two training steps, as text: people freeze, add, remove, save, resume and look.

write_changes: (rng, optimizer, number of changes) -> lines of the driver
"""

from __future__ import annotations

import random

from tests.fuzz_steps.optimizers import Optimizer, change_of_options

CHANGES: tuple[str, ...] = (
    "MODEL.train(not MODEL.training)",
    "MODEL.eval()",
    "MODEL.layers[0].requires_grad_(False)",
    "MODEL.layers[0].requires_grad_(True)",
    "MODEL.scale.requires_grad_(not MODEL.scale.requires_grad)",
    "MODEL.scale.grad = None",
    "for p in MODEL.parameters():\n    p.grad = None if p.grad is None else p.grad * 2",
    "MODEL.scale.data.mul_(0.5)",
    "with torch.no_grad():\n    MODEL.extra.add_(0.25)",
    "MODEL.load_state_dict({name: value * 0.5 for name, value in MODEL.state_dict().items()})",
    "MODEL.scale = nn.Parameter(torch.tensor(0.75))",
    # hooks
    "HANDLES.append(MODEL.layers[0].register_forward_hook(lambda module, args, out: out * 1.5))",
    "HANDLES.append(MODEL.register_forward_pre_hook(lambda module, args: EVENTS.append(len(args[0]))))",
    "HANDLES.append(MODEL.layers.register_full_backward_hook(lambda module, given, got: EVENTS.append(got[0].sum().item())))",
    "if MODEL.extra.requires_grad:\n    HANDLES.append(MODEL.extra.register_hook(lambda grad: grad * 0.5))",
    "if MODEL.scale.requires_grad:\n    HANDLES.append(MODEL.scale.register_hook(lambda grad: EVENTS.append(grad.item())))",
    "if MODEL.extra.requires_grad:\n    HANDLES.append(MODEL.extra.register_post_accumulate_grad_hook(halve_gradient))",
    "HANDLES.append(OPTIMIZER.register_step_pre_hook(lambda *_: EVENTS.append('before the update')))",
    "HANDLES.append(OPTIMIZER.register_step_post_hook(lambda *_: EVENTS.append(MODEL.extra.sum().item())))",
    "HANDLES.append(OPTIMIZER.register_step_pre_hook(shrink_scale))",
    "if HANDLES:\n    HANDLES.pop(0).remove()",
    "if HANDLES:\n    HANDLES.pop().remove()",
    # the optimizer
    "add_extra()",
    "add_extra()",
    "OPTIMIZER.zero_grad()",
    "OPTIMIZER.zero_grad(set_to_none=False)",
    "OPTIMIZER.state.clear()",
    "OPTIMIZER.state.pop(MODEL.scale, None)",
    "SAVED.append(copy.deepcopy(OPTIMIZER.state_dict()))",
    "if SAVED:\n    load(SAVED.pop())",
    "load(reread(OPTIMIZER.state_dict()))",
    "load(stepped_by_torch(OPTIMIZER.state_dict()))",
    "load(stepped_by_torch(OPTIMIZER.state_dict()))",
    # what the step reads
    "SETTINGS['gain'] = SETTINGS['gain'] * 0.75 + 0.5",
    "SETTINGS['clip'] = 0.25",
    "SETTINGS['number'] += 1",
    "torch.manual_seed(SETTINGS['number'] + 5)",
    # a step that fails
    "SETTINGS['fails'] = {place}",
    "SETTINGS['fails'] = {place}",
    "SETTINGS['fails'] = 0",
    "for state in list(OPTIMIZER.state.values())[-1:]:\n    state.update(dict.fromkeys(list(state)[:1]))",
    "HANDLES.append(OPTIMIZER.register_step_pre_hook(lambda *_: may_fail(2)))",
    "if MODEL.scale.requires_grad:\n    HANDLES.append(MODEL.scale.register_hook(lambda grad: may_fail(3)))",
)
HELPERS = """
def halve_gradient(p):
    p.grad.mul_(0.5)


def shrink_scale(optimizer, args, kwargs):
    MODEL.scale.data.mul_(0.9)


def add_extra():
    if not any(p is MODEL.extra for group in OPTIMIZER.param_groups for p in group["params"]):
        named = "param_names" in OPTIMIZER.param_groups[0]
        OPTIMIZER.add_param_group({"params": [("extra", MODEL.extra)] if named else [MODEL.extra], "lr": 0.2})


def reread(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def load(state, optimizer=OPTIMIZER):
    try:
        optimizer.load_state_dict(state)
    except Exception as error:
        EVENTS.append(f"{type(error).__name__}: {error}")


def stepped_by_torch(state):
    other = make()
    if [len(group["params"]) for group in other.param_groups] != [len(group["params"]) for group in state["param_groups"]]:
        return state
    load(state, other)
    try:
        other.step()
    except Exception as error:
        EVENTS.append(f"{type(error).__name__}: {error}")
    return other.state_dict()


def may_fail(place):
    if SETTINGS["fails"] == place:
        raise ValueError(f"at {place}")"""


def write_changes(rng: random.Random, optimizer: Optimizer, number: int) -> list[str]:
    lines = list[str]()
    for _ in range(number):
        text = change_of_options(rng, optimizer) if rng.random() < 0.2 else rng.choice(CHANGES)
        if optimizer.name == "LBFGS" and ("add_extra" in text or ("state" in text and "MODEL" not in text)):
            continue
        lines += text.replace("{place}", str(rng.randint(1, 4))).splitlines()
    return lines
