"""Which versions of a server and a site work together."""

import pytest

from offbeat.net.versions import METADATA, VERSION_KEY, refusal
from offbeat.version import __version__


@pytest.mark.parametrize(
    ("server", "site"),
    [
        ("0.5.0", None), ("0.5.0", "0.5.9"), ("0.5.0", "0.4.2"), ("0.5.0.dev3+g12ab", "0.5.0rc1"),
        ("0.0.1", "0.0.2"), ("1.0.0", "1.0.0"), ("unknown", "0.4.0"),
    ],
)  # fmt: skip
def test_a_server_works_with_sites_of_its_own_and_the_previous_minor_version(server: str, site: str | None):
    assert refusal(server, site) is None


@pytest.mark.parametrize(
    ("server", "site", "older"),
    [("0.5.0", "0.2.1", "site"), ("0.4.0", "0.5.0", "server"), ("1.0.0", "0.9.0", "site")],
)
def test_another_pair_is_told_both_versions_and_which_end_to_upgrade(server: str, site: str, older: str):
    told = refusal(server, site) or ""
    assert f"this server has Offbeat {server}" in told
    assert f"this site has {site}: upgrade the {older}" in told


@pytest.mark.parametrize("site", ["", "1", "latest", "0.5\n0.5" * 40, "٠.٥", "9" * 30 + ".1"])
def test_what_is_no_version_is_refused(site: str):
    told = refusal("0.5.0", site) or ""
    assert "is not allowed: a version is such as 0.5.0" in told
    assert len(told) < 200


def test_each_end_tells_its_own():
    assert ((VERSION_KEY, __version__),) == METADATA
