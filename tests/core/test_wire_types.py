"""Values are rounded as PyTorch rounds them; what does not fit is named."""

from dataclasses import replace

import pytest
import torch

import offbeat as ob
from offbeat.codec import Qsgd, Rounded, TopK
from offbeat.core.codec import update_bits
from offbeat.core.errors import RunError, UsageError
from offbeat.core.global_model import GlobalModel
from offbeat.core.layout import Entry
from offbeat.core.learner import LocalResult
from offbeat.core.schedule import Task
from offbeat.core.wire_types import FLOAT32, Wire

PRIVATE = ob.Privacy(clip=1.0, noise=ob.Noise(multiplier=1.0, budget=ob.Budget(epsilon=8.0)))
LAYOUT = ob.Layout((
    Entry("first.weight", (2, 2), "float32", "parameter"),
    Entry("second.bias", (3,), "float32", "parameter"),
    Entry("n", (), "int64", "integer"),
))  # fmt: skip


def model(*values: float) -> ob.Model:
    return ob.Model(LAYOUT, torch.tensor(values), torch.tensor([5]))


def test_golden_numbers() -> None:
    # bfloat16 keeps 8 bits: 1 + 2⁻⁸ is a tie, and goes to the even 1; 1 + 3 · 2⁻⁸ goes to 1 + 2⁻⁶.
    given = model(1 + 2**-8, 1 + 3 * 2**-8, 1 / 3, -65504.0, 1e-8, 0.0, -0.0)
    assert given.rounded("bfloat16").values.tolist() == [
        1.0, 1 + 2**-6, 0.333984375, -65536.0, 1.0011717677116394e-08, 0.0, -0.0,
    ]  # fmt: skip
    assert given.rounded("float16").values.tolist() == [
        1 + 2**-8, 1 + 3 * 2**-8, 0.333251953125, -65504.0, 0.0, 0.0, -0.0,
    ]  # fmt: skip
    assert given.rounded("float32") is given
    rounded = given.rounded("bfloat16")
    assert rounded.rounded("bfloat16") is rounded
    assert (rounded.number, rounded.integers.tolist()) == ("bfloat16", [5])


def test_a_value_that_is_too_large_is_named() -> None:
    with pytest.raises(RunError, match=r"wire\.down = float16: the tensor second.bias has the value 70000, "):
        model(1, 2, 3, 4, 5, 70000.0, 7).rounded("float16")
    # What is not finite before has diverged already.
    assert model(float("inf"), 2, 3, 4, 5, 6, 7).rounded("float16").values[0] == float("inf")


@pytest.mark.parametrize("given", ["bf16", "bfloat16"])
def test_the_short_names(given: str) -> None:
    assert Wire(down=given, up="fp16") == Wire(down="bfloat16", up="float16")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="down"):
        Wire(down="int4")  # type: ignore[arg-type]


def test_bytes() -> None:
    assert FLOAT32.model_bytes(LAYOUT) == 4 * 7 + 8
    assert Wire(down="float16").model_bytes(LAYOUT) == 2 * 7 + 8
    assert update_bits(None, LAYOUT) == 8 * (4 * 7 + 8)
    assert update_bits(Rounded(), LAYOUT) == 8 * (2 * 7 + 8)
    # Of the levels in Elias' code nobody knows the bits before.
    assert update_bits(Qsgd(coding="elias"), LAYOUT) == 8 * (4 * 7 + 8)


@pytest.mark.parametrize(
    ("wire", "seconds"), [(FLOAT32, 7.4), (Wire(down="bf16"), 5.8), (Wire(up="bf16"), 5.8)]
)
def test_a_link_takes_the_time_of_what_travels(wire: Wire, seconds: float) -> None:
    # A hundred values have 3,200 bits, or 1,600; the link carries 1,000 a second, and the step takes one.
    world = ob.World([1.0], network=ob.Network(up=1000.0, down=1000.0))
    learner, until = ob.NoTraining(1, parameters=100), ob.Until(versions=1)
    run = ob.simulate(ob.fedasync(steps=1), world, learner, until=until, evaluate=None, wire=wire)
    assert run.summary.seconds == pytest.approx(seconds)


def test_a_change_is_counted_from_what_was_sent() -> None:
    # The mean of models is that of the base that the client had, plus its change.
    first = model(1 + 2**-8, 0, 0, 0, 0, 0, 0)
    tensors = GlobalModel(ob.fedavg(steps=1), first, down="bfloat16")
    base = tensors.dispatch(0)
    assert base.values[0] == 1.0
    assert tensors.model.values[0] == 1 + 2**-8
    task = Task(0, 0, 0, 1, 0.0, 10, arrival=0)  # type: ignore[call-arg]
    tensors.arrive(task, LocalResult(torch.tensor([0.5, 0, 0, 0, 0, 0, 0]), torch.tensor([5])))
    assert tensors.updates[0].base is base


def test_privacy_and_other_codecs_refuse_the_rounding_of_updates() -> None:
    with pytest.raises(UsageError, match=r"wire\.up = bfloat16 does not go with privacy"):
        ob.Experiment(ob.fedbuff(size=2, steps=1), privacy=PRIVATE, wire=Wire(up="bfloat16"))
    coded = replace(ob.fedbuff(size=2, steps=1), codec=TopK())
    with pytest.raises(UsageError, match="has the codec top_k"):
        ob.Experiment(coded, wire=Wire(up="bfloat16"))
