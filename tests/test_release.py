"""What ``make release`` makes of wheels: an index for each torch, which pip takes from a folder; the index of ``make venv``."""

import subprocess
import sys
import zipfile

import pytest

from tests import cpu_index, release
from tests.release import write_indexes


def wheel(folder, torch):
    """The smallest there is."""
    version = f"0.1.0+torch{torch}"
    with zipfile.ZipFile(folder / f"gradc-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"gradc-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: gradc\nVersion: {version}\n")
        archive.writestr(f"gradc-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"gradc-{version}.dist-info/RECORD", "")


def test_pip_takes_the_wheel_of_the_torch_that_it_is_asked_for(tmp_path):
    for torch in ("2.13", "2.15"):
        wheel(tmp_path, torch)
    write_indexes(tmp_path)
    index = (tmp_path / "simple" / "torch2.13").as_uri()
    command = [sys.executable, "-m", "pip", "--isolated", "download", "-q", "--no-deps", "--index-url", index, "gradc"]
    done = subprocess.run([*command, "-d", str(tmp_path / "got")], capture_output=True, text=True)
    assert [path.name for path in (tmp_path / "got").glob("*")] == ["gradc-0.1.0+torch2.13-py3-none-any.whl"], done.stderr


@pytest.mark.parametrize(("own", "reachable"), [("https://mine", True), ("", True), ("", False)])
def test_torch_for_the_cpu_comes_from_where_it_is(own, reachable, monkeypatch):
    def urlopen(*_, **__):
        if not reachable:
            raise OSError("no network")
        return open(__file__)

    monkeypatch.setattr(cpu_index, "own_index", lambda: own)
    monkeypatch.setattr(cpu_index.urllib.request, "urlopen", urlopen)
    arguments, said = cpu_index.chosen()
    assert bool(arguments) is (reachable and not own)
    assert said.startswith("the CPU build (200 MB), from " if arguments else "from pip's ")


def test_a_wheel_that_does_not_train_is_not_published(tmp_path, monkeypatch):
    wheel(tmp_path, "2.13")
    (made,) = tmp_path.glob("*.whl")
    monkeypatch.setattr(release, "is_done", lambda *words, **_: "tests.try_wheel" not in words)
    with pytest.raises(release.FailedError, match="does not train as eager does"):
        release.try_wheel("python", made)
    assert not made.exists()


def test_a_python_or_a_torch_that_is_not_there_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["release", "--python", "python3.99", "--url", "https://none"])
    monkeypatch.setattr(release, "DIST", release.DIST / "none")
    assert release.main() == 1
    said = "release: no wheel for torch 2.13.0 and python3.99: there is no python3.99 on the PATH"
    assert capsys.readouterr().out.startswith(said)
