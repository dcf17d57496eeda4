"""The demo, shortened: gradc's training is eager's bit for bit, and torch.compile's is not."""

import re

import pytest

from gradc import ConfigError
from gradc.demo import main as demo


def test_table_and_plot(tmp_path, capsys):
    runs = demo.run(epochs=1, backends=("aot_eager", "gradc"), out=str(tmp_path / "new"))
    assert [run.is_compiled for run in runs] == [False, True, True], [run.nodes for run in runs]
    assert {run.name: run.bitwise for run in runs} == {"eager": True, "torch.compile aot_eager": False, "gradc": True}
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "largest param diff  bitwise eager" in out
    assert [line.split()[0] for line in out.splitlines() if "%" in line] == ["eager", "torch.compile", "gradc"]


def test_a_run_that_was_not_compiled_is_no_success(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "compiler", lambda backend: lambda model: model)
    (_, run) = demo.run(epochs=1, backends=("gradc",), out=str(tmp_path))
    assert run.bitwise and not run.is_compiled
    assert re.search("^gradc .*not compiled", capsys.readouterr().out, re.MULTILINE)


def test_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write there: .*\n  Name a folder"):
        demo.run(epochs=1, out=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot write there"):
        demo.run(epochs=1, out=str(tmp_path / "file" / "below"))
