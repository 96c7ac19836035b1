import dataclasses
import email.message
import hashlib
import io
import tarfile
import urllib.error
import urllib.request
import zipfile

import pytest

from offbeat.core.errors import RunError, UsageError
from offbeat.data import download as fetch_module
from offbeat.data.download import fetch
from offbeat.data.heart_disease import FILES


class Response(io.BytesIO):
    def __init__(self, content: bytes, announced: int | None = None):
        super().__init__(content)
        self.headers = email.message.Message()
        if announced is not None:
            self.headers["Content-Length"] = str(announced)


@pytest.fixture
def web(monkeypatch):
    """A web without network: set `web.answer` to what each address gives; `web.asked` lists the addresses."""

    class Web:
        asked: list[str] = []
        answer = staticmethod(lambda url: Response(b"content of " + url.encode()))

        def open(self, url, timeout):
            assert timeout > 0
            self.asked.append(url)
            return self.answer(url)

    served = Web()
    served.asked = []
    monkeypatch.setattr(urllib.request, "urlopen", served.open)
    return served


def test_files_land_whole_and_once(web, tmp_path):
    folder = fetch("heart_disease", root=tmp_path)
    assert folder == tmp_path / "heart_disease"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert (folder / FILES[0]).read_bytes().endswith(FILES[0].encode())
    assert all(url.startswith("https://archive.ics.uci.edu/") for url in web.asked)
    fetch("heart_disease", root=tmp_path)
    assert len(web.asked) == len(FILES)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda url: Response(b"short", announced=50), "5 bytes arrived of 50"),
        (lambda url: Response(b"x" * (2 << 20)), "larger than 1048576 bytes"),
    ],
)
def test_damage_leaves_nothing_behind(web, tmp_path, answer, message):
    web.answer = answer
    with pytest.raises(RunError, match=message) as caught:
        fetch("heart_disease", root=tmp_path)
    assert "by hand" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "heart_disease").iterdir()) == []


def test_no_network(web, tmp_path):
    def refuse(url):
        raise urllib.error.URLError("no route to host")

    web.answer = refuse
    with pytest.raises(RunError, match="no route to host"):
        fetch("mnist", root=tmp_path)
    assert list((tmp_path / "mnist" / "raw").iterdir()) == []


def test_checksum(web, tmp_path):
    with pytest.raises(RunError, match="MD5"):
        fetch("fashion_mnist", root=tmp_path)
    for name, remote in fetch_module._REMOTES.items():
        assert all(
            md5 is None or len(md5) == hashlib.md5().digest_size * 2 for md5 in remote.files.values()
        ), name


def archive(kind: str, folder: str) -> bytes:
    """A tar.gz or zip with a folder and a file in it."""
    content = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(content, "w") as file:
            file.writestr(f"{folder}/a.txt", "content")
    else:
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            member = tarfile.TarInfo(f"{folder}/a.txt")
            member.size = 7
            tar.addfile(member, io.BytesIO(b"content"))
    return content.getvalue()


@pytest.fixture
def no_checksums(monkeypatch):
    for name, remote in list(fetch_module._REMOTES.items()):
        without = dataclasses.replace(remote, files=dict.fromkeys(remote.files))
        monkeypatch.setitem(fetch_module._REMOTES, name, without)


@pytest.mark.parametrize(
    ("name", "kind", "inside", "folder"),
    [
        ("cifar10", "tar", "cifar-10-batches-bin", "cifar-10-batches-bin"),
        ("hapt", "zip", "HAPT Data Set/RawData", "RawData"),
    ],
)
def test_archives_are_unpacked_once(web, no_checksums, tmp_path, name, kind, inside, folder):
    web.answer = lambda url: Response(archive(kind, inside))
    found = fetch(name, root=tmp_path)
    assert [path.name for path in found.iterdir()] == [folder]
    assert (found / folder / "a.txt").read_text() == "content"
    fetch(name, root=tmp_path)
    assert len(web.asked) == 1


@pytest.mark.parametrize(("name", "kind"), [("cifar10", "tar"), ("hapt", "zip")])
def test_an_archive_that_unpacks_to_more_than_any(web, no_checksums, tmp_path, monkeypatch, name, kind):
    monkeypatch.setattr(fetch_module, "MOST_DATASET", 6)
    web.answer = lambda url: Response(archive(kind, "x"))
    with pytest.raises(RunError, match="it unpacks to more than 6 bytes"):
        fetch(name, root=tmp_path)
    assert list((tmp_path / name).iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "could not be fetched"),
        (archive("tar", "other"), "it has no cifar-10-batches-bin"),
        (archive("tar", "../../outside"), "its file ../../outside/a.txt is outside of its folder"),
        (archive("tar", "/outside"), "its file /outside/a.txt is outside of its folder"),
    ],
    ids=["no archive", "another folder", "outside", "absolute"],  # an archive's bytes have the time in them
)
def test_archives_that_are_not_what_they_should_be(web, no_checksums, tmp_path, content, message):
    web.answer = lambda url: Response(content)
    with pytest.raises(RunError, match=message) as caught:
        fetch("cifar10", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cifar10").iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10"]


@pytest.mark.parametrize("name", ["digits", "cifar"])
def test_nothing_to_fetch(web, tmp_path, name):
    with pytest.raises(UsageError, match="fetch knows: cifar10, cifar100, hapt, imdb, sent140, sst2"):
        fetch(name, root=tmp_path)
    assert web.asked == []
