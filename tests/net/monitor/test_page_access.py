"""Who may read the live page: the token of a request's Authorization header."""

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offbeat.net.monitor.http import token_of

BASIC = base64.b64encode(b"anybody:@dashboard:secret").decode()


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, ""),
        ("", ""),
        ("Bearer @dashboard:secret", "@dashboard:secret"),
        ("bearer  secret ", "secret"),
        (f"Basic {BASIC}", "@dashboard:secret"),
        (f"basic {BASIC[:-2]}!", ""),
        ("Basic é", ""),
        ("Digest secret", ""),
    ],
)
def test_the_token_is_a_bearer_or_the_password_of_any_user(header: str | None, token: str) -> None:
    assert token_of(header) == token


@example("Bearer \udcff")  # a header's bytes that are no UTF-8
@given(st.none() | st.text() | st.text().map("Basic {}".format) | st.text().map("Bearer {}".format))
def test_any_header_is_read(header: str | None) -> None:
    assert isinstance(token_of(header), str)
