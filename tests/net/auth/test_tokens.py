"""Tokens: made once, kept as hashes, replaced and revoked while a server runs."""

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offbeat.core.errors import RunError, UsageError
from offbeat.net.auth import tokens
from offbeat.net.auth.tokens import Tokens, enrol, revoke


def test_a_token_proves_its_site_and_no_other(tmp_path: Path):
    path = tmp_path / "tokens.json"
    a, b = enrol(path, "a"), enrol(path, "b")
    tokens = Tokens(path)
    assert (tokens.site(a), tokens.site(b)) == ("a", "b")
    for wrong in ("", "a", "a:", a[:-1], a + "x", "b" + a[1:], "c:" + a[2:], a.swapcase(), "a:\udcff"):
        assert tokens.site(wrong) is None


def test_the_file_has_no_secret_and_is_its_owners_alone(tmp_path: Path):
    path = tmp_path / "tokens.json"
    secrets = [enrol(path, "a").partition(":")[2], enrol(path, "a", keep=True).partition(":")[2]]
    text = path.read_text(encoding="utf-8")
    assert not any(secret in text for secret in secrets)
    assert all(len(secret) == 43 for secret in secrets)  # 256 bits in base64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len({one["salt"] for one in json.loads(text)["sites"]["a"]}) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens.json"]


def test_a_new_token_replaces_the_old_ones_or_keeps_the_last(tmp_path: Path):
    path = tmp_path / "tokens.json"
    first = enrol(path, "a")
    tokens = Tokens(path)
    assert tokens.site(first) == "a"
    second = enrol(path, "a", keep=True)
    assert [tokens.site(t) for t in (first, second)] == ["a", "a"]
    third = enrol(path, "a", keep=True)
    assert [tokens.site(t) for t in (first, second, third)] == [None, "a", "a"]
    fourth = enrol(path, "a")
    assert [tokens.site(t) for t in (second, third, fourth)] == [None, None, "a"]


def test_a_revoked_token_is_worthless_at_once(tmp_path: Path):
    path = tmp_path / "tokens.json"
    a, b = enrol(path, "a"), enrol(path, "b")
    tokens = Tokens(path)
    assert tokens.site(a) == "a"
    revoke(path, "a")
    assert (tokens.site(a), tokens.site(b)) == (None, "b")
    with pytest.raises(UsageError, match="there are tokens of: b"):
        revoke(path, "a")
    path.unlink()
    assert tokens.site(b) is None


def test_a_damaged_file_stops_a_server_that_starts_but_not_one_that_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "tokens.json"
    a = enrol(path, "a")
    tokens = Tokens(path)
    assert tokens.site(a) == "a"
    for damage in ("{", "[]", '{"sites": {"a": 3}}', '{"sites": {"a": [{}]}}'):
        path.write_text(damage, encoding="utf-8")
        os.utime(path, ns=(1, hash(damage) % 10**9))
        assert [tokens.site(a), tokens.site(a)] == ["a", "a"]
        with pytest.raises(RunError, match=r"tokens\.json: the file cannot be read"):
            Tokens(path)
        with pytest.raises(RunError):
            enrol(path, "b")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4  # one for each change, though it is asked for again
    assert all(one.endswith("enrol every site again; the tokens read before go on to count") for one in said)
    path.unlink()
    b = enrol(path, "b")
    assert [tokens.site(t) for t in (a, b)] == [None, "b"]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a:b", "é", "x" * 64, ".a", "a\n"])
def test_names_that_no_site_has(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="a name has 1 to 63"):
        enrol(tmp_path / "tokens.json", name)
    assert not (tmp_path / "tokens.json").exists()


def test_sites_that_are_enrolled_at_once_all_have_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, names = tmp_path / "tokens.json", [f"site-{k}" for k in range(4)]
    revoke_me = enrol(path, "gone")
    real = tokens.read

    def slowly(file: Path) -> dict[str, tuple[tokens.Hashed, ...]]:
        found = real(file)
        time.sleep(0.02)  # in which the others would read the same
        return found

    monkeypatch.setattr(tokens, "read", slowly)
    with ThreadPoolExecutor(5) as pool:
        made = [pool.submit(enrol, path, name) for name in names]
        pool.submit(revoke, path, "gone").result()
        given = [one.result() for one in made]
    assert [Tokens(path).site(token) for token in given] == names
    assert Tokens(path).site(revoke_me) is None
