"""The cures of docs/reasons.md, as gradc.explain gives them."""

import pytest

from gradc.reporting.cures import cure_of


@pytest.mark.parametrize(
    ("name", "detail", "cure"),
    [
        ("gradc: TorchScript", "", "Use the module that it was made from."),
        ("kernel of an op", "", ""),  # Nothing.
        ("a name that nobody gives", "", ""),
        ("gradient that leads nowhere", "", "Take the first view of `x.detach()`, or with gradients on."),  # The same.
        ("left out: too many objects", "", "Compile a smaller function for the check."),  # the second name of its row
        ("backward that cannot be traced", "nodes that depend on sizes: SumBackward0", "`dynamic=False`."),
        ("backward that cannot be traced", "some error of torch's", ""),
        ("gradc: checkpoint", "", ""),
        (
            "compile budget",
            "",
            '`options={"compile_seconds": 60}`, `None` for no limit, `GRADC_COMPILE_SECONDS` for a process; or fewer graph '
            "breaks. See docs/notes/what-pays.md.",
        ),
    ],
)
def test_a_name_and_its_cure(name, detail, cure):
    assert cure_of(name, detail) == cure


def test_another_type_of_error_has_the_same_row():
    assert cure_of("tracing raised ValueError") == cure_of("tracing raised RuntimeError") != ""
