"""Downloads of raw dataset files from their official servers, on an explicit call only."""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.data.heart_disease import FILES as HEART_FILES
from offbeat.data.images import IDX_FILES
from offbeat.data.paths import data_root
from offbeat.unpacking import MOST_DATASET

_TIMEOUT = 60.0  # s without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Remote:
    """The files of a dataset: address, local folder, names with MD5 sums, and the largest size in bytes.

    With `unpacked` the files are archives, which are unpacked into the folder and not kept; `unpacked` names
    what is there then.
    """

    address: str
    folder: str
    files: dict[str, str | None]
    limit: int
    unpacked: str | None = None


def _idx(*sums: str) -> dict[str, str | None]:
    """The idx files with their MD5 sums, which only detect damaged downloads."""
    return {f"{name}.gz": md5 for name, md5 in zip(IDX_FILES, sums, strict=True)}


_REMOTES = {
    "cifar10": _Remote(
        "https://www.cs.toronto.edu/~kriz/",
        "cifar10",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        200 << 20,
        "cifar-10-batches-bin",
    ),
    "cifar100": _Remote(
        "https://www.cs.toronto.edu/~kriz/",
        "cifar100",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        200 << 20,
        "cifar-100-binary",
    ),
    "hapt": _Remote(
        "https://archive.ics.uci.edu/static/public/341/",
        "hapt",
        {"smartphone+based+recognition+of+human+activities+and+postural+transitions.zip": None},
        200 << 20,
        "RawData",
    ),
    "imdb": _Remote(
        "https://ai.stanford.edu/~amaas/data/sentiment/",
        "imdb",
        {"aclImdb_v1.tar.gz": "7c2ac02c03563afcf9b574c7e56c153a"},
        200 << 20,
        "aclImdb",
    ),
    "sent140": _Remote(
        "https://cs.stanford.edu/people/alecmgo/",
        "sent140",
        {"trainingandtestdata.zip": None},
        200 << 20,
        "training.1600000.processed.noemoticon.csv",
    ),
    "sst2": _Remote(
        "https://dl.fbaipublicfiles.com/glue/data/", "sst2", {"SST-2.zip": None}, 50 << 20, "SST-2"
    ),
    "mnist": _Remote(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist/raw",
        _idx(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        64 << 20,
    ),
    "fashion_mnist": _Remote(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "fashion_mnist/raw",
        _idx(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        64 << 20,
    ),
    "heart_disease": _Remote(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        "heart_disease",
        dict.fromkeys(HEART_FILES),
        1 << 20,
    ),
}

FETCHABLE: tuple[str, ...] = tuple(_REMOTES)
"""Names of the datasets that `fetch` can download."""


def fetch(name: str, *, root: Path | None = None) -> Path:
    """Download the raw files of a dataset that the data directory does not have yet.

    A file appears under its name only when it is whole.

    Args:
        name: One of `FETCHABLE`.
        root: The data directory. None means the environment's OFFBEAT_DATA, else ~/.cache/offbeat.

    Returns:
        The folder of the files.

    Raises:
        UsageError: The dataset has no files to download.
        RunError: A download fails, is too large or is damaged, or cannot be written.
    """
    if name not in _REMOTES:
        why = "comes with scikit-learn" if name == "digits" else "has no files to fetch"
        raise UsageError(f"dataset {name!r} {why}; fetch knows: {', '.join(FETCHABLE)}")
    remote = _REMOTES[name]
    folder = data_root(root) / remote.folder
    for file, md5 in remote.files.items():
        if (folder / (remote.unpacked or file)).exists():
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _download(remote.address + file, folder / file, remote.limit, md5)
            if remote.unpacked is not None:
                _unpack(folder / file, remote.unpacked)
        except (
            OSError,
            http.client.HTTPException,
            tarfile.TarError,
            zipfile.BadZipFile,
            zlib.error,
            _DamagedError,
        ) as error:
            raise RunError(
                f"dataset {name!r}: {remote.address + file} could not be fetched ({reason_of(error)}); "
                f"put {remote.unpacked or 'the file'} in {folder} by hand"
            ) from error
    return folder


class _DamagedError(Exception):
    """A download that is not the file."""


def _download(url: str, target: Path, limit: int, md5: str | None) -> None:
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    digest, size = hashlib.md5(usedforsecurity=False), 0
    try:
        with part.open("wb") as out, urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
            while chunk := response.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    raise _DamagedError(f"it is larger than {limit} bytes")
                digest.update(chunk)
                out.write(chunk)
            announced = response.headers.get("Content-Length")
        if announced is not None and int(announced) != size:
            raise _DamagedError(f"{size} bytes arrived of {announced}")
        if md5 is not None and digest.hexdigest() != md5:
            raise _DamagedError(f"its MD5 is {digest.hexdigest()}, not {md5}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _unpack(archive: Path, wanted: str) -> None:
    """Move the wanted file or folder out of an archive, and delete the archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        try:
            if archive.name.endswith(".tar.gz"):
                _untar(archive, Path(work).resolve())
            else:
                with zipfile.ZipFile(archive) as opened:
                    _check_size(sum(member.file_size for member in opened.infolist()))
                shutil.unpack_archive(archive, work)
        finally:
            archive.unlink()
        found = next(iter(sorted(Path(work).rglob(wanted))), None)
        if found is None:
            raise _DamagedError(f"it has no {wanted}")
        found.replace(archive.parent / wanted)


def _check_size(size: int) -> None:
    if size > MOST_DATASET:
        raise _DamagedError(f"it unpacks to more than {MOST_DATASET} bytes")


def _untar(archive: Path, folder: Path) -> None:
    """Write the regular files of a tar.gz, as Python before 3.11.4 has no filter for paths that lead out."""
    size = 0
    with tarfile.open(archive, "r:gz") as opened:
        for member in filter(tarfile.TarInfo.isfile, opened):
            _check_size(size := size + member.size)
            target = folder / member.name
            if not target.resolve().is_relative_to(folder):
                raise _DamagedError(f"its file {member.name} is outside of its folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            content = opened.extractfile(member)
            assert content is not None
            with target.open("wb") as out:
                shutil.copyfileobj(content, out)
