"""Random Python around tensor code.

    generate: (seed, number) -> the text of a module, whose ``drive(compile, call)`` calls what it compiles

The function is made of two to five idioms; the driver calls it several times, with other arguments and under other states, and
changes what the function reads.
"""

from __future__ import annotations

import random
import textwrap

from tests.fuzz_python.fill import Writer
from tests.fuzz_python.idioms import IDIOMS

_HEAD = """
from __future__ import annotations

from tests.fuzz_python.toolbox import *

EVENTS = []
SETTINGS = {"gain": 1.5, "mode": "train"}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(()))
        self.scale, self.steps, self.rate = 1.0, 0, 0.25
        self.history, self.table, self.names, self.last = [], {}, set(), None
        self.words, self.ordered = {"first": 2.0, "second": 0.5}, collections.OrderedDict(first=1.5, second=0.5)
        self.other, self.shared, self.twin = [], {"second": 3.0}, nn.Linear(4, 4)
"""
_PLAIN_HEAD = """

class Holder:
    training = True

    def __init__(self):
        self.model = Model()
        self.weight, self.total, self.linear = self.model.weight, self.model.total, self.model.linear
        self.scale, self.steps, self.rate = 1.0, 0, 0.25
        self.history, self.table, self.names, self.last = [], {}, set(), None
        self.words, self.ordered = self.model.words, self.model.ordered
        self.other, self.shared, self.twin = [], {"second": 3.0}, self.model.twin
"""
_CHANGES = (
    "STATE.scale = STATE.scale * 0.5 + 1",
    "STATE.scale = 2.0",
    "STATE.steps += 1",
    "STATE.history.append(7)",
    "STATE.history.clear()",
    "STATE.rate = 0.5",
    "STATE.table = {}",
    "STATE.training = not STATE.training",
    "STATE.weight.requires_grad_(False)",
    "STATE.weight.requires_grad_(True)",
    'SETTINGS["gain"] = SETTINGS["gain"] + 0.25',
    'SETTINGS["more"] = len(SETTINGS)',
    "STATE.weight.grad = None",
    "STATE.linear.eval()",
    "STATE.weight.data.add_(0.25)",
    "random.seed(3)",
    "STATE.note = 1",
    "STATE.linear.load_state_dict({key: value.clone() * 0.5 for key, value in STATE.linear.state_dict().items()})",
    "STATE.linear.register_forward_hook(lambda module, args, out: out * 1.5)",
)
_CHANGES_OF_WHAT_IS_WHERE = (
    'STATE.table["late"] = 2.5',
    'STATE.table.pop("late", None)',
    "STATE.late = 3.0",
    'vars(STATE).pop("late", None)',
    'STATE.words["first"] = STATE.words.pop("first")',
    'STATE.words["second"] = STATE.words.pop("second")',
    'SETTINGS["gain"] = SETTINGS.pop("gain")',
    'STATE.ordered.move_to_end("first")',
    'STATE.ordered.move_to_end("second")',
    "STATE.other = STATE.history",
    "STATE.other = []",
    "STATE.shared = STATE.words",
    'STATE.shared = {"second": 3.0}',
    "STATE.twin = STATE.linear",
    "STATE.twin = nn.Linear(4, 4)",
    "STATE.twin.weight = STATE.linear.weight",
)
_CHANGES_OF_MODULES = (
    "STATE.eval()",
    "STATE.train()",
    "STATE.weight = nn.Parameter(torch.linspace(1.0, 2.0, 4))",
    "STATE.load_state_dict({key: value.clone() + 0.5 for key, value in STATE.state_dict().items()})",
    "STATE.requires_grad_(False)",
    "STATE.register_forward_pre_hook(lambda module, args: EVENTS.append(len(args)))",
)
_SCOPES = ("torch.no_grad()", 'torch.autocast("cpu", torch.bfloat16)', "torch.enable_grad()", "torch.inference_mode()")
_FORMS = ("function", "function", "module", "module", "method", "argument")
_RETURNS = (
    '{"kept": kept, "tensors": [$tensors]}',
    '{"kept": kept, "tensors": [$tensors]}',
    "(kept, $tensors)",
    "($tensors, kept)",
    "collections.OrderedDict(kept=kept, last=$last)",
    "$last",
    "[$last, x, kept]",
)


def generate(seed: int, number: int) -> str:
    """Program ``number`` of ``seed``; always the same."""
    rng = random.Random(f"{seed}/{number}")
    form = rng.choice(_FORMS)
    state = {"module": "self", "method": "self", "argument": "state"}.get(form, "STATE")
    writer = Writer(rng, IDIOMS, state)
    body = ["kept = {}", *writer.write_some(rng.randint(2, 5)), f"return {_returned(rng, writer)}"]
    return "\n".join([_HEAD.strip(), "", *_made(form, writer.top, body), "", "", *_driver(rng, form)]) + "\n"


def _returned(rng: random.Random, writer: Writer) -> str:
    made = writer.tensors[2:] or ["x * 2"]
    return rng.choice(_RETURNS).replace("$tensors", ", ".join(made[-3:])).replace("$last", made[-1])


def _made(form: str, top: list[str], body: list[str]) -> list[str]:
    """What is compiled, and the state."""
    arguments = "x, y, n, a=0.5, flag=False"
    if form == "module":
        head, name = [], "forward"
    elif form == "method":
        head, name = ["", *_PLAIN_HEAD.strip().splitlines()], "apply"
    else:
        plain = [f"def f({'state, ' * (form == 'argument')}{arguments}):", *_indented(body)]
        return ["", *top, "", *plain, "", "", "STATE = Model()"]
    method = ["", f"    def {name}(self, {arguments}):", *_indented(body, 8)]
    return [*head, *method, "", "", *top, "", f"STATE = {'Model' if form == 'module' else 'Holder'}()"]


def _driver(rng: random.Random, form: str) -> list[str]:
    target = {"module": "STATE", "method": "STATE.apply"}.get(form, "f")
    options = rng.choice(("", "", "", "", ", dynamic=True"))
    shape = rng.choice(("4", "3, 4", "3, 4"))
    lines = [f"run = compile({target}{options})", f"x, y = torch.randn({shape}, requires_grad=True), torch.randn(4)"]
    n, a, flag = rng.randint(0, 3), rng.choice((0.25, 0.5, 1.0)), rng.random() < 0.5
    changes = _CHANGES + (_CHANGES_OF_MODULES if form == "module" else ())
    for number in range(rng.choice((2, 3, 3, 4))):
        if number:
            lines += rng.sample(changes, rng.choice((0, 0, 1, 1, 2)))
            lines += rng.sample(_CHANGES_OF_WHAT_IS_WHERE, rng.choice((0, 1, 2)))
            n, a, flag = _other(rng, n, a, flag)
            if rng.random() < 0.3:
                lines.append(f"x = torch.randn({rng.choice((shape, shape, shape.replace('3', '5')))}, requires_grad=True)")
        lines += _call(rng, form, n, a, flag)
    return ["def drive(compile, call):", *_indented(lines)]


def _other(rng: random.Random, n: int, a: float, flag: bool) -> tuple[int, float, bool]:
    """Arguments of the next call: each may stay."""
    n = rng.choice((n, n + 1, rng.randint(0, 5)))
    return n, rng.choice((a, a, round(a + 0.37, 3), -a)), rng.choice((flag, flag, not flag))


def _call(rng: random.Random, form: str, n: int, a: float, flag: bool) -> list[str]:
    state = ["STATE"] * (form == "argument")
    given = rng.choice(([f"{n}, {a}, {flag}"], [f"{n}, {a}, {flag}"], [f"{n}"], [f"n={n}", f"flag={flag}", f"a={a}"]))
    x = rng.choice(("x", "x", "x", "x", "x * 1", "x.detach()"))
    call = f"call({', '.join(['run', *state, x, 'y', *given])})"
    return [f"with {rng.choice(_SCOPES)}:", f"    {call}"] if rng.random() < 0.12 else [call]


def _indented(lines: list[str], width: int = 4) -> list[str]:
    return textwrap.indent("\n".join(lines), " " * width).splitlines()
