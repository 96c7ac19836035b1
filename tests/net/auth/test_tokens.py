"""Tokens: made once, kept as hashes, replaced and revoked while a server runs."""

import hashlib
import json
import os
import secrets
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offbeat.core.errors import RunError, UsageError
from offbeat.net.auth import tokens
from offbeat.net.auth.tokens import DASHBOARD, Tokens, claim, make_token, renew, revoke, use


def test_a_token_proves_its_site_and_no_other(tmp_path: Path):
    path = tmp_path / "tokens.json"
    a, b = make_token(path, "a"), make_token(path, "b")
    tokens = Tokens(path)
    assert (tokens.name(a), tokens.name(b)) == ("a", "b")
    for wrong in ("", "a", "a:", a[:-1], a + "x", "b" + a[1:], "c:" + a[2:], a.swapcase(), "a:\udcff"):
        assert tokens.name(wrong) is None


def test_the_file_has_no_secret_and_is_its_owners_alone(tmp_path: Path):
    path = tmp_path / "tokens.json"
    secrets = [make_token(path, "a").partition(":")[2], make_token(path, "a", keep=True).partition(":")[2]]
    text = path.read_text(encoding="utf-8")
    assert not any(secret in text for secret in secrets)
    assert all(len(secret) == 43 for secret in secrets)  # 256 bits in base64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len({one["salt"] for one in json.loads(text)["sites"]["a"]}) == 2
    assert {entry.name for entry in tmp_path.iterdir()} == {"tokens.json", ".tokens.json.lock"}


def test_a_new_token_replaces_the_old_ones_or_keeps_the_last(tmp_path: Path):
    path = tmp_path / "tokens.json"
    first = make_token(path, "a")
    tokens = Tokens(path)
    assert tokens.name(first) == "a"
    second = make_token(path, "a", keep=True)
    assert [tokens.name(t) for t in (first, second)] == ["a", "a"]
    third = make_token(path, "a", keep=True)
    assert [tokens.name(t) for t in (first, second, third)] == [None, "a", "a"]
    fourth = make_token(path, "a")
    assert [tokens.name(t) for t in (second, third, fourth)] == [None, None, "a"]


def test_a_revoked_token_is_worthless_at_once(tmp_path: Path):
    path = tmp_path / "tokens.json"
    a, b = make_token(path, "a"), make_token(path, "b")
    tokens = Tokens(path)
    assert tokens.name(a) == "a"
    revoke(path, "a")
    assert (tokens.name(a), tokens.name(b)) == (None, "b")
    with pytest.raises(UsageError, match="there are tokens of: b"):
        revoke(path, "a")
    assert tokens.name(b) == "b"


@pytest.mark.parametrize("spoil", ["missing", "empty", "half", "folder", "no folder"])
def test_a_file_that_vanishes_or_is_half_written_ends_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: str
):
    path = tmp_path / "run" / "tokens.json"
    path.parent.mkdir()
    a, b = make_token(path, "a", life=90), make_token(path, "b")
    known, whole = Tokens(path), path.read_bytes()
    assert [known.name(a), known.name(b)] == ["a", "b"]
    if spoil in ("empty", "half"):
        path.write_bytes(b"" if spoil == "empty" else whole[: len(whole) // 2])
    else:
        path.unlink()
        if spoil == "folder":
            path.mkdir()
        elif spoil == "no folder":
            (tmp_path / "run").rename(tmp_path / "gone")
    for _ in range(3):
        assert [known.name(a), known.name(b)] == ["a", "b"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert "the tokens read before stay valid" in said
    for change in (lambda: claim(path, a, KEY, time.time()), lambda: use(path, a)):
        with pytest.raises((RunError, UsageError)):
            change()
    assert not path.is_file() or path.read_bytes() != b'{"sites":{}}', "a server makes no file without them"
    if path.is_dir():
        path.rmdir()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(whole)
    revoke(path, "a")
    assert [known.name(a), known.name(b)] == [None, "b"]


def test_a_token_that_a_person_has_ended_is_told_apart_from_one_that_is_not_known(tmp_path: Path):
    path = tmp_path / "tokens.json"
    first, known = make_token(path, "a", by="anna"), Tokens(path)
    second = make_token(path, "a", by="bert")
    revoke(path, "a", "cora")
    ends = {token: known.proof(token) for token in (first, second)}
    assert [proof and proof.ended and proof.ended.by for proof in ends.values()] == ["bert", "cora"]
    assert known.proof("a:wrong") is None
    path.write_text('{"sites": {}}', encoding="utf-8")
    assert known.proof(first) is None, "another file does not say that anybody has ended it"


def test_the_acts_of_a_file_are_the_last_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "MOST_ACTS", 5)
    for _ in range(4):
        make_token(tmp_path / "tokens.json", "a")
        revoke(tmp_path / "tokens.json", "a")
    acts = tokens.read(tmp_path / "tokens.json").acts
    assert [act.action.partition(".")[2] for act in acts] == ["revoke", "enrol", "revoke", "enrol", "revoke"]


def test_a_damaged_file_stops_a_server_that_starts_but_not_one_that_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "tokens.json"
    a = make_token(path, "a")
    tokens = Tokens(path)
    assert tokens.name(a) == "a"
    for damage in ("{", "[]", '{"sites": {"a": 3}}', '{"sites": {"a": [{}]}}'):
        path.write_text(damage, encoding="utf-8")
        os.utime(path, ns=(1, hash(damage) % 10**9))
        assert [tokens.name(a), tokens.name(a)] == ["a", "a"]
        with pytest.raises(RunError, match=r"tokens\.json: the file cannot be read"):
            Tokens(path)
        with pytest.raises(RunError):
            make_token(path, "b")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4  # one for each change, though it is asked for again
    assert all(one.endswith("make every token again; the tokens read before stay valid") for one in said)
    path.unlink()
    b = make_token(path, "b")
    assert [tokens.name(t) for t in (a, b)] == [None, "b"]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a:b", "é", "x" * 64, ".a", "a\n"])
def test_names_that_no_site_has(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="a name has 1 to 63"):
        make_token(tmp_path / "tokens.json", name)
    assert not (tmp_path / "tokens.json").exists()


def test_sites_that_are_enrolled_at_once_all_have_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, names = tmp_path / "tokens.json", [f"site-{k}" for k in range(4)]
    revoke_me = make_token(path, "gone")
    real = tokens.read

    def slowly(file: Path) -> dict[str, tuple[tokens.HashedToken, ...]]:
        found = real(file)
        time.sleep(0.02)  # in which the others would read the same
        return found

    monkeypatch.setattr(tokens, "read", slowly)
    with ThreadPoolExecutor(5) as pool:
        made = [pool.submit(make_token, path, name) for name in names]
        pool.submit(revoke, path, "gone").result()
        given = [one.result() for one in made]
    assert [Tokens(path).name(token) for token in given] == names
    assert Tokens(path).name(revoke_me) is None


# ---- the token of a live page ----


def test_a_page_token_is_replaced_by_the_next(tmp_path: Path):
    path = tmp_path / "dashboard-token"
    tokens = Tokens(path)
    assert tokens.empty
    first = make_token(path, DASHBOARD)
    assert (tokens.empty, tokens.name(first)) == (False, DASHBOARD)
    second = make_token(path, DASHBOARD)
    assert [tokens.name(token) for token in (first, second)] == [None, DASHBOARD]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_page_token_of_an_earlier_version_is_still_valid(tmp_path: Path):
    """Its file was one line: the SHA-256 of the token, without a salt."""
    path, token = tmp_path / "dashboard-token", secrets.token_urlsafe(32)
    path.write_text(hashlib.sha256(token.encode()).hexdigest() + "\n", encoding="utf-8")
    tokens = Tokens(path)
    assert tokens.name(token) == DASHBOARD
    assert [tokens.name(wrong) for wrong in ("", token[1:], f"{DASHBOARD}:{token[1:]}")] == [None] * 3
    make_token(path, DASHBOARD)
    assert tokens.name(token) is None


@pytest.mark.parametrize("text", ["", "abc", "g" * 64, "é", "A" * 64, '{"x":' + "[" * 10**5])
def test_a_file_that_is_neither_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="token: the file cannot be read"):
        Tokens(path)


def test_a_file_that_was_there_keeps_its_tokens_when_it_is_deleted(tmp_path: Path):
    path = tmp_path / "dashboard-token"
    tokens = Tokens(path)
    assert tokens.empty
    token = make_token(path, DASHBOARD)
    assert tokens.name(token) == DASHBOARD
    path.unlink()
    assert (tokens.empty, tokens.name(token)) == (False, DASHBOARD)


def test_a_token_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="the file cannot be written"):
        make_token(tmp_path / "file" / "token", DASHBOARD)


def test_a_known_and_an_unknown_name_cost_the_same_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, hashed = tmp_path / "tokens.json", list[str]()
    make_token(path, "one")
    make_token(path, "two")
    make_token(path, "two", keep=True)
    known, real = Tokens(path), tokens._hash

    def counting(salt: str, secret: str) -> str:
        hashed.append(salt)
        return real(salt, secret)

    monkeypatch.setattr(tokens, "_hash", counting)
    for name in ("one", "two", "nobody"):
        hashed.clear()
        assert known.name(f"{name}:wrong") is None
        assert len(hashed) == 8
        assert {len(salt) for salt in hashed} == {32}


def test_an_enrolment_has_a_range_of_samples_that_stays_until_it_is_revoked(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    make_token(path, "a", samples=(100, 5000))
    make_token(path, "b")
    known = Tokens(path)
    assert (known.samples("a"), known.samples("b"), known.samples("c")) == ((100, 5000), None, None)
    make_token(path, "a")
    assert known.samples("a") == (100, 5000)
    make_token(path, "a", keep=True, samples=(1, 7))
    assert known.samples("a") == (1, 7)
    revoke(path, "a")
    assert known.samples("a") is None
    assert "samples" not in json.loads(path.read_text(encoding="utf-8"))


# Tokens that expire


KEY = "k" * 43


class Expiring:
    """A file of tokens at a time that the test sets."""

    def __init__(self, path: Path, life: int = 90) -> None:
        self.path, self.now = path, time.time()
        self.first = make_token(path, "a", life=life)
        self.tokens = Tokens(path, clock=lambda: self.now)

    def valid(self, *shown: str) -> list[bool]:
        return [self.tokens.name(token) == "a" for token in shown]

    def renewed(self, token: str) -> str:
        assert claim(self.path, token, KEY, self.now)
        made = renew(self.path, token, KEY, self.now)
        assert made is not None
        return made[0]


@pytest.fixture
def expiring(tmp_path: Path) -> Expiring:
    return Expiring(tmp_path / "tokens.json")


def test_a_token_expires_and_is_due_for_renewal_after_two_thirds(expiring: Expiring):
    proof = expiring.tokens.proof(expiring.first)
    assert proof is not None
    assert proof.stored.renewed_at == proof.stored.made + 60
    expiring.now = proof.stored.expires - 1
    assert expiring.valid(expiring.first) == [True]
    expiring.now += 1
    assert expiring.valid(expiring.first) == [False]
    assert expiring.tokens.proof(expiring.first) == proof, "whoever shows it is told that it has expired"
    assert expiring.tokens.sites() == {"a"}


def test_a_token_without_a_life_is_stored_as_before(tmp_path: Path):
    make_token(tmp_path / "tokens.json", "a")
    (stored,) = json.loads((tmp_path / "tokens.json").read_bytes())["sites"]["a"]
    assert set(stored) == {"salt", "sha256"}
    assert renew(tmp_path / "tokens.json", "a:wrong", KEY, time.time()) is None


def test_the_old_token_ends_at_the_first_use_of_the_new_one(expiring: Expiring):
    second = expiring.renewed(expiring.first)
    assert expiring.valid(expiring.first, second) == [True, True]
    use(expiring.path, second)
    assert expiring.valid(expiring.first, second) == [False, True]
    use(expiring.path, second)
    assert expiring.valid(second) == [True]


def test_a_renewal_that_never_arrived_ends_at_the_next_one(expiring: Expiring):
    lost = expiring.renewed(expiring.first)
    second = expiring.renewed(expiring.first)
    assert expiring.valid(expiring.first, lost, second) == [True, False, True]


def test_a_renewal_of_an_unused_renewal_keeps_it_and_ends_both_at_its_use(expiring: Expiring):
    second = expiring.renewed(expiring.first)
    for _ in range(3):
        third = expiring.renewed(second)
        assert expiring.valid(expiring.first, second, third) == [True, True, True]
    use(expiring.path, third)
    assert expiring.valid(expiring.first, second, third) == [False, False, True]


def test_a_token_made_by_hand_beside_the_renewed_one_stays(expiring: Expiring):
    second = expiring.renewed(expiring.first)
    by_hand = make_token(expiring.path, "a", keep=True)
    assert expiring.valid(expiring.first, second, by_hand) == [True, True, True]
    use(expiring.path, second)
    assert expiring.valid(expiring.first, second, by_hand) == [False, True, True]


def test_a_token_is_renewed_for_the_key_of_its_first_use_alone(expiring: Expiring):
    path, now = expiring.path, expiring.now
    assert renew(path, expiring.first, KEY, now) is None, "the token alone renews nothing"
    assert claim(path, expiring.first, KEY, now)
    assert not claim(path, expiring.first, "c" * 43, now)
    assert KEY not in path.read_text(encoding="utf-8")
    assert [renew(path, expiring.first, key, now) for key in ("", "c" * 43)] == [None, None]
    second = expiring.renewed(expiring.first)
    assert [claim(path, second, key, now) for key in ("c" * 43, KEY)] == [False, True]
    new = make_token(path, "a", life=90)
    assert claim(path, new, "c" * 43, now), "a new token is of nobody's key"


def test_an_expired_or_revoked_token_is_not_renewed(expiring: Expiring):
    revoke(expiring.path, "a")
    assert renew(expiring.path, expiring.first, KEY, expiring.now) is None
    again = make_token(expiring.path, "a", life=90)
    expiring.now += 100
    assert renew(expiring.path, again, KEY, expiring.now) is None


def test_a_file_of_many_renewals_stays_small(expiring: Expiring):
    token = expiring.first
    for _ in range(30):
        expiring.now += 60
        token = expiring.renewed(token)  # never used to log in: one connection all along
        assert expiring.valid(token) == [True]
    assert len(expiring.tokens.stored()["a"]) <= 3
