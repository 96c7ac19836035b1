"""How a task's time divides, and that no site can say more than the server saw."""

from dataclasses import astuple

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import astuple as parts_of

from offbeat.core.client_times import ClientTimes
from offbeat.core.events import Line
from offbeat.core.journal import Row
from offbeat.net.server.line import line_of
from tests.sampling import examples

SECONDS = st.floats(0, 1e9)


def test_the_time_before_the_first_parts_is_that_of_messages() -> None:
    assert line_of(20.0, took=4.0, received=3.0, trained=11.0) == Line(4.0, 11.0, 5.0, 1.0)


def test_a_site_that_tells_nothing_has_trained_until_its_update_came() -> None:
    assert line_of(20.0, took=4.0, received=0.0, trained=0.0) == Line(0.0, 16.0, 4.0, 0.0)


@examples(200)
@example(seconds=0.0, took=0.0, received=0.0, trained=0.0)
@given(seconds=SECONDS, took=SECONDS, received=SECONDS, trained=SECONDS)
def test_what_a_site_tells_is_bounded_by_what_the_server_saw(
    seconds: float, took: float, received: float, trained: float
) -> None:
    line = line_of(seconds, took, received, trained)
    if line is None:  # no message took any time
        assert min(took, seconds) == 0
        return
    assert min(parts_of(line)) >= 0
    assert line.sent >= min(took, seconds)
    assert line.received + line.trained + line.sent <= seconds * (1 + 1e-9)
    times = ClientTimes()
    data = {f"line.{name}": value for name, value in zip(line.__struct_fields__, parts_of(line), strict=True)}
    rows = ("joined", 0.0, None), ("begin", 0.0, None), ("train", 0.0, None), ("arrived", seconds, data)
    for n, (name, t, told) in enumerate(rows):
        times.feed(Row(n, t, "event", name, None if name == "begin" else 0, 1, steps=1, data=told))
    shares = times.shares(0, seconds + 1)
    if shares is not None:
        assert min(astuple(shares)) >= 0
        assert abs(sum(astuple(shares)) - 1) < 1e-6
