"""gradc.config: what is accepted, and where a patch holds."""

import threading

import pytest
import torch

from gradc import ConfigError, config
from gradc import journal as record
from tests import forked

GOOD = ["ambient", "same_as_forward", "off", {"device_type": "cpu", "dtype": torch.bfloat16}, [{"device_type": "cpu"}]]
BAD = [
    "inside",
    1,
    None,
    [],
    ["off"],
    {},
    {"dtype": torch.bfloat16},
    {"device_type": "nowhere"},
    {"device_type": "cpu", "dtype": torch.float64},
    {"device_type": "cpu", "speed": 1},
]


@pytest.mark.parametrize("value", GOOD, ids=str)
def test_valid_settings(value):
    with config.patch(backward_pass_autocast=value):
        assert config.backward_pass_autocast == value
    assert config.backward_pass_autocast == "ambient"


@pytest.mark.parametrize("value", BAD, ids=str)
def test_wrong_settings_raise_at_once(value):
    with pytest.raises(ConfigError, match="backward_pass_autocast"):
        config.backward_pass_autocast = value
    with pytest.raises(ConfigError, match="backward_pass_autocast"):
        config.patch(backward_pass_autocast=value)  # not entered: a decorator must fail where it stands
    assert config.backward_pass_autocast == "ambient"


def test_message_names_the_valid_values():
    with pytest.raises(ConfigError) as caught:
        config.patch(backward_pass_autocast="inside")
    assert str(caught.value) == (
        "backward_pass_autocast='inside' is not a setting. Use one of 'ambient', 'same_as_forward', 'off', a dict of "
        "torch.autocast arguments such as {'device_type': 'cpu', 'dtype': torch.bfloat16}, or a non-empty list of such "
        "dicts."
    )


def test_unknown_setting():
    for use in (lambda: config.patch(colour=1), lambda: setattr(config, "colour", 1)):
        with pytest.raises(ConfigError, match="no setting 'colour'"):
            use()
    with pytest.raises(AttributeError, match="no setting 'colour'"):
        _ = config.colour


def test_patches_nest_and_an_error_restores():
    with config.patch(backward_pass_autocast="off"):
        with pytest.raises(RuntimeError), config.patch(backward_pass_autocast="same_as_forward"):
            raise RuntimeError
        assert config.backward_pass_autocast == "off"
    assert config.backward_pass_autocast == "ambient"


def test_equal_layers_are_removed_by_identity():
    outer, inner = config.patch(backward_pass_autocast="off"), config.patch(backward_pass_autocast="off")
    outer.__enter__()
    with config.patch(backward_pass_autocast="same_as_forward"):
        inner.__enter__()
        outer.__exit__(None, None, None)
        assert config.backward_pass_autocast == "off"
        inner.__exit__(None, None, None)
        assert config.backward_pass_autocast == "same_as_forward"
    assert config.backward_pass_autocast == "ambient"


def test_decorator_holds_inside_a_recursive_call():
    @config.patch(backward_pass_autocast="off")
    def recurse(depth):
        return [config.backward_pass_autocast, *(recurse(depth - 1) if depth else []), config.backward_pass_autocast]

    assert set(recurse(2)) == {"off"}
    assert config.backward_pass_autocast == "ambient"


def test_patch_concerns_this_thread_only():
    seen = []
    with config.patch(backward_pass_autocast="off"):
        thread = threading.Thread(target=lambda: seen.append(config.backward_pass_autocast))
        thread.start()
        thread.join()
    assert seen == ["ambient"]


def run_python(source, **environment):
    import os

    return forked.python("-c", source, environment={**os.environ, **environment})


def test_wrong_log_name_is_a_clear_error():
    done = run_python("import gradc", GRADC_LOGS="graphs,nonsense")
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "ConfigError: GRADC_LOGS: unknown artifact 'nonsense'. The artifacts are: compiled_autograd, "
        "compiled_autograd_verbose, recompiles, graphs, fallbacks, perf."
    )


@pytest.mark.parametrize(
    "names, heard", [("+fallbacks", "fallbacks"), ("all", "fallbacks graphs"), ("+all,perf", "fallbacks graphs")]
)
def test_log_names_as_torch_writes_them(names, heard):
    speak = "from gradc.journal import log; log('fallbacks', 'spoken'); log('graphs', 'spoken')"
    lines = run_python(speak, GRADC_LOGS=names).stderr.splitlines()
    assert lines == [f"DEBUG:gradc.__{artifact}:spoken" for artifact in heard.split()]


@pytest.mark.parametrize("variable, value", [("GRADC_COMPILED_AUTOGRAD", "maybe"), ("GRADC_VERIFY", "garbage")])
def test_nonsense_in_a_variable_is_a_clear_error(variable, value):
    done = run_python("import gradc", **{variable: value})
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"ConfigError: {variable}='{value}' is not a setting. Use 1 or 0.")


def test_a_number_of_calls_by_variable():
    assert run_python("import gradc; print(gradc.config.verify)", GRADC_VERIFY_CALLS="3").stdout == "3\n"
    done = run_python("import gradc", GRADC_VERIFY_CALLS="some")
    assert "GRADC_VERIFY_CALLS='some' is not a setting. Use a number of calls" in done.stderr


@pytest.mark.parametrize("value, expected", [("1", True), ("0", False), ("", False)])
def test_compiled_autograd_by_variable(value, expected):
    assert (
        run_python("import gradc; print(gradc.config.compiled_autograd)", GRADC_COMPILED_AUTOGRAD=value).stdout
        == f"{expected}\n"
    )


def test_logs_by_variable_and_through_torch():
    speak = "from gradc.journal import log; log('fallbacks', 'spoken'); log('graphs', 'silent')"
    by_variable = run_python(speak, GRADC_LOGS="fallbacks")
    assert by_variable.stderr == "DEBUG:gradc.__fallbacks:spoken\n"
    used = "import torch, gradc; gradc.counters"
    through_torch = run_python(f"{used}; torch._logging.set_logs(modules={{'fallbacks': True}}); {speak}")
    assert "[__fallbacks] spoken" in through_torch.stderr and "silent" not in through_torch.stderr


def test_fallbacks_are_counted():
    before = record.counters["fallbacks"]["a test"]
    record.fallback("a test", "of counting")
    assert record.counters["fallbacks"].pop("a test") == before + 1
