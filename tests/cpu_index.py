"""Where ``make venv`` takes torch from: two lines, the arguments for pip and a sentence.

On Linux, the torch of the usual index brings gigabytes of CUDA; PyTorch's own index has builds for the CPU. Whoever has set an
index for pip, or has no way to PyTorch's, keeps his own.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import urllib.request

INDEX = "https://download.pytorch.org/whl/cpu"
SECONDS = 5.0


def main() -> None:
    print(*chosen(), sep="\n")


def chosen() -> tuple[str, str]:
    if platform.system() != "Linux":
        return "", "from pip's index: outside of Linux it has the CPU build"
    if index := own_index():
        return "", f"from pip's own index, {index}; if that brings CUDA, gigabytes"
    try:
        with urllib.request.urlopen(f"{INDEX}/torch/", timeout=SECONDS):
            return f"--extra-index-url {INDEX}", f"the CPU build (200 MB), from {INDEX}"
    except OSError as error:
        return "", f"from pip's index, gigabytes with CUDA: {INDEX} cannot be reached ({error})"


def own_index() -> str:
    """The index that whoever runs this has chosen for pip; "" for the usual one."""
    if index := os.environ.get("PIP_INDEX_URL"):
        return index
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
