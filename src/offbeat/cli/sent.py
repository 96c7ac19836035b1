"""What has left a site or a helper, as `offbeat audit` shows its record."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from offbeat.cli.console import add_row, out, plain_table
from offbeat.core.printable import printable
from offbeat.net.client.sent_lines import DAMAGED, RUN, has_sent_lines, sent_lines
from offbeat.units import size_text

_IN_TOTALS = ("at", "run", "kind", "bytes", "count")


def show_sent(directory: Path, begin: str, *, as_json: bool) -> None:
    """Print the totals of what has left, by run and kind; with a beginning also its lines.

    Args:
        directory: The state directory of a site or a helper.
        begin: The time from which on lines are shown, as they write it. "" means all, and totals only.
        as_json: Print the lines as JSON, and nothing else.

    Raises:
        DamageError: The record is no file.
    """
    if not has_sent_lines(directory):
        out.print(f"{directory} has no record of what has left: nothing has, or it was moved", markup=False)
        return
    lines = [line for line in sent_lines(directory) if line.get("at", begin) >= begin]
    if as_json:
        for line in lines:
            print(msgspec.json.encode(line).decode())  # noqa: T201
        return
    for line in lines:
        if line["kind"] == RUN:
            out.print(_registration(line), markup=False, soft_wrap=True)
    out.print(_totals(lines))
    if begin:
        out.print(_table(lines))


def _registration(line: dict[str, Any]) -> str:
    """A registration in words, with the keys of the policy that say something."""
    policy = line.get("policy")
    keys = policy.items() if isinstance(policy, dict) else ()
    policy_text = ", ".join(f"{name} {value}" for name, value in keys if value not in (None, [], ()))
    who = "a helper" if line.get("client") is None else f"client {line['client']}"
    what = f"algorithm {line.get('algorithm')}, model {line.get('model')}, plan {line.get('plan')}"
    text = f"{line['at']}: {who} of run {line['run']}: {what}"
    return printable(f"{text}; policy: {policy_text}" if policy_text else text)


def _totals(lines: Iterable[dict[str, Any]]) -> Any:
    """The table of totals. Runs and kinds are in the order of their first lines."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] != RUN:
            groups.setdefault((line.get("run") or "–", line["kind"]), []).append(line)
    runs = list(dict.fromkeys(run for run, _ in groups))
    table = plain_table("run", "kind", "messages", "bytes", "first", "last")
    for run, kind in sorted(groups, key=lambda group: runs.index(group[0])):
        own = groups[run, kind]
        first, last = own[0].get("since") or own[0].get("at"), own[-1].get("at")
        messages = "–" if kind == DAMAGED else str(sum(line.get("count", 1) for line in own))
        size = size_text(sum(line.get("bytes", 0) for line in own))
        cells = (run, kind, messages, size, first or "–", last or "–")
        add_row(table, *(printable(str(cell)) for cell in cells))
    return table


def _table(lines: Iterable[dict[str, Any]]) -> Any:
    """The table of the lines."""
    table = plain_table("time", "run", "kind", "bytes", "what")
    for line in lines:
        if line["kind"] == RUN:
            continue
        fields = line.get("fields")
        told = {name: value for name, value in line.items() if name not in (*_IN_TOTALS, "fields")}
        if line.get("count"):
            told["count"] = line["count"]
        what = [f"{name} {value}" for name, value in told.items()]
        what += [f"has {', '.join(map(str, fields))}"] if isinstance(fields, list) and fields else []
        when, run = line.get("at") or "–", line.get("run") or "–"
        cells = (when, run, line["kind"], line.get("bytes", 0), "; ".join(what))
        add_row(table, *(printable(str(cell)) for cell in cells))
    return table
