"""The command line of a benchmark: a function whose parameters are the options, and which yields rows.

    from harness import Rows, main

    def codecs(sizes: tuple[float, ...] = (1e6, 1e7), repeats: int = 1) -> Rows:
        for size in sizes:
            yield {"size": size}, lambda: {"s": least(repeats, work)}

    main(codecs)  # where the file is the program

A parameter is an option of its name, type and default: a bool is a flag, a tuple takes several words, a
`Literal` is one of its values, and a parameter without a default must be given. The help is the module's
docstring. Each row is printed as soon as it is there, as a line of a Markdown table; other columns begin
another table. A row is a mapping, or a mapping of what it is about and a function that measures the rest.
With `--out FILE` the rows are in a CSV file too, and what that has already is not measured again.
"""

import argparse
import csv
import inspect
import json
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

sys.path.insert(0, str(Path(__file__).parents[1]))  # a benchmark may use what tests have

K, T = TypeVar("K"), TypeVar("T")
Row = Mapping[str, Any]
Rows = Iterator[Row | tuple[Row, Callable[[], Row]]]


def main(benchmark: Callable[..., Rows], summary: Callable[[Sequence[Row]], str] | None = None) -> None:
    """Run a benchmark with the options of the command line.

    Args:
        benchmark: Its docstring may say in a line of its own what a parameter is, as this one does.
        summary: A text about all rows, whose values are texts; it is printed at the end.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules[benchmark.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    helps = dict(re.findall(r"^ +(\w+): (.+)$", benchmark.__doc__ or "", re.MULTILINE))
    for parameter in inspect.signature(benchmark, eval_str=True).parameters.values():
        required = parameter.default is parameter.empty
        more = {"help": helps.get(parameter.name), **_accepted(parameter.annotation)}
        more |= {"required": True} if required else {"default": parameter.default}
        parser.add_argument(f"--{parameter.name.replace('_', '-')}", **more)
    parser.add_argument("--out", type=Path, help="CSV file of the rows; what it has is not measured again")
    options = vars(parser.parse_args())
    out: Path | None = options.pop("out")
    rows = list(_read(out)) if out is not None and out.exists() else []
    known, columns = rows[:], []
    for item in benchmark(**options):
        key, measure = item if isinstance(item, tuple) else (item, dict)
        row = next((row for row in known if _texts(key).items() <= row.items()), None)
        if row is None:
            row = {**key, **measure()}
            rows.append(_texts(row))
            if out is not None:
                _write(out, rows)
        lines = markdown([list(row), [shown(value) for value in row.values()]]).splitlines()
        print("\n".join(lines[2:] if columns == list(row) else ["" for _ in columns[:1]] + lines), flush=True)
        columns = list(row)
    if summary is not None:
        print(f"\n{summary(rows)}")


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table, whose first row has its heads."""
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def _accepted(kind: Any) -> dict[str, Any]:
    """What argparse is told of a parameter's type."""
    if get_origin(kind) in (Union, types.UnionType):  # `int | None`
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is tuple:
        return {"nargs": "+", **_accepted(get_args(kind)[0])}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    return {"type": kind}


def shown(value: object) -> str:
    """A value in a table: a number with three digits, or all before its point."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "–" if value is None else f"{value:,}" if type(value) is int else str(value)


def _texts(row: Row) -> dict[str, str]:
    """A row as a CSV file gives it back."""
    return {name: "" if value is None else str(value) for name, value in row.items()}


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write all rows to a file that takes the place of the earlier one: a column may be new."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


# ---- measuring ----


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def least(repeats: int, call: Callable[[], object]) -> float:
    """The least seconds of so many calls: what else a machine does only adds to them."""
    return min(seconds_of(call) for _ in range(repeats))


def in_turns(repeats: int, cases: Mapping[K, Callable[[], T]]) -> dict[K, list[T]]:
    """What so many calls of each case give. The cases take turns, so that all meet the same load."""
    turns = [{name: call() for name, call in cases.items()} for _ in range(repeats)]
    return {name: [turn[name] for turn in turns] for name in cases}


def ratios(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each turn."""
    return [own / other for own, other in zip(times, others, strict=True)]


def spread(values: Sequence[float]) -> str:
    """The median of some values, with their range."""
    return f"{shown(median(values))} ({shown(min(values))} to {shown(max(values))})"


def new_process(function: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
    """What a function of a benchmark gives in an interpreter of its own; arguments and value are JSON's."""
    file = Path(inspect.getfile(function)).resolve()
    call = f"{file.stem}.{function.__name__}(*json.loads(sys.argv[1]))"
    code = f"import json, sys, {file.stem}; print(json.dumps({call}))"
    paths = [environment.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", ""), str(file.parent)]
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
