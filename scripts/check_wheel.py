"""Build sdists and wheels, install the wheels in a fresh environment, and use them outside the checkout.

    python scripts/check_wheel.py [--extra digits] [--keep FOLDER]

The wheel of Offbeat is used first without that of the papers, and then with it. Needs nothing but Python; the
packages are built in an environment that has nothing but what they say a build requires. The environment in
which they are used has the versions of constraints.txt; an extra with an environment of its own takes only
PyTorch's from there. The exit code is 1 where a command does not end as it should, where a wheel lacks a file
of its package or has one of the other, or where an sdist has what is not of its package.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"offbeat": ROOT, "offbeat_papers": ROOT / "papers"}
"""The packages, each with the folder of its distribution."""
BESIDES_SOURCES = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
BILL = ROOT / "scripts" / "bill_of_materials.py"
OWN_ENVIRONMENT = ("ray", "flower")
TRIES = {
    "digits": "import offbeat; offbeat.load('digits')",
    "net": "from offbeat.net import join, serve; import offbeat.net.grpc.server",
    "ray": "import ray; from offbeat import OnRay",
    "flower": "from offbeat.flower import client_app, server_app",
}
COMPARISON = "compare digits -a fedavg -a fedbuff --seeds 1 --workers 1 --set until.seconds=10 --out runs"


def call(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """The output of a command that knows nothing of the checkout. Another exit code ends the script."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    print("+", *(Path(part).name if isinstance(part, Path) else part for part in command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def environment(folder: Path, *, with_pip: bool) -> Path:
    """A new virtual environment; returns its folder of programs."""
    venv.create(folder, with_pip=with_pip)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def install(programs: Path, into: Path, work: Path, *what: str | Path) -> None:
    """Install distributions with one environment's pip into another; what is imported is compiled then."""
    python = into / "python"
    pip = (programs / "python", "-m", "pip", "--python", python, "--disable-pip-version-check")
    call(*pip, "install", "--quiet", "--no-compile", *what, cwd=work)


def left_out(folder: str, names: list[str]) -> set[str]:
    """What is no source: what builds, tests and environments left in a folder of the checkout."""
    top = Path(folder) in PACKAGES.values()
    return {
        name
        for name in names
        if name == "__pycache__"
        or name.endswith(".egg-info")
        or (top and (name.startswith(".") or name in ("build", "dist", "runs", "site")))
        or (Path(folder) / name / "pyvenv.cfg").is_file()
    }


def build(programs: Path, work: Path) -> dict[str, Path]:
    """Build each sdist from a copy of the sources and the wheel from the sdist; returns wheels by package.

    A build writes a list of its files beside the sources, and takes what an earlier list names. A copy has
    none, and an environment can be installed from the checkout at the same time.
    """
    required = {
        requirement
        for folder in PACKAGES.values()
        for requirement in tomllib.loads((folder / "pyproject.toml").read_text())["build-system"]["requires"]
    }
    install(programs, programs, work, "build", *sorted(required))
    tree = shutil.copytree(ROOT, work / "tree", ignore=left_out)
    for folder in PACKAGES.values():
        options = ("--no-isolation", "--outdir", work / "dist")
        call(programs / "python", "-m", "build", *options, tree / folder.relative_to(ROOT), cwd=work)
    return {path.name.partition("-")[0]: path for path in (work / "dist").glob("*.whl")}


def wrong_files(package: str, wheel: Path) -> list[str]:
    """What a wheel lacks of its package, such as a template or `py.typed`, and what it has besides."""
    source = PACKAGES[package] / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    lacking = [f"not in the wheel of {package}: {name}" for name in sorted(files - packed)]
    return lacking + [f"no file of {package}, and in its wheel: {name}" for name in sorted(packed - files)]


def stray_files(package: str, sdist: Path) -> list[str]:
    """What an sdist has besides the package, its metadata and what builds it, such as some of the tests.

    Args:
        package: The package, such as `offbeat`.
        sdist: Its archive.
    """
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    own = (f"src/{package}/", f"src/{package}.egg-info/")
    stray = sorted(name for name in packed - BESIDES_SOURCES if not name.startswith(own))
    return [f"not of {package}, and in its sdist: {name}" for name in stray]


def wrong_contents(folder: Path) -> list[str]:
    """What is wrong with the files of the wheels and the sdists in a folder."""
    return [
        text
        for package in PACKAGES
        for ending, look in ((".whl", wrong_files), (".tar.gz", stray_files))
        for path in folder.glob(f"{package}-*{ending}")
        for text in look(package, path)
    ]


def constraints(extra: str, work: Path) -> Path:
    """The file of versions that the environment has."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    if extra in OWN_ENVIRONMENT:
        pins = [pin for pin in pins if pin.startswith("torch==")]
    path = work / "constraints.txt"
    path.write_text("\n".join(pins))
    return path


def use(programs: Path, extra: str, empty: Path) -> None:
    """Run Offbeat's commands in an empty folder, and write a report."""
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


def use_papers(programs: Path, empty: Path) -> None:
    """Run the command of the papers, whose wheel is there, and list their items."""
    offbeat = programs / "offbeat"
    if "Repeat tables and figures of papers" not in call(offbeat, "reproduce", "--help", cwd=empty):
        sys.exit("offbeat reproduce has no help")
    if "fedcompass/table-1" not in call(offbeat, "reproduce", "--results", "results", cwd=empty):
        sys.exit("offbeat reproduce does not list fedcompass/table-1")


def main() -> None:
    """Check the wheels with one extra."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--extra", choices=TRIES, default="digits", help="the extra to install besides digits"
    )
    parser.add_argument(
        "--keep", type=Path, help="copy the sdists and the wheels to this folder, with their bill"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offbeat-wheel-") as folder:
        work = Path(folder)
        builder = environment(work / "build", with_pip=True)
        wheels = build(builder, work)
        if wrong := wrong_contents(work / "dist"):
            sys.exit("\n".join(wrong))
        programs, pins = environment(work / "fresh", with_pip=False), constraints(options.extra, work)
        empty = work / "empty"
        empty.mkdir()
        extras = ",".join(sorted({"digits", options.extra}))
        install(builder, programs, work, "-c", pins, f"{wheels['offbeat']}[{extras}]")
        use(programs, options.extra, empty)
        print(call(programs / "offbeat", "reproduce", "--help", cwd=empty, code=2).strip())
        install(builder, programs, work, "-c", pins, wheels["offbeat_papers"])
        use_papers(programs, empty)
        if options.keep is not None:
            shutil.copytree(work / "dist", options.keep, dirs_exist_ok=True)
            install(builder, builder, work, "cyclonedx-bom")
            print(call(builder / "python", BILL, programs / "python", options.keep.absolute(), cwd=work))
    names = " and ".join(wheel.name for wheel in wheels.values())
    print(f"{names} with the extra {options.extra} work outside the checkout")


if __name__ == "__main__":
    main()
