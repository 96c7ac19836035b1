"""Tokens are kept as hashes only."""

import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.net.auth.access import authorised, make_token, read_token_hash, token_hash


def test_a_token_is_written_as_its_hash_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.token"
    token = make_token(path)
    assert token not in path.read_text()
    assert read_token_hash(path) == token_hash(token)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 43
    assert authorised(f"Bearer {token}", read_token_hash(path))
    again = make_token(path)
    assert not authorised(f"Bearer {token}", read_token_hash(path))
    assert authorised(f"Bearer {again}", read_token_hash(path))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "é", "A" * 64])
def test_a_file_without_a_hash_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="token"):
        read_token_hash(path)


def test_files_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_token_hash(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot write"):
        make_token(tmp_path / "none" / "token")


@example("Bearer \udcff")  # a header's bytes that are no UTF-8
@given(st.none() | st.text() | st.text().map("Basic {}".format) | st.text().map("Bearer {}".format))
def test_no_other_header_gets_in(header: str | None) -> None:
    assert not authorised(header, token_hash("the token"))
