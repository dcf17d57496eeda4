"""gradc.programs: what a function becomes, what the programs are called, and that the saved files have eager's gradients."""

import runpy

import pytest
import torch
from torch import nn

import gradc
from gradc.backends import lookup_backend
from gradc.bits import same_bits
from gradc.traces.collect import collecting


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3))


def captured(step, *args):
    """What is captured while ``step`` runs as it is, for what was compiled before to be called in it."""
    found = []
    torch.compiler.reset()
    with collecting(found.append):
        step(*args)
    return found


def names(programs):
    """Without the numbers of regions, which go on through the process."""
    first = min(int(program.name.split("_")[2]) for program in programs)
    return [program.name.replace(f"_{first}", "_N", 1) for program in programs]


def saved(program, folder, inputs=None):
    return runpy.run_path(str(program.save(folder / f"{program.name}.py", inputs)))


def test_a_forward_and_the_backward_of_its_segments():
    def two_heads(x, w):
        features = (x @ w).tanh()
        return features.sin(), features.cos()

    found = gradc.programs(two_heads)(torch.ones(4, 3), torch.ones(3, 2, requires_grad=True))
    assert names(found) == ["gradc_forward_N", *(f"gradc_backward_N_segment_{n}_state_0" for n in (2, 1, 0))]
    assert str(found[0]).startswith("def forward(args):") and "torch.ops.aten.tanh_backward.default" in str(found[-1])
    assert {str(program.compilation) for program in found} == {"0/0"}


def test_states_of_a_backward_are_counted():
    exp = gradc.compile(torch.exp)

    def step(x):
        y = exp(x)
        y.backward(torch.ones(3), retain_graph=True)
        with torch.autocast("cpu", torch.bfloat16):
            y.backward(torch.ones(3))

    found = captured(step, torch.ones(3, requires_grad=True))
    assert names(found) == ["gradc_forward_N", "gradc_backward_N_segment_0_state_0", "gradc_backward_N_segment_0_state_1"]


def test_no_two_programs_have_one_name():
    scaled = gradc.compile(lambda x, by: (x * by).sum(), dynamic=True)

    def step(x):
        for by in (0.5, 0.25):
            scaled(x, by).backward()

    found = [program.name for program in captured(step, torch.ones(3, requires_grad=True))]
    assert len(set(found)) == len(found) and any(name.endswith("_retrace_1") for name in found)


def test_programs_without_calls_are_left_out():
    def handed_on(x):
        y = x.sin()
        print(end="")
        return y

    assert [len(program.program.instructions) for program in gradc.programs(handed_on)(torch.ones(3))] == [1]


def test_derivatives_have_the_name_of_their_region():
    def penalty(x):
        (grad,) = torch.autograd.grad(outside(x).sum(), x, create_graph=True)
        grad.square().sum().backward()

    outside = gradc.compile(lambda x: x.sin() * x)
    found = captured(penalty, torch.ones(3, requires_grad=True))
    assert any(program.name.startswith("gradc_forward_derivative_of_") for program in found)
    assert any(program.name.startswith("gradc_backward_derivative_of_") for program in found)
    assert {str(program.compilation) for program in found} == {"0/0"}


@pytest.mark.parametrize("backend", ["replay", "eager"])
def test_saved_files_have_the_bits_of_gradc(tmp_path, backend):
    x = torch.randn(5, 6)
    found = gradc.programs(model(), backend=backend)(x)
    assert len(found) > 1
    for program in found:
        inputs = saved(program, tmp_path)["make_inputs"]()
        torch.manual_seed(1)
        expected = lookup_backend("replay")(program.program)([value.clone() for value in inputs])
        torch.manual_seed(1)
        assert same_bits(saved(program, tmp_path)["run"](inputs), expected)


def test_with_its_inputs_a_saved_step_gives_eagers_gradients(tmp_path):
    eager, x = model().eval(), torch.randn(5, 6)
    found = gradc.programs(eager, with_inputs=True)(x)
    expected = eager(x)
    expected.backward(torch.ones_like(expected))
    made = [output for program in found for output in run_saved(program, tmp_path)]
    for value in (expected.detach(), *(parameter.grad for parameter in eager.parameters())):
        assert any(output is not None and same_bits(output, value) for output in made)


def run_saved(program, folder):
    file = saved(program, folder)
    return file["run"](file["make_inputs"]())


def test_kernels_find_the_grad_mode_that_they_found(tmp_path):
    """An LSTM's makes no workspace without it, and rounds otherwise."""
    lstm, x = nn.LSTM(6, 8, 2), torch.randn(5, 2, 6)
    forward, backward = gradc.programs(lambda x: lstm(x)[0], with_inputs=True)(x)
    assert forward.is_grad_enabled and not backward.is_grad_enabled
    assert same_bits(run_saved(forward, tmp_path)[0], lstm(x)[0].detach())
    with pytest.raises(gradc.ConfigError, match="mkldnn_rnn_layer_backward.default: it reads a workspace"):
        gradc.programs(lambda x: lstm(x)[0])(x)[1].save(tmp_path / "backward.py")
    with torch.no_grad():
        (program,) = gradc.programs(torch.sin)(x)
    assert not program.is_grad_enabled


def test_inputs_are_those_of_the_first_call_before_anything_is_written():
    def step(x):
        return x.add_(1)

    (program,) = gradc.programs(step, with_inputs=True)(torch.zeros(2))
    assert same_bits(program.inputs, (torch.zeros(2),))


def test_given_inputs_take_the_place_of_those_kept(tmp_path):
    (program,) = gradc.programs(lambda x: x * 2, with_inputs=True)(torch.zeros(2))
    assert run_saved(program, tmp_path)[0].tolist() == [0, 0]
    file = saved(program, tmp_path, [torch.ones(2)])
    assert file["run"](file["make_inputs"]())[0].tolist() == [2, 2]


def test_pieces_of_a_captured_backward_pass():
    def step(x):
        with gradc.compiled_autograd.enable(gradc.compile(backend="eager")):
            x.sin().sum().backward()

    (found,) = captured(step, torch.ones(3, requires_grad=True))
    assert repr(found) == "<gradc_compiled_autograd_0, 3 calls>"


def test_a_backward_pass_that_the_native_replay_captures(tmp_path):
    def step(x, w):
        with gradc.compiled_autograd.enable():
            (x @ w).tanh().sum().backward()

    args = torch.ones(2, 3), torch.ones(3, 2, requires_grad=True)
    (found,) = gradc.programs(step, with_inputs=True)(*args)
    assert found.name == "gradc_compiled_autograd_0" and "aten.tanh_backward" in str(found)
    step(*args)
    assert any(same_bits(output, args[1].grad) for output in run_saved(found, tmp_path))


def test_nothing_is_left_behind():
    module, x = model(), torch.ones(5, 6, requires_grad=True)
    state = torch.get_rng_state()
    gradc.programs(module, with_inputs=True)(x)
    assert [value.grad for value in (x, *module.parameters())] == [None] * 7
    assert same_bits(torch.get_rng_state(), state)
    assert lookup_backend("eager") is lookup_backend("eager")  # nobody looks on


def test_unknown_backend():
    with pytest.raises(gradc.ConfigError, match="backend='magic' is not known"):
        gradc.programs(model(), backend="magic")
