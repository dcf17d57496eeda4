"""The README's programs run and print what it says, its tables are those of the pages of docs, and its commands exist.

``python -m benchmarks.headline`` writes the tables and the picture anew, and so does what writes those pages.
``python -m tests.test_readme`` writes what is printed.
"""

import re
from pathlib import Path

from PIL import Image

from benchmarks import headline
from tests.test_how_it_works import BLOCK, printed, rewrite

ROOT = Path(__file__).parent.parent
README = headline.README.read_text()


def test_the_programs_print_what_is_said():
    """Each alone, in a process of its own."""
    blocks = list(BLOCK.finditer(README))
    assert len(blocks) == 2 and README.count("```python") == 2
    assert [printed(block[0]) for block in blocks] == [[block[2]] for block in blocks]


def test_the_tables_are_those_of_the_pages():
    assert all(part in README for part in headline.parts().values()), "python -m benchmarks.headline writes them anew"
    other = README
    for first, part in headline.parts().items():
        number = len(part.splitlines())
        figures = [f"{first}", "| of | other | figures |"] if first.startswith("|") else [first, *["others"] * (number - 1)]
        other = other.replace(part, "\n".join(figures))
    assert other != README and headline.with_parts(other) == README


def test_the_picture_is_of_the_same_figures():
    assert f"]({headline.PICTURE.relative_to(ROOT)})" in README
    assert Image.open(headline.PICTURE).info["Description"] == headline.description(), (
        "python -m benchmarks.headline draws it anew"
    )


def test_it_takes_no_more_than_two_screens():
    assert len(README.splitlines()) <= 100


def test_it_names_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"\bmake (\w+)", "".join(re.findall(r"^```sh.*?^```$|`[^`\n]+`", README, re.DOTALL | re.MULTILINE)))
    assert {"demo", "test"} <= set(commands)
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)


if __name__ == "__main__":
    rewrite(headline.README)
