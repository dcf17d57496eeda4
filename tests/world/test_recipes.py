"""The pages of docs/recipes that are about libraries print what they say.

``python -m tests.world.test_recipes`` writes what they print into them.
"""

import pytest

from tests.test_how_it_works import BLOCK, OF_LIBRARIES, printed, rewrite

PRELUDE = "from tests.world.harness.torchvision_ops import declare_missing_ops\ndeclare_missing_ops()\n"


@pytest.mark.parametrize("page", OF_LIBRARIES, ids=lambda page: page.stem)
def test_the_recipe_prints_what_it_says(page, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = [text for _, text in BLOCK.findall(page.read_text())]
    assert said and all(said)
    assert printed(page.read_text(), PRELUDE) == said


if __name__ == "__main__":
    for each in OF_LIBRARIES:
        rewrite(each, PRELUDE)
