"""Programs saved as Python files: each, on the same inputs, has the bits of the Program itself; what has no text is refused."""

import dataclasses
import math
import runpy
import subprocess
import sys

import pytest
import sympy
import torch

from gradc.ambient import AutocastState
from gradc.bits import same_bits
from gradc.errors import ConfigError
from gradc.executor.core import interpret
from gradc.ir import script_parts
from gradc.ir.floats import TERMS, bits_of
from gradc.ir.program import Program
from gradc.ir.script import save, script
from gradc.ir.values import Ref, Slot, Sym
from tests.ir.build import recorded, with_call, with_slot

BF16 = AutocastState((("cpu", torch.bfloat16),))


def saved(program, folder, inputs=None):
    """What the file defines, by name."""
    path = folder / "step.py"
    save(script(program, "title", inputs), path)
    return runpy.run_path(str(path))


def check(program: Program, folder, inputs=None):
    """The file, run on its own inputs, gives the bits that the Program gives on them."""
    file = saved(program, folder, inputs)
    inputs = file["make_inputs"]()
    torch.manual_seed(1)
    expected = interpret.lower(program)([value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])
    torch.manual_seed(1)
    assert same_bits(file["run"](inputs), expected) and inputs == []


def test_a_layer_with_random_draws(tmp_path):
    def layer(x, w):
        return torch.tanh(torch.ops.aten.native_dropout(x @ w, 0.5, True)[0])

    check(recorded(layer, torch.ones(4, 3), torch.ones(3, 2)), tmp_path)
    assert not (tmp_path / "step.pt").exists()


def test_inputs_keep_their_layout_and_kind(tmp_path):
    x = torch.randn(20).as_strided((3, 2), (1, 4), 5)
    program = recorded(lambda x, y, z: (x + y, z), x, torch.ones(2, dtype=torch.complex64).conj(), torch.arange(3))
    x, y, z = saved(program, tmp_path)["make_inputs"]()
    assert (x.shape, x.stride(), x.storage_offset(), x.dtype) == ((3, 2), (1, 4), 5, torch.float32)
    assert y.is_conj() and y.dtype is torch.complex64 and set(z.tolist()) <= {0, 1}
    check(program, tmp_path)


def test_given_inputs_come_back_as_they_lie_in_memory(tmp_path):
    whole = torch.randn(4, 3, requires_grad=True)
    program = recorded(lambda x, y: x.add_(y), torch.randn(4, 3), torch.randn(3))
    x, y = saved(program, tmp_path, [whole, whole[1]])["make_inputs"]()
    assert same_bits(x, whole.detach()) and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    check(program, tmp_path, [torch.randn(4, 3), torch.randn(3)])


def test_constants_small_large_and_not_finite(tmp_path):
    constants = torch.tensor([0.1, -0.0]), torch.arange(100.0), torch.tensor(math.nan), torch.tensor([True, False])
    program = recorded(lambda x: tuple(constant * x for constant in constants), torch.ones(1))
    check(program, tmp_path)
    assert len(torch.load(tmp_path / "step.pt")["constants"]) == 2
    assert "torch.tensor([0.10000000149011612, -0.0], dtype=torch.float32)" in (tmp_path / "step.py").read_text()


def test_scalars_that_are_not_finite_or_complex(tmp_path):
    def fill(x):
        return x.masked_fill(x > 0, math.inf), x.masked_fill(x > 0, -math.inf), x * complex(1, math.nan), x * 2j

    check(recorded(fill, torch.ones(3)), tmp_path)


def test_lists_of_results_and_autocast(tmp_path):
    program = recorded(lambda x: (*x.split(2), x.sort(dim=-1)[1], x @ x), torch.randn(4, 4))
    check(with_call(program, 0, autocast=BF16), tmp_path)
    assert not torch.is_autocast_enabled("cpu")


def test_symbolic_sizes_and_floats(tmp_path):
    n, bits = sympy.Symbol("n", positive=True, integer=True), sympy.Symbol("bits", integer=True)
    program = recorded(lambda x: (x.view(12) * 0.75,), torch.randn(4, 3))
    shape = dataclasses.replace(program.slots[program.inputs[0]].meta, shape=(Sym(n), 3))
    program = with_slot(program, program.inputs[0], meta=shape)
    program = with_call(program, 0, args=(Ref(program.inputs[0]), [Sym(3 * n)]))
    scale = Sym(sympy.Function("one_minus")(bits), float)
    program = with_call(program, 1, args=(program.instructions[1].args[0], scale))
    program = dataclasses.replace(
        program,
        slots=(*program.slots, Slot("bits")),
        inputs=(*program.inputs, len(program.slots)),
        symbols={n: ("size", 0, 0), bits: ("int", 1, 0)},
        outputs=(*program.outputs, Sym(n * 2)),
    )
    check(program, tmp_path)
    x = torch.randn(5, 3)
    made, number = saved(program, tmp_path, [x, bits_of(0.25)])["run"]([x, bits_of(0.25)])
    assert same_bits(made, x.view(15) * 0.75) and number == 10


def test_the_terms_of_floats_are_those_of_the_interpreter():
    values = [0.1, -0.0, 1e300, math.pi]
    for name, function in TERMS.items():
        assert same_bits([getattr(script_parts, name)(bits_of(v)) for v in values], [function(bits_of(v)) for v in values])


def test_as_a_program_it_runs_by_itself(tmp_path):
    path = tmp_path / "step.py"
    save(script(recorded(lambda x: x * 0 + 3, torch.ones(2)), "title"), path)
    done = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, text=True)
    assert done.stdout == "tensor([3., 3.])\n", done.stderr


def test_an_op_of_another_library_is_asked_for(tmp_path):
    library = torch.library.Library("gradc_tests_script", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    program = recorded(torch.ops.gradc_tests_script.twice, torch.ones(2))
    check(program, tmp_path)
    done = subprocess.run([sys.executable, "-I", str(tmp_path / "step.py")], capture_output=True, text=True)
    assert "ImportError: gradc_tests_script::twice: import what defines it" in done.stderr


def test_ops_of_gradc_are_imported():
    import gradc.backward.ops  # noqa: F401 - defines them

    program = recorded(torch.ops.gradc.masked_sum, torch.ones(2), torch.tensor([True, False]))
    assert "import gradc  # torch has no gradc::masked_sum" in script(program, "title").source


def refused(program, inputs=None):
    with pytest.raises(ConfigError) as error:
        script(program, "gradc_forward_0", inputs)
    return str(error.value)


def test_what_has_no_text_is_refused():
    program = recorded(lambda x: torch.ops.aten.bernoulli.default(x, generator=torch.Generator()), torch.ones(2))
    assert refused(with_call(program, 0, where="File: model.py:3 in f, code: f(x)")) == (
        "gradc_forward_0 cannot be saved as a file that runs by itself: aten.bernoulli.default: it takes a Generator, which "
        "cannot be written as text.\n  at File: model.py:3 in f, code: f(x)\n"
        "  str() of it shows all calls; leave that one out of the compiled function to save the rest."
    )
    program = with_call(program, 0, op=torch.ops.higher_order.cond)
    assert "cond: the call is not one of an op that a file could call" in refused(program)


def test_inputs_that_do_not_fit_are_refused():
    program = recorded(lambda x: x * 2, torch.ones(2))
    assert refused(program, []) == "gradc_forward_0 takes 1 inputs, and 0 were given."
    unknown = with_slot(program, program.inputs[0], meta=None)
    assert refused(unknown) == "gradc_forward_0: no random numbers can stand for x. Give its inputs."


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Choose a name that ends in \.py"):
        save(script(recorded(lambda x: x * 2, torch.ones(2)), "title"), tmp_path / "step.txt")


def test_settings_of_torch_that_change_results_are_set_again():
    program = recorded(lambda x: x * 2, torch.ones(2))
    assert "set_default_dtype" not in script(program, "title").source
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    source = script(program, "title").source
    assert "    torch.set_default_dtype(torch.float64)\n    torch.use_deterministic_algorithms(True)\n" in source
