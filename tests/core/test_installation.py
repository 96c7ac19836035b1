"""The commands that install Offbeat, before and after its first release."""

import pytest

from offbeat.core.installation import install_command, install_hint, papers_install_command


@pytest.mark.parametrize(
    ("extras", "checkout", "index"),
    [
        ((), "pip install -e .", 'pip install "offbeat"'),
        (("net", "secure"), 'pip install -e ".[net,secure]"', 'pip install "offbeat[net,secure]"'),
        (("papers",), "pip install -e . -e ./papers", "pip install offbeat-papers"),
    ],
)
def test_a_command_names_no_index_where_none_has_offbeat(
    extras: tuple[str, ...], checkout: str, index: str
) -> None:
    assert install_command(*extras, on_index=False) == checkout
    assert install_command(*extras, on_index=True) == index


def test_a_hint_says_where_the_command_works() -> None:
    assert install_hint("net", on_index=True) == 'pip install "offbeat[net]"'
    assert install_hint("net", on_index=False) == (
        'pip install -e ".[net]" in a checkout of Offbeat, or pip install "WHEEL[net]" '
        "with the file of its wheel"
    )
    assert "pip install WHEEL PAPERS_WHEEL" in install_hint("papers", on_index=False)


def test_an_extra_of_the_papers_has_a_command() -> None:
    assert papers_install_command("parquet", False) == 'pip install -e "./papers[parquet]"'
    assert papers_install_command("parquet", True) == 'pip install "offbeat-papers[parquet]"'
