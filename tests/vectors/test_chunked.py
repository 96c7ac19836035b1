"""Arithmetic on several cores: the same pieces, so the same bits."""

from threading import Lock, get_ident

import pytest
import torch

import offbeat as ob
from offbeat.core.commands import Aggregate
from offbeat.core.global_model import GlobalModel
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from offbeat.vectors import chunked

SIZE = 2 * chunked.LONG + 12_345  # the last piece is odd
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 1000])
@pytest.mark.parametrize("size", [0, 1, chunked.CHUNK, chunked.CHUNK + 1, SIZE])
def test_every_piece_once_and_the_same_ones(cores: int, size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunked, "usable_cores", lambda: cores)
    numbers, seen, lock = torch.arange(size), list[tuple[int, int]](), Lock()

    def note(piece: torch.Tensor) -> None:
        with lock:
            seen.append((int(piece[0]) if len(piece) else 0, len(piece)))

    chunked.for_each_chunk(note, numbers)
    starts = range(0, size, chunked.CHUNK) or [0]
    assert sorted(seen) == [(start, min(chunked.CHUNK, size - start)) for start in starts]


def test_long_vectors_are_shared_and_others_are_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunked, "usable_cores", lambda: 2)

    def threads(size: int) -> set[int]:
        seen = set[int]()
        chunked.for_each_chunk(lambda piece: seen.add(get_ident()), torch.zeros(size))
        return seen

    assert threads(chunked.LONG - 1) == {get_ident()}
    assert get_ident() not in threads(SIZE)
    torch.set_num_threads(2)  # PyTorch shares them out itself
    assert threads(SIZE) == {get_ident()}


def test_an_error_comes_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunked, "usable_cores", lambda: 2)

    def fail(piece: torch.Tensor) -> None:
        if piece[-1] == SIZE - 1:
            raise ArithmeticError("the last piece")

    with pytest.raises(ArithmeticError, match="the last piece"):
        chunked.for_each_chunk(fail, torch.arange(SIZE))


@pytest.mark.parametrize(
    "algorithm",
    [ob.fedavg(steps=1), ob.fedbuff(2, steps=1), ob.fedasync(steps=1), ob.fedfa(1, steps=1),
     ob.fedadam(steps=1), ob.fedasmu(steps=2), ob.port(1, 2, steps=1)],
    ids=lambda algorithm: algorithm.name,
)  # fmt: skip
def test_the_number_of_cores_changes_no_bit(algorithm: ob.Algorithm, monkeypatch: pytest.MonkeyPatch):
    def bits(cores: int) -> bytes:
        monkeypatch.setattr(chunked, "usable_cores", lambda: cores)
        generator = torch.Generator().manual_seed(0)
        start = Model(
            Layout.flat(SIZE), torch.randn(SIZE, generator=generator), torch.zeros(0, dtype=torch.int64)
        )
        tensors = GlobalModel(algorithm, start)
        for round_ in range(2):
            for task in (2 * round_, 2 * round_ + 1):
                tensors.dispatch(task)
                done = Task(task, task % 2, round_, 3, 0.0, 0, 4 + task, 0.3, task, 2)
                tensors.arrive(
                    done, LocalResult(torch.randn(SIZE, generator=generator), start.integers, lr=0.1)
                )
            tensors.aggregate(Aggregate((2 * round_, 2 * round_ + 1), version=round_ + 1))
        return tensors.model.values.numpy().tobytes()

    alone = bits(1)
    assert alone == bits(2) == bits(3)
