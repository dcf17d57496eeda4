"""The pages of docs/recipes print what they say.

``python -m tests.world.test_recipes`` writes what they print into them.
"""

from pathlib import Path

import pytest

from tests.test_how_it_works import BLOCK, printed, rewrite

PAGES = sorted((Path(__file__).parents[2] / "docs" / "recipes").glob("*.md"))
PRELUDE = "from tests.world.harness.torchvision_ops import declare_missing_ops\ndeclare_missing_ops()\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_recipe_prints_what_it_says(page, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = [text for _, text in BLOCK.findall(page.read_text())]
    assert said and all(said)
    assert printed(page.read_text(), PRELUDE) == said


if __name__ == "__main__":
    for each in PAGES:
        rewrite(each, PRELUDE)
