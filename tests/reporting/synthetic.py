"""Reports of steps that were never run, as large as one likes: half of the ops are forward, half are their gradients."""

from gradc.parity.report import Report
from gradc.reporting.explain import Explanation, GraphBreak
from gradc.reporting.model import Alive, Curve, Graph, Line, Op, OpTime, Phase, Role, StepReport, Times, Value

_KINDS = (
    ("aten.mm.default", "attn.qkv", "bfloat16"),
    ("aten.gelu.default", "mlp", "bfloat16"),
    ("aten.add.Tensor", "", "float32"),
)
SHARP = "</script><b>&amp;"  # what must get onto the page as it is


def synthetic(num_ops: int, *, has_modules: bool = True) -> StepReport:
    half = num_ops // 2
    ops = (*(forward(i, half, has_modules) for i in range(half)), *(backward(i, half, has_modules) for i in range(half)))
    phases = tuple(Phase.FORWARD if i < half else Phase.BACKWARD for i in range(2 * half))
    rising = tuple(1000 * min(i + 1, 2 * half - i) for i in range(2 * half))
    series = {role: rising if role is Role.ACTIVATION else (4096,) * 2 * half for role in Role}
    alive = Alive(f"kept by {SHARP}", Role.ACTIVATION, rising[half - 1], half - 1, ops[half - 1].line)
    seconds, numbers = tuple((i + 1) * 1e-5 for i in range(2 * half)), tuple(range(2 * half))
    curve = Curve(seconds, series, numbers, phases, half, (alive,), numbers)
    break_ = GraphBreak("print was called", "File: model.py:3 in step, code: print(x)", "Leave it out.")
    return StepReport(
        title=f"step {SHARP}",
        versions="gradc of no version",
        num_steps=2,
        graphs=(
            graph("forward of region 0", Phase.FORWARD, None),
            graph("backward of segment 0 of region 0", Phase.BACKWARD, 0),
        ),
        ops=ops,
        memory=curve,
        eager_memory=curve,
        times=Times(2e-3, 1e-3, 0.5, 7, (OpTime("aten.mm.default", Phase.FORWARD, half, 1e-3, half, 9e-4),)),
        explanation=Explanation((), (break_,), (), ("region 0: autocast was off, is on",)),
        parity=Report(12, ()),
    )


def graph(name: str, phase: Phase, segment: int | None) -> Graph:
    program = f"def {phase.value}(args):\n    return [x]  # {SHARP}"
    return Graph(name, phase, "region 0", segment, num_runs=1, seconds=4e-4, program=program)


def module_of(i: int) -> str:
    """Ten ops of a block, then the next block's."""
    part = _KINDS[i % 3][1]
    return f"blocks.{i // 10}" + (f".{part}" if part else "")


def forward(i: int, half: int, has_modules: bool) -> Op:
    name, _, dtype = _KINDS[i % 3]
    made = Value(f"value_{i}", dtype, (16, i + 1), 32 * (i + 1))
    read = (Value(f"value_{i - 1}", _KINDS[(i - 1) % 3][2], (16, i), 32 * i),) if i else ()
    line = Line("/home/me/model.py", 10 + i % 7, "forward", f"x = x @ w{i}  # {SHARP}")
    module = module_of(i) if has_modules else ""
    return Op(name, 0, (made,), read, module, line, "", "", 1e-5 * (i % 5 + 1), 1e-5, 1, (2 * half - 1 - i,))


def backward(i: int, half: int, has_modules: bool) -> Op:
    theirs = half - 1 - i
    name, _, dtype = _KINDS[theirs % 3]
    made = Value(f"grad_{i}", dtype, (16, theirs + 1), 32 * (theirs + 1))
    line = Line("/home/me/model.py", 10 + theirs % 7, "forward", f"x = x @ w{theirs}  # {SHARP}")
    module = module_of(theirs) if has_modules else ""
    return Op(name, 1, (made,), (), module, line, "MmBackward0", "", 2e-5, None, 1, (theirs,))
