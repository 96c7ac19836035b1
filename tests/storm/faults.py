"""A federation of real processes that are killed over and over; counts what became of its updates.

    python -m tests.storm.faults [--algorithm fedbuff] [--kills 50] [--sites 20] [--seed 1]
        [--noise] [--secure] [--helpers 4 --colluding 1] [--restore] [--losses 20]

One server (`offbeat serve`), the sites in a few processes, and between them a relay that drops, delays and
swallows. The server is killed (SIGKILL) at random moments, while it starts too, and started again on the same
directory and port; the sites' processes are killed and started again, and paused for longer than the lease.
With `--snapshots` the snapshot from which it would start is damaged or deleted in between, so often.
Now and then the server may write only small files for a while, as on a full disk, until it gives up.
With `--hostile` so many sites send updates that make the loss collapse, the guard against them is off, and
the run goes back to its last good version again and again while it is killed.
With `--secure` updates are masked for helpers, processes that are killed as well. The sites keep what
they mask in clear, and round it as follows from the task, so that the sums can be made again.
With `--noise` each release has noise; the seeds of it are written down beside the server.
Every connection has TLS, and sites and helpers have kits, whose tokens are renewed meanwhile.
Each site writes every acknowledgement to disk before it goes on. When all kills are done the run is let reach
a number of versions. Then every acknowledged update must be in the journal, once; no update may be in two
aggregations; a replay must agree; and the journal's updates, taken in once more from the sites' own copies,
must give the bytes of model.safetensors, and each version that a site was sent. With noise no release may
have had another's, or two that anybody saw; what each client has spent is counted again from the journal.
With `--restore` the server's directory is put back from a copy in the end: see `restored.py`.
With `--losses` the server has a mirror. In place of the kills its directory is deleted under load, so often;
each time the mirror is served then, with another mirror.
Exit status 1 if any of it is not so.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.storm.findings import Findings, examine
from tests.storm.processes import call_offbeat, fork, leave_when_told
from tests.storm.restored import examine_restored, restore
from tests.storm.storm import Storm, Weather
from tests.storm.witness import END

HELPERS = ("anna", "bert", "cleo", "dora", "emil", "fred", "gina", "hans", "ines")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedbuff": {"name": "fedbuff", "steps": 5, "size": 4},
    "fedcompass": {"name": "fedcompass", "q_min": 4, "q_max": 16},
    "fedasync": {"name": "fedasync", "steps": 5},
    "port": {"name": "port", "epochs": 2, "size": 4, "tau_max": 3, "urgent": True},
    "fedasmu": {"name": "fedasmu", "epochs": 2, "size": 4, "period": 1.0, "threshold": 4},
}


def recipe(chosen: argparse.Namespace) -> dict[str, Any]:
    """A tiny model on few samples, or an MLP with so many hidden units. All is believed of hostile sites."""
    noise = {"multiplier": 4.0, "bands": chosen.bands, "budget": {"delta": 1e-3}}
    secure = {"helpers": list(HELPERS[: chosen.helpers]), "colluding": chosen.colluding}
    privacy = {**({"noise": noise} if chosen.noise else {}), **({"secure": secure} if chosen.secure else {})}
    return {
        "clients": chosen.sites,
        "data": {"dataset": "digits", "samples": 200, "test_samples": 100},
        "model": {"name": "mlp", "hidden": [chosen.hidden]} if chosen.hidden else {"name": "logistic"},
        "training": {"optimizer": "sgd", "lr": 0.05, "batch_size": 20},
        "algorithm": ALGORITHMS[chosen.algorithm],
        "until": {"versions": 10**6},
        "evaluate": {"versions": 1} if chosen.hostile else {"seconds": 5.0},
        "seed": chosen.seed,
        **({"guard": False} if chosen.hostile else {}),
        **({"privacy": {"clip": 1.0, **privacy}} if privacy else {}),
    }


def replayed(state: Path, log: Path) -> bool:
    """Does `offbeat replay` agree?"""
    process = fork(lambda: call_offbeat(["replay", str(state)]), log)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def report_storm(storm: Storm) -> None:
    """Print what was done to the processes."""
    c = storm.counts
    relayed = json.loads((storm.directory / "relay.json").read_text(encoding="utf-8")).get("counts", {})
    show({
        "server killed": f"{c.kills} (of them {c.early} while it started)",
        "directory deleted under load": c.losses,
        "server paused": c.pauses,
        "server ended by itself": c.died,
        "server gave up on a full disk": c.full,
        "snapshots flipped or deleted": c.snapshots,
        "starts from a snapshot": said_in_logs(storm.directory, "started from a snapshot"),
        "snapshots ignored": said_in_logs(storm.directory, "snapshot ignored"),
        "tracebacks in the logs": tracebacks(storm.directory),
        "sites' processes killed": c.site_kills,
        "sites' processes paused": c.site_pauses,
        "helpers killed": f"{c.helper_kills} (of {len(storm.helper_names)})",
        "connections": ", ".join(f"{count} {fate}" for fate, count in sorted(relayed.items())),
        "seconds to come back (median, most)": f"{median(c.recovery):.2f}, {max(c.recovery):.2f}",
    })  # fmt: skip


def report(storm: Storm, f: Findings, replay: bool) -> None:
    """Print what became of the updates."""
    ends = [path.read_text(encoding="utf-8") for path in sorted(storm.logs.glob(f"*/{END}"))]
    show({
        "releases of masked updates": f.releases,
        "noise": f.noise,
        "versions": f.versions,
        "returns to an earlier version": f.rollbacks,
        "journal rows": f.rows,
        "updates sent again": f.sent_again,
        "acknowledged": f.acknowledged,
        "acknowledged again": f.acknowledged_again,
        "arrived, in the journal": f.arrived,
        "acknowledged and lost": f.lost,
        "arrived twice": f.twice,
        "aggregated twice": f.aggregated_twice,
        "versions that sites were sent": f.models,
        "sites that heard of the end": f"{len(ends)} of {storm.sites}",
        "replay": "identical" if replay else "DIFFERS",
        "model made again from the journal": f.redone,
    })  # fmt: skip
    for line in {end for end in ends if not end.startswith("reached")}:
        print(f"a site ended with: {line}")


def show(table: dict[str, object]) -> None:
    """Print names and values."""
    for name, value in table.items():
        print(f"{name:36} {value}", flush=True)


def tracebacks(directory: Path) -> int:
    """How many there are of the server and the helpers."""
    logs = (*directory.glob("server-*.log"), *directory.glob("helper-*.log"))
    return sum(path.read_text(encoding="utf-8", errors="replace").count("Traceback") for path in logs)


def said_in_logs(directory: Path, words: str) -> int:
    """How often the server has said something."""
    logs = directory.glob("server-*.log")
    return sum(path.read_text(encoding="utf-8", errors="replace").count(words) for path in logs)


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="kill a federation over and over, and count")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="fedbuff")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that a local step takes at least")
    parser.add_argument("--hidden", type=int, default=0, help="from 900 on an update is not a small one")
    parser.add_argument("--hostile", type=int, default=0, help="how many sites send absurd updates")
    parser.add_argument("--noise", action="store_true", help="each release has noise")
    parser.add_argument("--bands", type=int, default=1, help="of the noise")
    parser.add_argument("--secure", action="store_true", help="updates are masked for helpers")
    parser.add_argument("--helpers", type=int, default=4, help="how many, 2 to 9")
    parser.add_argument("--colluding", type=int, default=1, help="how many of them may collude")
    parser.add_argument("--restore", action="store_true", help="put the server's directory back from a copy")
    parser.add_argument("--losses", type=int, default=0, help="how often the directory is deleted")
    parser.add_argument("--full", type=float, default=0.1, help="how likely it starts on a full disk")
    parser.add_argument("--snapshots", type=float, default=0.0, help="how likely one is damaged in between")
    parser.add_argument("--lease", type=float, default=6.0, help="of the sites; longer on a busy machine")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for the end to come")
    parser.add_argument("--directory", type=Path, help="where to work; it is kept")
    return parser.parse_args()


def main() -> int:
    """Run it; returns the exit status."""
    chosen = options()
    leave_when_told()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="offbeat-faults-"))
    directory.mkdir(parents=True, exist_ok=True)
    weather = Weather(
        chosen.seed, chosen.pace, chosen.full, chosen.lease, chosen.hostile, chosen.patience, chosen.snapshots
    )  # fmt: skip
    storm = Storm(directory, recipe(chosen), weather, mirrored=chosen.losses > 0)
    try:
        storm.start()
        if chosen.losses:
            storm.lose_disks(chosen.losses)
        else:
            storm.blow(chosen.kills - 1)
        restored = restore(storm) if chosen.restore else None
        if restored is None:
            storm.finish()
    finally:
        storm.close()
    report_storm(storm)
    if restored is not None:
        told, wrong = examine_restored(storm, restored)
        show(told)
    else:
        findings, same = (
            examine(storm.state, storm.logs, storm.seeds),
            replayed(storm.state, directory / "replay.log"),
        )
        report(storm, findings, same)
        wrong = [*findings.wrong, *([] if same else ["the replay differs"])]
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"in {directory}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
