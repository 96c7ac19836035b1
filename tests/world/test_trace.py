"""Worlds from CSV files: what is read, what is refused, and that a world survives being written as one."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.world.fit import fit_world
from offbeat.world.trace import read_trace, trace_section, trace_text
from tests.sampling import examples
from tests.sim.sim_worlds import CALM, digits, make, outcome

GOLDEN = """\
# Four phones, one afternoon; "seconds" since noon
client,seconds_per_step,up,down,latency,from,until

2,0.25,2e6,1.6e7,0.08,0,3600
0,0.5,,8000000,,60,
2,,,,,7200,9000
,,,,,,
  # nobody has seen this one leave
1,1.5,1e6, ,0.5,,
2,0.25,2000000,,,5400,7200
3,4,,,,,600
"""
WORLD = ob.World(
    [0.5, 1.5, 0.25, 4.0],
    4,
    network=ob.Network(
        latency=[0.0, 0.5, 0.08, 0.0], up=[None, 1e6, 2e6, None], down=[8e6, None, 1.6e7, None]
    ),
    availability=ob.Availability(
        intervals=[[(60, None)], [(0, None)], [(0, 3600), (5400, 9000)], [(0, 600)]]
    ),
)


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str, encoding: str = "utf-8") -> Path:
        path = tmp_path / "phones.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return write


# ---- what is read ----


def test_a_recorded_afternoon(written: Any) -> None:
    assert read_trace(written(GOLDEN)) == WORLD


def test_line_ends_and_a_mark_of_the_encoding_do_not_matter(written: Any) -> None:
    assert read_trace(written(GOLDEN.replace("\n", "\r\n"), "utf-8-sig")) == WORLD


def test_what_is_left_out_is_as_in_a_world(written: Any) -> None:
    assert read_trace(written("client\n0\n1\n2\n")) == ob.World(clients=3)
    assert read_trace(written("client,from,until,up,jitter,latency\n0,,,,,\n1,,,,,\n")) == ob.World(clients=2)
    assert read_trace(written("client,jitter,dropout\n0,0.1,\n1,,0.5\n")) == ob.World(
        clients=2, jitter=[0.1, 0.0], availability=ob.Availability(dropout=[0.0, 0.5])
    )


def test_a_section_has_the_columns_that_are_there(written: Any) -> None:
    assert trace_section(written("client,up,until\na,,5\nb,1e3,\n")) == {
        "clients": 2,
        "network": {"up": [None, 1000.0]},
        "availability": {"intervals": [[(0.0, 5.0)], [(0.0, None)]]},
    }


def test_names_are_numbered_as_they_come(written: Any) -> None:
    text = 'client,seconds_per_step,from,until\nphone,3,,1\n"tablet, old",1,,\nphone,,2,\n7a,2,,\n"#1",4,,\n'
    assert read_trace(written(text)).seconds_per_step == [3.0, 1.0, 2.0, 4.0]


def test_numbers_are_the_clients_whatever_their_order_and_zeros(written: Any) -> None:
    text = "client,seconds_per_step,from,until\n002,2,0,1\n0,5,,\n1,1,,\n2,,1.5,2\n"
    world = read_trace(written(text))
    assert world.seconds_per_step == [5.0, 1.0, 2.0]
    assert world.availability.intervals == [[(0, None)], [(0, None)], [(0, 1), (1.5, 2)]]


def test_intervals_may_come_in_any_order_and_those_that_touch_are_one(written: Any) -> None:
    text = "client,from,until\n0,20,30\n0,5,10\n0,0,5\n0,50,\n0,40,45\n"
    assert read_trace(written(text)).availability.intervals == [[(0, 10), (20, 30), (40, 45), (50, None)]]
    whole = "client,from,until\n0,5,\n0,,5\n"
    assert read_trace(written(whole)).availability.always


# ---- what is refused ----

WRONG = {
    "column 'ups' is unknown; did you mean \"up\"?": "client,ups\n0,1\n",
    "line 1: column 'client;up' is unknown; columns are separated by commas": "client;up\n0;1\n",
    "line 1: column '' is unknown": ",client\n0,0\n",
    "line 1: column up is there twice": "client,up,up\n0,1,1\n",
    "line 2: column client is missing": "# phones\nup,down\n1,1\n",
    "line 1: column client is missing": "",
    "there is no client: give a row for each": "client,up\n# none\n",
    "line 3: 1 cells for 2 columns": "client,up\n0,1\n1\n",
    "line 2: 3 cells for 2 columns": "client,up\n0,1,\n",
    "line 4: up = '0' is not allowed: should be greater than 0": "client,up\n0,1\n\n1,0\n",
    "line 2: down = '-1' is not allowed": "client,down\n0,-1\n",
    "line 2: seconds_per_step = '0.0' is not allowed": "client,seconds_per_step\n0,0.0\n",
    "line 2: seconds_per_step = 'nan' is not allowed: should be a finite": "client,seconds_per_step\n0,nan\n",
    "line 2: up = 'inf' is not allowed: should be a finite": "client,up\n0,inf\n",
    "line 2: up = '1e999' is not allowed": "client,up\n0,1e999\n",
    "line 2: up = '10 Mbit' is not allowed: should be a valid number": "client,up\n0,10 Mbit\n",
    "line 2: up = '1_0' is not allowed: should be a valid number": "client,up\n0,1_0\n",
    "line 2: latency = '-0.1' is not allowed": "client,latency\n0,-0.1\n",
    "line 2: latency = 'nan' is not allowed": "client,latency\n0,nan\n",
    "line 2: jitter = '1.5' is not allowed": "client,jitter\n0,1.5\n",
    "line 2: jitter = 'nan' is not allowed": "client,jitter\n0,nan\n",
    "line 2: dropout = '1' is not allowed: should be less than 1": "client,dropout\n0,1\n",
    "line 2: from = '-5' is not allowed": "client,from\n0,-5\n",
    "line 2: from = 'inf' is not allowed": "client,from\n0,inf\n",
    "line 2: until = '0' is not allowed": "client,until\n0,0\n",
    "line 2: until = 5.0 is not allowed: should be above from = 5.0": "client,from,until\n0,5,5\n",
    "line 3: until = 4.0 is not allowed: should be above from": "client,from,until\n0,1,2\n0,5,4\n",
    "line 3: client '0' is present from 4.0 until 9.0, and from 0.0 until 5.0 in another row":
        "client,from,until\n0,0,5\n0,4,9\n",
    "line 4: client '0' is present from 1.0 until 2.0, and from 0.0 until 5.0 in another row":
        "client,from,until\n0,7,9\n0,0,5\n0,1,2\n",
    "line 4: client '0' is present from 6.0 until 8.0, and from 7.0 until 9.0 in another row":
        "client,from,until\n0,7,9\n0,0,5\n0,6,8\n",
    "line 4: client '0' is present from 0.0 until the end, and from 7.0 until 9.0":
        "client,from,until\n0,7,9\n1,,\n0,,\n",
    "line 3: client 'a' is present from 0.0 until the end, and from 0.0 until the end":
        "client,up\na,1\na,1\n",
    "line 3: up = 2 is not allowed: another row of client 'a' says 1.0, and a client has one up":
        "client,up,from,until\na,1,0,1\na,2,3,4\n",
    "line 2: seconds_per_step is blank in all rows of this client":
        "client,seconds_per_step,from,until\n1,,0,1\n0,1,,\n1,,2,3\n",
    "line 3: client is blank": "client,up\n0,1\n,1\n",
    "client 1 is missing: 3 clients with numbers are 0 to 2; numbers that are only": "client\n0\n2\n3\n",
    "client 0 is missing: 1 clients": "client\n48213\n",
    "line 2: client = '-1' is not allowed: should be a whole number from 0": "client\n-1\n",
    "line 2: client = '1.0' is not allowed": "client\n1.0\n",
    "line 2: client = 'nan' is not allowed": "client\nnan\n",
    "line 4: client = '1O' is not allowed beside client '0' of line 3": "client\n\n0\n1O\n",
    "line 3: client = '1' is not allowed beside client 'phone' of line 2": "client\nphone\n1\n",
    "line 3: unexpected end of data": 'client,up\n"0,1\n1,1\n',
}  # fmt: skip


@pytest.mark.parametrize(("words", "text"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_told_with_its_place(words: str, text: str, written: Any) -> None:
    path = written(text)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_of_two_lines_is_told_in_one(written: Any) -> None:
    with pytest.raises(UsageError) as caught:
        read_trace(written('client\n"a\nb"\n"a\nb"\n'))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, written: Any) -> None:
    for path in (tmp_path / "none.csv", tmp_path, written("client\n0\n", "utf-16")):
        with pytest.raises(UsageError, match=f"trace {path} cannot be read"):
            read_trace(path)


# ---- what is written ----


@st.composite
def worlds(draw: st.DrawFn) -> ob.World:
    """Worlds as a reader makes them: a list says something, and intervals are not all of them always."""
    clients = draw(st.integers(1, 6))
    some = st.booleans()

    def numbers(kind: st.SearchStrategy[Any]) -> Any:
        return st.lists(kind, min_size=clients, max_size=clients)

    positive = st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False)
    link = numbers(st.none() | positive).filter(any)
    moments = st.lists(st.floats(0, 1e9), min_size=2, max_size=8, unique=True).map(sorted)

    def spans(times: list[float]) -> list[tuple[float, float | None]]:
        pairs = list(pairwise(times))[::2]
        return [(a, b) for a, b in pairs[:-1]] + [(pairs[-1][0], draw(st.none() | st.just(pairs[-1][1])))]

    intervals = numbers(moments.map(spans)).filter(lambda own: any(one != [(0.0, None)] for one in own))
    return ob.World(
        draw(numbers(positive)) if draw(some) else ob.World().seconds_per_step,
        clients,
        jitter=draw(numbers(st.floats(0, 1))) if draw(some) else 0.0,
        network=ob.Network(
            latency=draw(numbers(st.floats(0, 1e9))) if draw(some) else 0.0,
            up=draw(link) if draw(some) else None,
            down=draw(link) if draw(some) else None,
        ),
        availability=ob.Availability(
            dropout=draw(numbers(st.floats(0, 1, exclude_max=True))) if draw(some) else 0.0,
            intervals=draw(intervals) if draw(some) else None,
        ),
    )


@examples(200)
@given(world=worlds())
def test_a_world_survives_its_trace(world: ob.World, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "world.csv"
    path.write_text(trace_text(world), encoding="utf-8")
    assert read_trace(path) == world


def test_one_number_for_all_is_written_for_each() -> None:
    world = ob.World(2.0, 2, jitter=0.1, network=ob.Network(up=1e6))
    assert (
        trace_text(world) == "client,seconds_per_step,jitter,up\n0,2.0,0.1,1000000.0\n1,2.0,0.1,1000000.0\n"
    )


def test_a_fitted_world_can_be_written(written: Any) -> None:
    world = ob.World(
        [0.5, 1.0, 2.0], jitter=0.1, network=ob.Network(latency=[0.0, 9.0, 0.5]),
        availability=ob.Availability(dropout=0.1, intervals=[[(0, None)], [(0, 30), (50, None)], [(10, 99)]]),
    )  # fmt: skip
    run = ob.simulate(ob.fedcompass(4, 20), world, until=ob.Until(tasks=300))
    fit = fit_world(run.rows(), 3).world
    assert fit.jitter != 0.0
    assert fit.availability.intervals is not None
    assert read_trace(written(trace_text(fit))) == fit


@pytest.mark.parametrize(
    ("words", "world"),
    [
        ("world.seconds_per_step cannot", ob.World(ob.laws.Normal(1.0), 2)),
        ("world.seconds_per_step cannot", ob.World([[1.0, 2.0], [1.0]])),
        ("world.seconds_per_step cannot", ob.World(lambda client, task: 1.0, 2)),
        ("world.change cannot", ob.World(clients=2, change=0.5)),
        ("world.channel cannot", ob.World(clients=2, channel=ob.Channel())),
        ("world.network.delay cannot", ob.World(clients=2, network=ob.Network(delay=ob.laws.Constant(1.0)))),
        ("world.network.up cannot", ob.World(clients=2, network=ob.Network(up=ob.laws.Constant(1.0)))),
        ("world.availability.join cannot", ob.World(clients=2, availability=ob.Availability(join=1.0))),
        ("world.availability.period cannot", ob.World(clients=2, availability=ob.Availability(period=1.0))),
        ("client 1 is never", ob.World(clients=2, availability=ob.Availability(intervals=[[(0, 1)], []]))),
        ("world.clients is missing", ob.World()),
    ],
)  # fmt: skip
def test_what_a_trace_cannot_say_is_not_dropped(words: str, world: ob.World) -> None:
    with pytest.raises(UsageError, match=words):
        trace_text(world)


# ---- what is simulated ----


def test_a_trace_is_simulated_as_the_world_written_by_hand(written: Any) -> None:
    """Bit for bit: rows, measurements and model."""
    text = (
        "client,seconds_per_step,up,down,latency,from,until\n"
        "0,1,1e6,,0.1,,\n1,1.5,,2e6,,,\n2,2,1e5,1e6,,5,40\n2,,,,,60,\n3,3,,,0.2,,\n4,7,3e5,,,0,70\n"
    )
    by_hand = ob.World(
        [1.0, 1.5, 2.0, 3.0, 7.0], 5, jitter=0.2, channel=CALM.channel,
        network=ob.Network(
            latency=[0.1, 0.0, 0.0, 0.2, 0.0],
            up=[1e6, None, 1e5, None, 3e5], down=[None, 2e6, 1e6, None, None],
        ),
        availability=ob.Availability(
            dropout=0.1, intervals=[[(0, None)], [(0, None)], [(5, 40), (60, None)], [(0, None)], [(0, 70)]]
        ),
    )  # fmt: skip
    traced = read_trace(written(text))
    traced = replace(
        traced, jitter=0.2, channel=CALM.channel, availability=replace(traced.availability, dropout=0.1)
    )
    assert traced == by_hand
    learner = digits()
    for name in ("fedcompass", "fedbuff"):
        one, two = (
            outcome(ob.simulate(make(name), world, learner, seed=1, until=ob.Until(seconds=100)))
            for world in (traced, by_hand)
        )
        assert one == two


def test_a_free_link_among_others_takes_no_time() -> None:
    bits = 8_000
    world = ob.World([1.0, 1.0], network=ob.Network(up=[None, bits / 4.0], down=[bits / 2.0, None]))
    run = ob.simulate(
        ob.fedasync(steps=3), world, ob.NoTraining(2, parameters=bits // 32), until=ob.Until(tasks=2)
    )
    arrived = {e["client"]: e["t"] for e in run.entries("arrived")}
    assert arrived == {0: 5.0, 1: 7.0}


def test_who_is_there_is_who_trains(written: Any) -> None:
    world = read_trace(written("client,seconds_per_step,from,until\na,1,0,10\nb,1,20,\na,,30,40\n"))
    run = ob.simulate(ob.fedasync(steps=2), world, until=ob.Until(seconds=60))
    moments = [(e["client"], e["t"]) for e in run.entries("arrived")]
    assert [t for client, t in moments if client == 0] == [2, 4, 6, 8, 10, 32, 34, 36, 38, 40]
    assert next(t for client, t in moments if client == 1) == 22
