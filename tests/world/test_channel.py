"""The radio channel: its laws against theory, Eq. 8 by hand, and draws that depend on nothing but their key.

Statistical tests allow 5 standard errors (see test_laws.py).
"""

from math import exp, log, log2, sqrt
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from offbeat.core.errors import UsageError
from offbeat.world.channel import Channel, LargeScale, Radio, Rayleigh, Rician, Shadowing, Trace
from offbeat.world.laws import Constant, LogNormal, Uniform

N = 4_000


def radio(seed: int = 0, **options: Any) -> Radio:
    return Radio(Channel(**options), seed)


def gains(of: Radio) -> np.ndarray:
    """40 clients in 100 iterations."""
    return np.array([of.gain(client, t) for client in range(40) for t in range(N // 40)])


def check(values: np.ndarray, mean: float, std: float) -> None:
    assert abs(values.mean() - mean) < 5 * std / sqrt(len(values))


# ---- fading ----


def test_rayleigh_gains_are_exponential():
    h2 = gains(radio())
    check(h2, 1.0, 1.0)
    check(h2**2, 2.0, sqrt(20))  # E h⁸ − (E h⁴)² = 24 − 4
    for level in (0.1, 0.5, 1.0, 3.0):
        check(h2 > level, exp(-level), sqrt(exp(-level) * (1 - exp(-level))))


@pytest.mark.parametrize("k", [0.0, 1.0, 10.0, 1e6])
def test_rician_gains_have_mean_1_and_fade_less_with_k(k):
    h2 = gains(radio(fading=Rician(k)))
    std = sqrt(1 + 2 * k) / (k + 1)  # of a noncentral χ² with two degrees of freedom, scaled to mean 1
    check(h2, 1.0, std)
    assert h2.std() == pytest.approx(std, rel=0.1)


def test_rician_without_a_direct_path_is_rayleigh():
    h2 = gains(radio(fading=Rician(0.0)))
    for level in (0.1, 0.5, 1.0, 3.0):
        check(h2 > level, exp(-level), sqrt(exp(-level) * (1 - exp(-level))))


def test_a_trace_is_followed_and_begins_again():
    of = radio(fading=Trace([[1.0, 0.5, 0.25], [2.0]]))
    assert [of.gain(0, t) for t in range(7)] == [1.0, 0.5, 0.25, 1.0, 0.5, 0.25, 1.0]
    assert [of.gain(1, t) for t in range(3)] == [2.0, 2.0, 2.0]


# ---- shadowing ----


@pytest.mark.parametrize("per", ["client", "draw"])
def test_shadowing_is_normal_in_db(per):
    plain, shadowed = radio(), radio(fading=Rayleigh(Shadowing(8.0, per)))
    where = [
        (c, t) for c in range(N if per == "client" else 10) for t in range(1 if per == "client" else 400)
    ]
    ratio = [
        (shadowed.snr(c) * shadowed.gain(c, t)) / (plain.snr(c) * plain.gain(c, t)) for c, t in where
    ]  # the same fading lies beneath
    db = 10 * np.log10(ratio)
    check(db, 0.0, 8.0)
    assert db.std() == pytest.approx(8.0, rel=0.06)


def test_shadowing_per_client_stays_and_per_draw_does_not():
    trace = [[1.0]] * 3
    stays = radio(fading=Trace(trace, Shadowing(6.0)))
    assert len({stays.capacity(0, t) for t in range(20)}) == 1
    assert len({stays.capacity(c, 0) for c in range(3)}) == 3
    moves = radio(fading=Trace(trace, Shadowing(6.0, "draw")))
    assert len({moves.capacity(0, t) for t in range(20)}) == 20
    assert moves.snr(0) == moves.snr(1)


def test_shadowing_of_0_db_is_none():
    plain = [radio().capacity(c, t) for c in range(3) for t in range(3)]
    for per in ("client", "draw"):
        of = radio(fading=Rayleigh(Shadowing(0.0, per)))
        assert [of.capacity(c, t) for c in range(3) for t in range(3)] == plain


# ---- Eq. 8 ----


@pytest.mark.parametrize(
    ("snr_db", "h2", "bits"),
    [
        (0.0, 1.0, 1.0),  # log2(1 + 1)
        (0.0, 3.0, 2.0),
        (10.0, 1.5, 4.0),  # log2(1 + 15)
        (20.0, 0.63, 6.0),  # log2(1 + 63)
        (13.0, 1.0, log2(1 + 10**1.3)),
        (-100.0, 1.0, 1e-10 / log(2)),  # not lost in the 1
        (13.0, 0.0, 0.0),
    ],
)
def test_capacity_by_hand(snr_db, h2, bits):
    assert radio(snr_db=snr_db, fading=Trace([[h2]])).capacity(0, 0) == pytest.approx(bits, rel=1e-9)


def test_the_mean_capacity_of_the_papers_channel():
    # E log2(1 + SNR·X) for X ~ Exp(1) is e^(1/SNR) E1(1/SNR) / ln 2 = 3.740 at 13 dB
    of = radio()
    c = of.capacities(range(4000), 0)
    check(c, 3.73999, 1.48)


def test_snr_is_one_for_all_or_one_each():
    assert [radio().snr(c) for c in (0, 7)] == pytest.approx([10**1.3] * 2)
    assert [radio(snr_db=[0.0, 10.0, 20.0]).snr(c) for c in range(3)] == pytest.approx([1.0, 10.0, 100.0])


def test_large_scale_fading_and_powers():
    of = radio(snr_db=LargeScale(beta=[1e-9, 4e-9], noise=1e-12, power=[0.1, 0.2]))
    assert [of.snr(0), of.snr(1)] == pytest.approx([100.0, 800.0])  # P β / σ²
    assert radio(snr_db=LargeScale(beta=2e-11, noise=1e-12)).snr(5) == pytest.approx(2.0)
    drawn = radio(snr_db=LargeScale(beta=LogNormal(1e-10, 1.5), noise=1e-12, power=Uniform(0.1, 0.2)))
    ln = np.log([drawn.snr(c) for c in range(N)])
    power = 2 * log(0.2) - log(0.1) - 1  # E ln U(a, b) = (b ln b − a ln a) / (b − a) − 1
    check(ln, log(1e-10 / 1e-12) + power, sqrt(1.5**2 + 0.2**2))
    assert drawn.snr(3) == drawn.snr(3)
    fixed = radio(snr_db=LargeScale(beta=Constant(1e-10), noise=1e-12))
    assert fixed.snr(0) == pytest.approx(10.0)


# ---- draws depend on their key alone ----

KINDS = [
    Channel(),
    Channel(fading=Rician(3.0, Shadowing(4.0))),
    Channel(fading=Rayleigh(Shadowing(8.0, "draw"))),
    Channel(snr_db=LargeScale(LogNormal(1e-10), 1e-12, Uniform(0.1, 0.2)), fading=Rayleigh(Shadowing(8.0))),
]


@pytest.mark.parametrize("channel", KINDS, ids=range(len(KINDS)))
def test_any_order_gives_the_same(channel):
    where = [(client, t) for client in (0, 3, 1_000_000) for t in (0, 1, 500)]
    forward, backward = Radio(channel, 7), Radio(channel, 7)
    found = {key: forward.capacity(*key) for key in where}
    assert {key: backward.capacity(*key) for key in reversed(where)} == found
    assert {key: forward.capacity(*key) for key in where} == found  # asked again
    assert all(Radio(channel, 8).capacity(*key) != found[key] for key in where)
    assert len(set(found.values())) == len(where)


@pytest.mark.parametrize("channel", KINDS, ids=range(len(KINDS)))
def test_capacities_are_those_of_one_by_one(channel):
    of = Radio(channel, 1)
    clients = [5, 0, 2]
    together = Radio(channel, 1).capacities(clients, 4)
    assert together.dtype == np.float64
    assert together.tolist() == [of.capacity(c, 4) for c in clients]
    assert of.capacities([], 4).shape == (0,)


GOLDEN = [0.640470614111, 0.409682214687, 0.685756307282, 0.484385773816]


def test_golden_first_values():
    """Part of the format of a run: a change here makes recorded runs irreproducible."""
    assert [round(radio().gain(c, t), 12) for c in (0, 1) for t in (0, 1)] == GOLDEN


# ---- symbols ----


def test_symbols_are_counted_in_their_period():
    assert Channel().symbols_in(17.0) == 300_000
    channel = Channel(symbols=1000, period=5.0)
    assert [channel.symbols_in(s) for s in (5.0, 20.0, 2.5)] == [1000, 4000, 500]


# ---- what is refused ----


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"symbols": 0}, "symbols"),
        ({"period": 0.0}, "period"),
        ({"snr_db": float("nan")}, "snr_db"),
        ({"snr_db": 1000.0}, "snr_db"),
        ({"fading": {"law": "rician", "k": -1.0}}, "k"),
        ({"fading": {"law": "trace", "gains": [[1.0], []]}}, "gains"),
        ({"fading": {"law": "trace", "gains": [[-1.0]]}}, "gains"),
        ({"fading": {"law": "raleigh"}}, "law"),
        ({"fading": {"law": "rayleigh", "k": 1.0}}, "k"),
        ({"fading": {"law": "rayleigh", "shadowing": {"sigma_db": 8.0, "per": "task"}}}, "per"),
        ({"snr_db": {"beta": 0.0, "noise": 1.0}}, "beta"),
    ],
)
def test_options_out_of_range_are_refused(options, named):
    with pytest.raises(UsageError, match=named):
        Channel(**options)


@pytest.mark.parametrize(
    "channel",
    [*KINDS, Channel(50_000, 3.0, [1.0, 2.0], Trace([[1.0], [0.5, 0.0]], Shadowing(2.0, "draw")))],
    ids=range(len(KINDS) + 1),
)
def test_a_channel_comes_back_from_its_options(channel):
    channels = TypeAdapter(Channel)
    assert channels.validate_python(channels.dump_python(channel)) == channel


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"snr_db": [1.0, 2.0]}, "channel.snr_db"),
        ({"fading": Trace([[1.0], [1.0]])}, "channel.fading.gains"),
        ({"snr_db": LargeScale(beta=[1.0, 1.0], noise=1.0)}, "channel.snr_db.beta"),
        ({"snr_db": LargeScale(beta=1.0, noise=1.0, power=[1.0, 1.0])}, "channel.snr_db.power"),
    ],
)
def test_a_list_has_one_entry_per_client(options, named):
    channel = Channel(**options)
    channel.check(2)
    with pytest.raises(UsageError, match=f"{named} lists 2 values for 3 clients"):
        channel.check(3)
    with pytest.raises(UsageError, match=f"{named} lists 2 values and client 2 has none"):
        Radio(channel, 0).capacity(2, 0)


@pytest.mark.parametrize("where", [(-1, 0), (0, -1)])
def test_clients_and_iterations_count_from_0(where):
    with pytest.raises(UsageError, match="both count from 0"):
        radio().gain(*where)
