"""Coverage-guided fuzzing of the readers of files and messages.

    python -m tests.fuzz [TARGET …] [--seconds 60] [--folder FOLDER]

Needs `atheris`. Each target begins with valid files. Each input must be read, or be refused with the error
that its reader documents, within ten seconds and 2 GiB. What is found stays in the folder, and becomes a test
of its reader.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

ROOT = Path(__file__).parents[1]
LONGEST = 1 << 16  # bytes of an input
Target = tuple[Callable[[], list[bytes]], Callable[[bytes], object], tuple[type[Exception], ...]]
"""Makes valid inputs; reads one; the errors that it may raise."""


def archive() -> Target:
    from offbeat.runs.columns import journal_row
    from offbeat.runs.damage import reading
    from offbeat.runs.journal_archive import _unpack

    def read(data: bytes) -> None:
        packed = zlib.compress(data[1:], 1) if data[:1] != b"\0" else data[1:]
        with reading(Path("run.db")):
            for row in _unpack(0, 4095, packed):
                journal_row(*row)

    rows = [
        [0, 0.0, "event", "joined", 3, None, None, 0, None, None, '{"samples":5,"steps_per_epoch":1}'],
        [1, 0.5, "command", "train", 3, 7, 0, 0, None, 40, '{"ask_after":3}'],
        [2, 1.5, "event", "arrived", 3, 7, 0, 0, 0, 40, '{"loss":1.0}'],
        [3, 1.5, "command", "aggregate", None, None, None, 1, None, None, '{"tasks":[7],"clients":[3]}'],
    ]
    text = "\n".join(map(json.dumps, rows)).encode()
    return lambda: [b"1" + text, b"\0" + zlib.compress(text)], read, (_offbeat_error(),)


def record() -> Target:
    from offbeat.runs.columns import check_meta, client_metric_row, meta_entry, metric_row
    from offbeat.runs.damage import reading
    from offbeat.runs.record import checkpoint_row

    def read(data: bytes) -> None:
        kind, text = data[:1], data[1:].decode("utf-8", "replace")
        with reading(Path("run.db")):
            if kind == b"c":
                checkpoint_row(1, 3, 2, 1, text)
            elif kind == b"m":
                metric_row(1, 0.5, 1, 1, 1, 1, 0.5, 0.5, text)
            elif kind == b"p":
                client_metric_row(1, 1, 1, text)
            else:
                name, value = meta_entry(*text.split("=", 1))
                check_meta({name: value})

    checkpoint = {"state": "state-1.safetensors", "bases": {"7": 0}, "updates": {"6": [0, 0.1, {"loss": 1}]}}
    found = b'{"loss":1.0,"accuracy":null}'
    entries = [b"-seed=1", b'-algorithm={"name":"fedbuff"}', b"-plan={}", b'-summary={"loss":{"a":1.0}}']
    return (
        lambda: [b"c" + json.dumps(checkpoint).encode(), b"m" + found, b"p" + found, *entries],
        read,
        (_offbeat_error(),),
    )


def tensors() -> Target:
    import torch

    from offbeat.runs.packing import pack_tensors, unpack_tensors

    def read(data: bytes) -> object:
        if data[:1] == b"h":  # a head whose length fits
            head, _, body = data[1:].partition(b"\0")
            return unpack_tensors(len(head).to_bytes(8, "little") + head + body)
        return unpack_tensors(data[1:])

    def seeds() -> list[bytes]:
        packed = pack_tensors({"w": torch.ones(2, 3), "n": torch.ones(1, dtype=torch.int8)})
        head = b'{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
        return [b"-" + packed, b"h" + head + b"\0" + bytes(24)]

    return seeds, read, (ValueError,)


def snapshot() -> Target:
    from offbeat.net.server import recovery_snapshot as snapshots
    from tests.net.server.test_recovery_snapshot import SCRIPT, Kind, encode, make, play

    kind = Kind("fedcompass", rollback=True)
    live, _ = play(kind, SCRIPT[:60])
    back = make(kind)
    for site in live.c.registry.sites.values():
        back.registry.add(site.name, site.client)
    new, saver = encode(back.save()), snapshots.RecoverySnapshots(back)
    tensors = live.c.tensors
    checkpoint = Mock(
        journal=live.c.driver.engine.rows, metrics=live.c.evaluations.count, version=live.c.server.version,
        bases={task: own[0] for task, own in tensors.bases.items()},
        fresh={task: own[0] for task, own in tensors.fresh.items()},
        updates={task: (own.task.base, 0.1, {}) for task, own in tensors.updates.items()},
    )  # fmt: skip

    def read(data: bytes) -> None:
        checksum = snapshots._checksum(checkpoint.journal, saver._code, data)
        row = (checkpoint.journal, saver._code, data, checksum)

        def select(query: str) -> Any:
            return iter([(checksum,)] if "checksums" in query else [row])

        def rows(after: int, limit: int | None = None) -> Any:
            return iter(live.rows[after + 1 :][:limit])

        stored = Mock(has_table=lambda _: True, select=select, rows=rows)
        if saver.restore(stored, checkpoint):
            back.restore(snapshots._decode(new))
        assert encode(back.save()) == new  # nothing of it is left

    return lambda: [encode(live.c.save())], read, ()


def _wire(peer: Any, messages: Callable[[], list[Any]]) -> Target:
    from offbeat.core.layout import Layout
    from offbeat.net.transport import ProtocolError
    from offbeat.net.wire.limits import Limits
    from offbeat.net.wire.reader import MessageReader
    from offbeat.net.wire.writer import MessageWriter

    limits = Limits(layout=Layout.flat(5), body=1 << 20, payload=1 << 16, memory=1 << 22)

    def read(data: bytes) -> None:
        MessageReader[Any](peer, limits, registered=True).feed(data)

    def seeds() -> list[bytes]:
        frames = []
        for message in messages():
            writer = MessageWriter(64 << 10)
            writer.put(message)
            while not writer.empty:
                frames.append(writer.frame())
        return frames

    return seeds, read, (ProtocolError,)


def wire_of_sites() -> Target:
    def messages() -> list[Any]:
        import numpy as np
        import torch

        from offbeat.net import messages as m
        from offbeat.secure.messages import UnmaskRefused, UnmaskShare

        integers = torch.zeros(0, dtype=torch.int64)
        return [
            m.Register(10, 1, (5, 5), None, "run", held_out=5), m.Heartbeat(7, 3), m.Leave("tired"),
            m.UpdateReady(7, 5, {"loss": 1.0}), m.TaskFailed(7, "full"), m.ModelRequest(7, 2),
            m.UpdateSubmission(7, 5, torch.ones(5), integers, {"loss": 1.0}, 0.1, None),
            m.UpdateSubmission(7, 5, b"payload", integers, {}, 0.1, None),
            m.EvaluationResult(3, 5, {"loss": 1.0}),
            UnmaskShare(12, b"d" * 32, (0,), 1, np.arange(5, dtype=np.uint32)), UnmaskRefused(13, "no"),
        ]  # fmt: skip

    return _wire("site", messages)


def wire_of_the_server() -> Target:
    def messages() -> list[Any]:
        from offbeat.core.layout import Layout
        from offbeat.core.model import Model
        from offbeat.net import messages as m
        from tests.net.wire.test_secure_messages import COMMITTEE, UnmaskEntry, UnmaskRequest

        model = Model.empty(Layout.flat(5))
        return [
            m.Registered(3, "run", {"a": [1, {"b": 2}]}, 60.0, site="a"), m.Rejected("no"), COMMITTEE,
            m.TaskAssignment(7, 0, 40, 1, model, 3, 1.0, False), m.ModelResponse(7, 2, 5, model),
            m.EvaluationRequest(3, model), m.RunFinished("done"), m.TaskCancel(7, "late"),
            UnmaskRequest(12, COMMITTEE.digest, (0,), (UnmaskEntry(7, 3, "s", 15, bytes(112)),)),
        ]  # fmt: skip

    return _wire("server", messages)


def codecs() -> Target:
    import numpy as np
    import torch

    from offbeat.codec import PayloadError, Qsgd, SparseQuantised, TopK

    made = [Qsgd(levels=4), SparseQuantised(levels=4), TopK(fraction=0.1)]
    delta = torch.linspace(-1, 1, 200)

    def read(data: bytes) -> None:
        if data:
            made[data[0] % len(made)].decode(data[1:], 200)

    def seeds() -> list[bytes]:
        rng = np.random.default_rng(1)
        return [bytes([n]) + own.encode(delta, None, rng) for n, own in enumerate(made)]

    return seeds, read, (PayloadError,)


def _file(name: str, read: Callable[[Path], object], seeds: Callable[[], list[bytes]]) -> Target:
    """A reader of a file, which is written for each input."""
    path = Path(tempfile.mkdtemp(prefix="offbeat-fuzz-"), name)

    def reading(data: bytes) -> None:
        path.write_bytes(data)
        read(path)

    return seeds, reading, (_offbeat_error(),)


def kit() -> Target:
    import msgspec

    from offbeat.net.kit import KitFile, make_kit

    made = make_kit("fl.example.org:7117", "north:secret", 1e10, None, "steps: 3", "0.1.0")
    return _file("kit.json", lambda path: KitFile(path).read(), lambda: [msgspec.json.encode(made)])


def tokens() -> Target:
    from offbeat.net.auth.tokens import read

    whole = {"sites": {"a": [{"salt": "x", "sha256": "0" * 64}]}}
    return _file("tokens.json", read, lambda: [json.dumps(whole).encode(), b"0" * 64])


def recipe() -> Target:
    from offbeat.documents import parse_yaml
    from offbeat.recipes.built_in import built_in
    from offbeat.recipes.load import amend

    def read(path: Path) -> None:
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            return
        document = parse_yaml(text, "recipe")
        if isinstance(document, dict) and "algorithm" in document:
            amend(document, [], "recipe")

    def seeds() -> list[bytes]:
        anchors = b"a: &a [1, 2]\nb: &b [*a, *a]\nc: {<<: {d: 1}, e: 0x10, f: 2020-01-01, g: !!binary aGk=}\n"
        return [path.read_bytes() for path in built_in().values()] + [anchors]

    return _file("recipe.yaml", read, seeds)


def trace() -> Target:
    from offbeat.world.trace import trace_section

    return _file("trace.csv", trace_section, lambda: [(ROOT / "tests/corpus/trace.csv").read_bytes()])


def rows() -> Target:
    from offbeat_papers.rows import Results

    def read(path: Path) -> None:
        Results(path.parent).rows(path.stem)

    source = ROOT / "papers/results/fedcompass-cifar10.csv"
    return _file("x.csv", read, lambda: [b"".join(source.read_bytes().splitlines(keepends=True)[:4])])


def manifest() -> Target:
    import msgspec

    from offbeat.backup.manifest import MANIFEST, CopiedFile, Manifest
    from offbeat.core.errors import DamageError

    plain = Manifest(
        made="2026-01-01", run="r", label="l", status="running", rows=5, evaluations=1, version=1,
        audit="5:ab", files={"run.db": CopiedFile(bytes=5, sha256="0" * 64)},
    )  # fmt: skip
    whole = msgspec.structs.replace(plain, checksum=plain._digest())

    def read(path: Path) -> None:
        with suppress(DamageError):
            Manifest.read(path.parent)

    return _file(MANIFEST, read, lambda: [msgspec.json.encode(whole)])


def compressed() -> Target:
    import gzip

    from offbeat.unpacking import unpacked

    def read(data: bytes) -> None:
        assert sum(map(len, unpacked(BytesIO(data), 1 << 20))) <= 1 << 20

    return lambda: [gzip.compress(b"some text" * 9), zlib.compress(b"a" * 999)], read, (ValueError,)


def heart_disease() -> Target:
    from offbeat.data.heart_disease import read_hospital

    row = b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
    return _file("processed.cleveland.data", read_hospital, lambda: [row * 3])


def idx() -> Target:
    from offbeat.data.idx import read_idx

    return _file("x", lambda path: read_idx(path, 1), lambda: [bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3])])


@cache
def _offbeat_error() -> type[Exception]:
    from offbeat.core.errors import OffbeatError

    return OffbeatError


TARGETS: dict[str, Callable[[], Target]] = {
    own.__name__: own
    for own in (
        archive, record, tensors, snapshot, wire_of_sites, wire_of_the_server, codecs, kit, tokens, recipe,
        trace, rows, manifest, compressed, heart_disease, idx,
    )
}  # fmt: skip


def fuzz(name: str, folder: Path, seconds: int) -> None:
    """Fuzz a target in this process, and end it."""
    import atheris

    with atheris.instrument_imports(include=["offbeat", "offbeat_papers", "yaml", "json", "csv"]):
        seeds, read, allowed = TARGETS[name]()
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        read(seed)  # each is valid
        (corpus / f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        with suppress(*allowed):
            read(data)

    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=10", "-rss_limit_mb=2048"]
    atheris.Setup(["fuzz", str(corpus), f"-artifact_prefix={folder}/", *limits], one)
    atheris.Fuzz()


def main() -> int:
    """Fuzz targets, each in a process of its own, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "offbeat-fuzz")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(TARGETS)}")
    if given.here:
        fuzz(given.targets[0], given.folder / given.targets[0], given.seconds)
    failed = 0
    for name in given.targets or TARGETS:
        options = [name, "--here", f"--seconds={given.seconds}", f"--folder={given.folder}"]
        (given.folder / name).mkdir(parents=True, exist_ok=True)
        with (given.folder / name / "log").open("wb") as log:
            code = subprocess.call(
                [sys.executable, "-m", "tests.fuzz", *options], stderr=log, stdout=log, cwd=ROOT
            )
        last = (given.folder / name / "log").read_text(errors="replace").strip().splitlines()[-1:]
        print(f"{name}: {'nothing found' if not code else 'FOUND'}: {''.join(last)}", flush=True)  # noqa: T201
        failed += code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
