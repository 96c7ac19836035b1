"""Draw the timeline on each algorithm's page: one short run each, on six clients with digits.

    python docs/timelines.py [NAME...]

Each is what the commands on its page give, smaller: a line of `SETS` is what follows `--set`.
"""

import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from offbeat.algorithms import ALGORITHMS
from offbeat.recipes.build import run_recipe
from offbeat.recipes.load import load_recipe
from offbeat.report import make_timeline
from offbeat.report.palette import choose_styles
from offbeat.report.static_timeline import draw_timeline
from offbeat.runs.record import read_run

IMAGES = Path(__file__).parent / "images"
CLIENTS, SECONDS, STEPS = 6, 20, 20
DPI, COLOURS = 100, 96
SETS = {
    "first_of": ["algorithm.share=0.6"],
    "fedbuff": ["algorithm.size=3"],
    "fadas": ["algorithm.size=3"],
    "ringmaster": ["algorithm.threshold=3"],
    "rennala": ["algorithm.size=4"],
    "ca2fl": ["algorithm.size=3"],
    "fedcompass": ["algorithm.q_min=8", "algorithm.q_max=40"],
    "fedasmu": [
        "algorithm.size=4", "algorithm.period=2", "algorithm.ask_every=5", "algorithm.tau_max=8",
    ],
    "fedssmu": ["algorithm.ask_every=5", "algorithm.tau_max=5"],
    "port": ["algorithm.size=2", "algorithm.tau_max=2", "algorithm.urgent=true"],
    "fedfa": ["algorithm.size=3"],
    "wireless": [
        "algorithm.scheduled=2", "algorithm.period=2", "algorithm.gamma=0.5",
        "world.channel.symbols=20000", "world.channel.period=2",
    ],
}  # fmt: skip
# The others have their own.
PAGES = {
    "fedadagrad": "fedopt", "fedadam": "fedopt", "fedyogi": "fedopt", "malenia": "rennala",
    "ca2fl": "cached", "ace": "cached", "mifa": "cached", "fedvarp": "cached", "fedstale": "cached",
}  # fmt: skip
SHOWN = {"fedopt": "fedadam", "cached": "ca2fl"}  # whose timeline is on such a page


def sets(name: str) -> list[str]:
    """What is set in the recipe `digits`."""
    steps = [f"algorithm.steps={STEPS}"] if "steps" in ALGORITHMS[name].signature.parameters else []
    return [
        f"clients={CLIENTS}",
        f"until.seconds={SECONDS}",
        f"algorithm={name}",
        *steps,
        *SETS.get(name, []),
    ]


def pictures() -> list[str]:
    """The algorithms with a picture of their own: one a page."""
    return [name for name in ALGORITHMS if SHOWN.get(PAGES.get(name, name), name) == name]


def draw(name: str) -> Path:
    """Run one algorithm and draw its timeline."""
    recipe = load_recipe("digits", sets=sets(name))
    with TemporaryDirectory() as place:
        run_recipe(recipe, out=Path(place) / name)
        figure = draw_timeline(make_timeline(read_run(Path(place) / name)), choose_styles([name])[name])
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png")
    path = IMAGES / f"timeline_{name}.png"
    Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    return path


def main() -> None:
    """Draw those named, or one for each page."""
    for name in sys.argv[1:] or pictures():
        path = draw(name)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
        print("  offbeat run digits " + " ".join(f"--set {s}" for s in sets(name)))


if __name__ == "__main__":
    main()
