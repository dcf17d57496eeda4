"""Some of the architectures in every test run; `python -m tests.architectures` trains them all."""

import pytest

from tests.architectures.judge import judge
from tests.architectures.models import find
from tests.compilers import GRADC

pytest.importorskip("transformers")


@pytest.mark.parametrize("is_autocast", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("name", ["BERT", "Llama", "Gemma 3", "Bart"])
def test_three_steps_of_adamw_are_eagers(name, is_autocast, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    verdict = judge(find(name), GRADC, is_autocast)
    assert verdict.status == "bitwise", verdict.detail
    assert not verdict.fallbacks
