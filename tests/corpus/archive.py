"""The corpus: run directories of a format as archives, and what they hold as text.

`format_N/NAME.tar.xz` has the folder of an entry as it was left, file by file with their modes, which git
does not keep and `offbeat verify` looks at. `format_N/contents.json` says of each entry what a test compares.
"""

import hashlib
import io
import json
import lzma
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offbeat.runs.record import RunRecord, find_runs
from offbeat.runs.schema import LOCK

FOLDER = Path(__file__).parent
CONTENTS = "contents.json"
OTHER_INITIAL = ("initial model is not the one the run started from", "started with another initial model")
Contents = dict[str, Any]


def formats() -> list[int]:
    """The formats of which there is a corpus."""
    return sorted(int(path.name.removeprefix("format_")) for path in FOLDER.glob("format_*"))


def folder_of(number: int) -> Path:
    """The folder of a format."""
    return FOLDER / f"format_{number}"


@cache
def contents(number: int) -> Contents:
    """What the corpus of a format holds: `processor`, and `entries` by name."""
    found: Contents = json.loads((folder_of(number) / CONTENTS).read_text(encoding="utf-8"))
    return found


def names(number: int, kind: str | None = None) -> list[str]:
    """The entries of a format, of a kind if one is given."""
    entries = contents(number)["entries"]
    return [name for name, entry in entries.items() if kind in (None, entry["kind"])]


def sample(number: int, kind: str | None = None) -> list[str]:
    """Entries of a format, of a kind if one is given, each of which shows what none before it does.

    What that is: its kind, an algorithm, how a run has ended, what else is said of it, and the first word of
    its name, or the first two of a run that was served.
    """
    seen: set[tuple[str, object]] = set()
    chosen = []
    for name in names(number, kind):
        entry = contents(number)["entries"][name]
        words = name.split("-")[: 1 + name.startswith("served")]
        shown = {("words", " ".join(words)), ("kind", entry["kind"]), *(("said", key) for key in entry)}
        shown |= {(key, run[key]) for run in entry["runs"].values() for key in ("algorithm", "status")}
        if not shown <= seen:
            chosen.append(name)
            seen |= shown
    return chosen


# ---- archives ----


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder's files with their modes, always into the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in (folder, *sorted(folder.rglob("*"))):
            if path.name == LOCK:
                continue  # empty, and made anew by whoever opens the run
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.mode = path.stat().st_mode & 0o777
            if path.is_dir():
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            else:
                member.size = path.stat().st_size
                tar.addfile(member, io.BytesIO(path.read_bytes()))
    archive.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(number: int, name: str, target: Path) -> Path:
    """Unpack an entry into a new folder, which is returned; every file is as it was."""
    folder = target / name
    with tarfile.open(folder_of(number) / f"{name}.tar.xz") as tar:
        for member in tar:
            path = folder / member.name
            if member.isdir():
                path.mkdir(parents=True)
            else:
                content = tar.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())
            path.chmod(member.mode)  # whatever the umask
    return folder


# ---- what is compared ----


def digest(data: bytes) -> str:
    """Digest of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def file_digests(folder: Path) -> dict[str, str]:
    """Digest of each file of an entry, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK)
    return {path.relative_to(folder).as_posix(): digest(path.read_bytes()) for path in files}


def rows_text(record: RunRecord) -> str:
    """The journal and the evaluations as JSON, exact to the last digit."""
    lines = [*record.journal, *record.metrics, *record.client_metrics()]
    return "\n".join(json.dumps(line, sort_keys=True) for line in lines)


def describe(folder: Path) -> dict[str, Any]:
    """What the contents say of the runs of an entry, by their path."""
    found = {}
    for record in find_runs(folder):
        checkpoint = record.checkpoint()
        found[record.path.relative_to(folder).as_posix()] = {
            "algorithm": record.algorithm,
            "status": record.status,
            "rows": record.length,
            "evaluations": len(record.evaluations()),
            "stored": None if checkpoint is None else checkpoint.journal,
            "digest": digest(rows_text(record).encode()),
        }
    return found


def write_contents(number: int, entries: Contents) -> None:
    """Write what the corpus of a format holds."""
    known = {"torch": torch.__version__, "entries": dict(sorted(entries.items()))}
    text = json.dumps(known, indent=1, sort_keys=True)
    (folder_of(number) / CONTENTS).write_text(f"{text}\n", encoding="utf-8")


# ---- which bits a processor gives ----


@cache
def processor_bits() -> str:
    """Digest of a little training that knows nothing of Offbeat: where it is equal, so are a run's bits."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    try:
        return digest(b"".join(_trained(*shape) for shape in ((64, 2, 10), (4, 3, 2), (4, 2, 2))))
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _trained(inputs: int, hidden: int, outputs: int) -> bytes:
    """The weights of a small network, with and without BatchNorm, after steps on batches of some sizes."""
    weights: list[bytes] = []
    for normalised in (False, True):
        between = [nn.BatchNorm1d(hidden)] if normalised else []
        layers = [nn.Linear(inputs, hidden), *between, nn.ReLU(), nn.Linear(hidden, outputs)]
        module = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for samples in (8, 20, 4, 100, 8, 3) * 3:
            x, y = torch.randn(samples, inputs), torch.arange(samples) % outputs
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        weights += [tensor.detach().numpy().tobytes() for tensor in module.state_dict().values()]
        weights.append(
            torch.cat([p.detach().flatten() for p in module.parameters()]).norm().numpy().tobytes()
        )
    return b"".join(weights)


def same_processor(number: int, name: str) -> bool:
    """Whether this processor and this PyTorch give the bits of those that recorded an entry."""
    return bool(contents(number)["entries"][name]["processor"] == processor_bits())


def skip_without_its_initial_model(number: int, name: str, printed: str) -> None:
    """Skip what a processor cannot resume, which draws other initial weights than the one that recorded.

    PyTorch's kernels for processors without fused multiply-add do; a run is then refused, in one line.
    """
    refused = any(text in printed for text in OTHER_INITIAL)
    if refused and not same_processor(number, name):
        pytest.skip("this processor draws other initial weights from a seed")
