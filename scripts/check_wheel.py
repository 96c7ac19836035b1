"""Build the sdist and the wheel, install the wheel in a fresh environment, and use it outside the checkout.

    python scripts/check_wheel.py [--extra digits] [--keep FOLDER]

Needs nothing but Python; the build is isolated. The environment has the versions of constraints.txt; an extra
with an environment of its own takes only PyTorch's from there. The exit code is 1 where a command fails or
the wheel lacks a file of the package.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN_ENVIRONMENT = ("ray", "flower")
TRIES = {
    "digits": "import offbeat; offbeat.load('digits')",
    "net": "from offbeat.net import join, serve; import offbeat.net.grpc.server",
    "ray": "import ray; from offbeat import OnRay",
    "flower": "from offbeat.flower import client_app, server_app",
}
COMPARISON = "compare digits --algorithms fedavg,fedbuff --seeds 1 --jobs 1 --set until.seconds=10 --out runs"


def call(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that knows nothing of the checkout. A failure ends the script."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    print("+", *(Path(part).name if isinstance(part, Path) else part for part in command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def environment(folder: Path) -> Path:
    """A new virtual environment; returns its folder of programs."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def build(work: Path) -> Path:
    """Build the sdist from the checkout and the wheel from the sdist; returns the wheel."""
    programs = environment(work / "build")
    call(programs / "python", "-m", "pip", "install", "--quiet", "build", cwd=work)
    call(programs / "python", "-m", "build", "--outdir", work / "dist", ROOT, cwd=work)
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def missing_files(wheel: Path) -> list[str]:
    """The files of the package that are not in the wheel: modules, pages, templates, recipes, `py.typed`."""
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "offbeat").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        return sorted(files - set(archive.namelist()))


def install(wheel: Path, extra: str, work: Path) -> Path:
    """Install the wheel with an extra in a fresh environment; returns its folder of programs."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    if extra in OWN_ENVIRONMENT:
        pins = [pin for pin in pins if pin.startswith("torch==")]
    (work / "constraints.txt").write_text("\n".join(pins))
    programs = environment(work / "fresh")
    extras = ",".join(sorted({"digits", extra}))
    constraints = work / "constraints.txt"
    call(
        programs / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        constraints,
        f"{wheel}[{extras}]",
        cwd=work,
    )
    return programs


def use(programs: Path, extra: str, work: Path) -> None:
    """Run the commands in an empty folder, and write a report."""
    empty = work / "empty"
    empty.mkdir()
    offbeat = programs / "offbeat"
    where = Path(
        call(programs / "python", "-c", "import offbeat; print(offbeat.__file__)", cwd=empty).strip()
    )
    if not where.is_relative_to(programs.parent):
        sys.exit(f"offbeat was imported from {where}, not from the wheel")
    print(call(offbeat, "--version", cwd=empty).strip())
    if "fedcompass" not in call(offbeat, "algorithms", cwd=empty):
        sys.exit("offbeat algorithms does not list fedcompass")
    call(programs / "python", "-c", TRIES[extra], cwd=empty)
    print(call(offbeat, *COMPARISON.split(), cwd=empty))
    if not (empty / "runs/fedbuff/seed-0/model.safetensors").is_file():
        sys.exit("the comparison left no final model")
    call(offbeat, "report", "runs", "-o", "report.html", cwd=empty)
    if "fedbuff" not in (empty / "report.html").read_text():
        sys.exit("the report does not name fedbuff")


def main() -> None:
    """Check the wheel with one extra."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--extra", choices=TRIES, default="digits", help="the extra to install besides digits"
    )
    parser.add_argument("--keep", type=Path, help="copy the sdist and the wheel to this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offbeat-wheel-") as folder:
        work = Path(folder)
        wheel = build(work)
        if missing := missing_files(wheel):
            sys.exit("not in the wheel: " + ", ".join(missing))
        use(install(wheel, options.extra, work), options.extra, work)
        if options.keep is not None:
            shutil.copytree(work / "dist", options.keep, dirs_exist_ok=True)
    print(f"{wheel.name} with the extra {options.extra} works outside the checkout")


if __name__ == "__main__":
    main()
