"""Install a wheel of gradc where there is no compiler and nothing of gradc, and train with it: for ``make wheel``.

    python -m tests.try_wheel WHEEL      says what it looked at; raises AssertionError at the first thing that is not so

The environment is an empty one that sees what is installed here, torch first of all, but for gradc: nothing is downloaded.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
INSTALLED = pathlib.Path(sysconfig.get_path("purelib"))
OF_GRADC = ("gradc", "__editable__", "_virtualenv", "distutils-precedence")
TRAIN = """
import torch, gradc
from gradc import native
from gradc.bits import same_bits

def train(compile):
    torch.manual_seed(0)
    model = compile(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())

assert all(map(same_bits, train(lambda model: model), train(gradc.compile))), "not the bits of eager"
assert gradc.counters["stats"]["unique_graphs"] and not gradc.counters["fallbacks"], gradc.counters
print(native.status().name, torch.__version__, gradc.__file__)
"""


class CleanEnvironment:
    """A virtual environment in ``folder`` with everything that is installed here but gradc, and no compiler on its PATH."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        seen = folder / "seen"
        seen.mkdir()
        for path in INSTALLED.iterdir():
            if not path.name.startswith(OF_GRADC):
                (seen / path.name).symlink_to(path)
        (self.site / "seen.pth").write_text(f"{seen}\n")

    @property
    def site(self) -> pathlib.Path:
        return next((self.folder / "lib").glob("python*/site-packages"))

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment prints."""
        variables = {"PATH": str(self.folder / "bin"), "HOME": str(self.folder), "LANG": os.environ.get("LANG", "C.UTF-8")}
        variables["GRADC_COMPARE_WITH_EAGER"] = "0"  # what is tried is that it compiles, on a machine that may be busy
        command = [str(self.folder / "bin" / program), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def install(self, wheel: pathlib.Path) -> None:
        self.run("python", "-m", "pip", "install", "--no-index", "--disable-pip-version-check", str(wheel.resolve()))


def main() -> None:
    wheel = pathlib.Path(sys.argv[1])
    check_contents(wheel)
    print(f"{wheel.name}: nothing but the package and one extension, without a path of this machine")
    with tempfile.TemporaryDirectory() as folder:
        check_installed(wheel, pathlib.Path(folder))
    print(f"{wheel.name}: installed without a compiler, next to the torch that was there; trains and runs the demo, natively")


def check_contents(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        kinds = (".py", ".pyi", ".typed", ".html", ".css", ".js", ".md")
        others = [name for name in names if not name.startswith("gradc/") or not name.endswith(kinds)]
        assert others == [f"gradc/_C{sysconfig.get_config_var('EXT_SUFFIX')}"], others
        extension = archive.read(others[0])
        assert archive.read("gradc/reporting/reasons.md") == (ROOT / "docs" / "reasons.md").read_bytes()
    found = [path for path in (str(ROOT), str(INSTALLED), tempfile.gettempdir() + "/") if path.encode() in extension]
    assert not found, f"the extension names {found}"


def check_installed(wheel: pathlib.Path, folder: pathlib.Path) -> None:
    environment = CleanEnvironment(folder)
    before = environment.run("python", "-c", "import torch; print(torch.__version__)").strip()
    environment.install(wheel)
    assert not (environment.site / "torch").exists(), "pip installed another torch"
    executor, torch, place = environment.run("python", "-c", TRAIN).split()
    assert (executor, torch) == ("native", before), (executor, torch)
    assert pathlib.Path(place).is_relative_to(environment.site), place
    table = environment.run("gradc", "demo", "--epochs", "1", "--backend", "gradc", "--backend", "inductor")
    assert re.search(r"^gradc .* yes ", table, re.MULTILINE) and "left out, since there is no C++ compiler" in table, table
    facts = environment.run("gradc", "env")
    assert f"native: the extension gradc._C, built for torch {before.split('+')[0]}" in facts, facts


if __name__ == "__main__":
    main()
