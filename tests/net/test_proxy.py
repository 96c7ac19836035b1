"""Which proxy is on the way to a server, and that its password is told to nobody else."""

import pytest

from offbeat.core.errors import UsageError
from offbeat.net.proxy import PASSWORD_VARIABLE, Proxy, proxy_for

ADDRESS = "fl.example.org:7117"


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("http://proxy:8080", {}, Proxy("proxy", 8080)),
        ("proxy:8080", {}, Proxy("proxy", 8080)),
        ("http://proxy/", {}, Proxy("proxy", 3128)),
        ("http://[::1]:8080", {}, Proxy("::1", 8080)),
        ("http://anna:p%40ss%3A@proxy", {}, Proxy("proxy", 3128, "anna", "p@ss:")),
        ("http://anna@proxy", {PASSWORD_VARIABLE: "s/e?c"}, Proxy("proxy", 3128, "anna", "s/e?c")),
        ("http://anna:own@proxy", {PASSWORD_VARIABLE: "other"}, Proxy("proxy", 3128, "anna", "own")),
        ("http://anna@proxy", {}, Proxy("proxy", 3128, "anna", "")),
    ],
)
def test_a_proxy_is_read_from_its_url(url: str, environ: dict[str, str], expected: Proxy):
    assert Proxy.parse(url, environ) == expected
    assert Proxy.parse(expected.url, {}) == expected


@pytest.mark.parametrize(
    "url",
    [
        "https://anna:secret@proxy", "socks5://anna:secret@proxy", "http://anna:secret@proxy:99999",
        "http://anna:secret@", "http://anna:secret@proxy/path", "http://:secret@", "http://anna:secret@[::1",
        "http://anna:secret%0A@proxy", "http://an%3Ana:secret@proxy", "http://anna:secret@proxy?query",
    ],
)  # fmt: skip
def test_what_is_no_proxy_is_refused_without_its_password(url: str):
    with pytest.raises(UsageError, match=r"^access\.proxy") as caught:
        proxy_for(ADDRESS, url, {})
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown():
    shown = Proxy("proxy", 3128, "anna", "secret")
    assert "secret" not in repr(shown) + str(shown) + shown.place


@pytest.mark.parametrize(
    ("address", "option", "environ", "expected"),
    [
        (ADDRESS, None, {"https_proxy": "http://proxy"}, None),
        (ADDRESS, "env", {"https_proxy": "http://one", "HTTPS_PROXY": "http://two"}, Proxy("one", 3128)),
        (ADDRESS, "env", {"HTTPS_PROXY": "http://two"}, Proxy("two", 3128)),
        (ADDRESS, "env", {"https_proxy": "http://one", "no_proxy": "a.org, .example.org"}, None),
        (ADDRESS, "http://one", {"NO_PROXY": "*"}, None),
        ("10.1.2.3:1", "http://one", {"no_proxy": "10.0.0.0/8"}, None),
        ("[2001:db8::1]:1", "http://one", {"no_proxy": "10.0.0.0/8"}, Proxy("one", 3128)),
        ("127.0.0.1:1", "env", {"https_proxy": "http://one"}, None),
        ("127.0.0.1:1", "http://one", {}, Proxy("one", 3128)),
        ("unix:/run/x.sock", "env", {"https_proxy": "http://one"}, None),
    ],
)
def test_the_option_and_the_environment_say_which(
    address: str, option: str | None, environ: dict[str, str], expected: Proxy | None
):
    assert proxy_for(address, option, environ) == expected


def test_what_has_no_meaning_is_refused():
    with pytest.raises(UsageError, match="the environment has no https_proxy"):
        proxy_for(ADDRESS, "env", {})
    with pytest.raises(UsageError, match="leave it out with a Unix socket"):
        proxy_for("unix:/run/x.sock", "http://one", {})
    with pytest.raises(UsageError, match="proxy is no URL of a proxy"):
        Proxy.parse("http://[::1].evil.example:3128", {})
    with pytest.raises(UsageError, match="https_proxy in the environment has the scheme 'socks5'"):
        proxy_for(ADDRESS, "env", {"https_proxy": "socks5://one"})
