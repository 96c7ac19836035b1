"""Small bar charts, one above the other on a common axis: a panel for each label."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

from offbeat.core.client_times import TimeShares
from offbeat.report.activity import Activity
from offbeat.report.distributions import StalenessHistogram, participation, staleness_histograms
from offbeat.report.labels import shortened
from offbeat.report.render import Cells
from offbeat.runs.record import RunRecord
from offbeat.units import number_text, plain_text

_LONGEST = 48
MOST_TICKS = 12


@dataclass(frozen=True, slots=True)
class Panel:
    """One label's bars, in percent.

    Attributes:
        label: The label, by which it is coloured.
        title: Its heading.
        x: The middle of each bar.
        width: Width of a bar, in units of x.
        heights: Height of each bar in percent.
        names: What each bar is about.
        dashes: Height in percent of a dash at each bar; none where there is nothing to compare with.
        ticks: Text of the tick below each bar; none where ticks are numbers of the axis.
    """

    label: str
    title: str
    x: tuple[float, ...]
    width: float
    heights: tuple[float, ...]
    names: tuple[str, ...]
    dashes: tuple[float, ...] = ()
    ticks: tuple[str, ...] = ()


def staleness_panels(activities: Mapping[str, Sequence[Activity]]) -> list[Panel]:
    """Make a panel of each label's histogram of staleness, a bar for each bin.

    Args:
        activities: The totals of each label's runs.
    """
    return [_staleness_panel(histogram) for histogram in staleness_histograms(activities)]


def participation_panels(
    groups: Mapping[str, Sequence[RunRecord]], activities: Mapping[str, Sequence[Activity]]
) -> list[Panel]:
    """Make a panel of each label's lowest seed: a bar for each client's updates, a dash for its samples.

    Args:
        groups: The runs of each label, by seed.
        activities: Their totals.
    """
    parts = [participation(runs[0], activities[label][0]) for label, runs in groups.items()]
    return [
        Panel(
            label=part.label,
            title=f"{shortened(part.label, _LONGEST)} · seed {part.seed}"
            + (f" · {part.note}" if part.note else ""),
            x=part.clients,
            width=0.75,
            heights=_percent(part.task_shares),
            names=tuple(f"{part.name(c)}, {n} tasks" for c, n in zip(part.clients, part.tasks, strict=True)),
            dashes=_percent(part.sample_shares),
            ticks=tuple(shortened(part.names.get(c, str(c)), 14) for c in part.clients),
        )
        for part in parts
    ]


def times_tables(
    groups: Mapping[str, Sequence[RunRecord]], activities: Mapping[str, Sequence[Activity]]
) -> list[tuple[str, Cells]]:
    """Make a table of each label's lowest seed: what each client did with its time, in percent.

    Args:
        groups: The runs of each label, by seed.
        activities: Their totals.
    """
    tables = []
    for label, runs in groups.items():
        names, times = runs[0].client_names(), activities[label][0].times
        rows = tuple(
            (names.get(client, f"client {client}"), *(f"{100 * share:.1f}" for share in astuple(own)))
            for client, own in sorted(times.items())
        )
        tables.append((label, Cells(("client", *(f"{on.name} (%)" for on in fields(TimeShares))), rows)))
    return tables


def ticks_of(panels: Sequence[Panel]) -> dict[float, str] | None:
    """The text of each tick of the panels' common axis, by place; None where the axis has numbers.

    With many bars the texts would overlap, so that an axis with more than `MOST_TICKS` has numbers.
    """
    ticks = {x: text for panel in panels for x, text in zip(panel.x, panel.ticks, strict=False)}
    return dict(sorted(ticks.items())) if 0 < len(ticks) <= MOST_TICKS else None


def _staleness_panel(histogram: StalenessHistogram) -> Panel:
    width, mean = histogram.width, histogram.mean
    starts = [k * width for k in range(len(histogram.shares))]
    most = len(starts) * width - 1
    older = f"{plain_text(100 * histogram.beyond, 2)} % above {most}" if histogram.beyond else ""
    return Panel(
        label=histogram.label,
        title=_title(histogram.label, "no updates" if mean is None else f"mean {number_text(mean)}", older),
        x=tuple(start + (width - 1) / 2 for start in starts),
        ticks=tuple(map(str, starts)) if width == 1 else (),
        width=0.86 * width,
        heights=_percent(histogram.shares),
        names=tuple(f"staleness {s}" if width == 1 else f"staleness {s}-{s + width - 1}" for s in starts),
    )


def _title(label: str, *facts: str) -> str:
    return " · ".join([shortened(label, _LONGEST), *filter(None, facts)])


def _percent(shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(100 * share for share in shares)
