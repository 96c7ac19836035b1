"""How fast Offbeat trains: beside a bare PyTorch loop, and beside other simulators of federated learning.

    python benchmarks/speed [--repeats 5] [--only cnn async] [--variants Offbeat] [--peers DIR] [--out FILE]
    python benchmarks/speed --table speed.json

Every variant does the same SGD steps on the same data from the same initial weights. The variants take turns,
each repeat in a fresh process on one thread a process. Peers run from the environments that
`benchmarks/peers/make_env.sh` makes in DIR. Writes the answers as JSON and a picture beside it. See
docs/numbers.md.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
sys.path.insert(0, str(SOURCE))

from data import write  # noqa: E402
from figure import draw  # noqa: E402
from figures import report  # noqa: E402
from measure import machine, run_all  # noqa: E402
from variants import TABLES, Table  # noqa: E402

from offbeat import UsageError  # noqa: E402


def chosen(only: list[str], words: list[str], rounds: int | None) -> list[Table]:
    """The tables and rows asked for; with fewer rounds for a first look."""
    tables = []
    for table in TABLES:
        rows = [r for r in table.rows if not words or any(word.lower() in r.name.lower() for word in words)]
        if rounds is not None:
            rows = [replace(r, job=replace(r.job, rounds=min(rounds, r.job.rounds))) for r in rows]
        if rows and (not only or table.key in only):
            tables.append(replace(table, rows=rows))
    return tables


def main() -> None:
    """Measure, or print the tables of what was measured."""
    keys = [table.key for table in TABLES]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=keys, default=[], metavar="TABLE", help=", ".join(keys))
    parser.add_argument(
        "--variants", nargs="+", default=[], metavar="WORD", help="rows whose name has a word"
    )
    parser.add_argument(
        "--rounds", type=int, help="at most so many rounds: for a first look, not for numbers"
    )
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of the peers' environments")
    parser.add_argument("--out", type=Path, default=Path("speed.json"))
    parser.add_argument(
        "--table", type=Path, metavar="JSON", help="print the tables of an earlier measurement"
    )
    options = parser.parse_args()
    if options.table:
        print(report(json.loads(options.table.read_text())))
        return
    results = {"machine": machine(), "repeats": options.repeats, "rounds": options.rounds}
    tables = chosen(options.only, options.variants, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), clients=100, seed=0)
        for repeat, rows in enumerate(run_all(tables, options.repeats, Path(folder), options.peers, note), 1):
            results |= {"repeats": repeat, "tables": rows}
            options.out.write_text(json.dumps(results, indent=1))
    draw(results, options.out.with_suffix(".png"))
    print(report(results))


def note(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(str(error))
