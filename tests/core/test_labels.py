"""One rule for what people call runs."""

from typing import Any

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.labels import check_label


@pytest.mark.parametrize(
    "label", ["fedavg", "FedAvg + M", "ü" * 127, "a" * 255, "module:function", "x.y", "a\u00a0b"]
)
def test_what_can_name_a_directory_is_a_label(label: str) -> None:
    assert check_label(label, "--label") == label


@pytest.mark.parametrize(
    ("label", "says"),
    [
        (3, "give a text"),
        ("", "give what reports shall call the run"),
        (" ", "give what reports shall call the run"),
        ("new\nline", "leave out characters that cannot be printed"),
        ("\x1b[2J", "leave out characters that cannot be printed"),
        ("a/b", "it names a directory: leave out /, \\ and a leading dot"),
        ("a\\b", "it names a directory: leave out /, \\ and a leading dot"),
        (".a", "it names a directory: leave out /, \\ and a leading dot"),
        ("a" * 300, "it names a directory, and has 300 bytes: at most 255 are allowed"),
        ("ü" * 128, "it names a directory, and has 256 bytes: at most 255 are allowed"),
    ],
)
def test_what_cannot_is_refused_in_one_line(label: Any, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_label(label, "--label")
    shown = repr(label) if len(repr(label)) <= 60 else repr(label)[:57] + "..."
    assert str(refused.value) == f"--label {shown} is not allowed: {says}"
