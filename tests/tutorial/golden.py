"""Golden texts: what was logged, with paths, line numbers and key sizes masked, against a file in tests/tutorial/golden/.

    GRADC_WRITE_GOLDEN=1 python -m pytest tests/tutorial        writes the files anew: read the difference before you commit
"""

from __future__ import annotations

import os
import pathlib
import re

FOLDER = pathlib.Path(__file__).parent / "golden"


def masked(text: str) -> str:
    text = re.sub(r"key size \d+", "key size N", text)
    text = re.sub(r"sizes=\[[\d, ]+\]", "sizes=[N]", text)
    text = re.sub(r"resume_in_(\w+)_at_\d+", r"resume_in_\1_at_N", text)
    return re.sub(r"File: \S*/(\S+\.py):\d+", r"File: \1:N", text)


def check_golden(name: str, text: str) -> None:
    """Assert that ``text`` is what the file ``name`` holds."""
    file, found = FOLDER / f"{name}.txt", masked(text)
    if os.environ.get("GRADC_WRITE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text(), f"not as in {file}:\n{found}"
