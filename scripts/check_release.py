"""Do everything of a release that needs no package index, and say what remains.

    python scripts/check_release.py [--repository https://HOST/OWNER/NAME] [--skip oldest] [--out dist]

Each check prints one line: ok, failed, or not done with the reason. The exit code is 1 if one failed. `make
release-check` runs it in an environment of its own, with the tools of the dependency group `release`.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import bill_of_materials
import check_wheel
import index_metadata
import pins

ROOT = Path(__file__).parents[1]
EXAMPLE = "https://example.org/offbeat/offbeat"
"""Stands for the repository where none was given: a domain that nobody can own."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
METADATA = (
    "Author: ", "License-Expression: Apache-2.0", "Project-URL: Documentation, ", "Project-URL: Source, ",
    "Project-URL: Issues, ",
)  # fmt: skip
"""How lines begin that the metadata of each distribution have."""
COPYLEFT = re.compile(r"\b(A?GPL|General Public License)\b", re.IGNORECASE)
LESSER = re.compile(r"\b(LGPL|Lesser|Library)\b", re.IGNORECASE)


class NotDoneError(Exception):
    """A check that cannot be made here, with the reason."""


class FailedError(Exception):
    """What is wrong with the release."""


@dataclass(frozen=True)
class Release:
    """A release in the making.

    Attributes:
        tree: A copy of the tracked files, as they are built.
        work: Folder for what the checks make.
        dist: Folder of the distributions.
        version: Number of the release.
        repository: Address of the repository.
    """

    tree: Path
    work: Path
    dist: Path
    version: str
    repository: str

    @property
    def wheels(self) -> dict[str, Path]:
        """The wheels by package."""
        found = {path.name.partition("-")[0]: path for path in self.dist.glob("*.whl")}
        if set(found) != set(check_wheel.PACKAGES):
            raise NotDoneError("the wheels are not built")
        return found

    @property
    def python(self) -> Path:
        """The interpreter of the environment in which the wheel is installed."""
        found = self.work / "fresh" / "bin" / "python"
        if not found.exists():
            raise NotDoneError("the wheel is not installed")
        return found


def output(*command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """What a command prints. Raises `FailedError` with the end of its output if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FailedError("\n".join((done.stdout + done.stderr).strip().splitlines()[-8:]) or "no output")
    return done.stdout


def tool(module: str, *words: str | Path, cwd: Path = ROOT) -> str:
    """What a tool of the release's environment prints."""
    return output(sys.executable, "-m", module, *words, cwd=cwd)


def copied_tree(into: Path) -> Path:
    """A copy of the tracked files, without what a checkout has besides."""
    for name in output("git", "ls-files", "-z").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, into / name)
    return into


# What the files say


def versions(release: Release) -> str:
    """The same version everywhere; a tag, if there is one, is the version's."""
    found = {
        name: tomllib.loads((ROOT / name).read_text("utf-8"))["project"]["version"]
        for name in ("pyproject.toml", "papers/pyproject.toml")
    }
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    found["CITATION.cff"] = cited[1].strip() if cited else "none"
    if {*found.values()} != {release.version}:
        raise FailedError(", ".join(f"{name} has {version}" for name, version in found.items()))
    tags = output("git", "tag", "--points-at", "HEAD").split()
    if tags and f"v{release.version}" not in tags:
        raise FailedError(f"the commit's tags are {', '.join(tags)}, and the version is {release.version}")
    return f"{release.version} in {len(found)} files; tag {'v' + release.version if tags else 'not made yet'}"


def citation(_: Release) -> str:
    """CITATION.cff is valid, so that an archive can give the release a DOI."""
    tool("check_jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff")
    return "valid; an archive can read it"


def notes(release: Release) -> str:
    """The changelog has a section of the version, and no fragment is left in changes/."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    section = re.search(rf"^## {re.escape(release.version)}[: ].*\n(?s:(.*?))(?=^## |\Z)", text, re.MULTILINE)
    left = [path.name for path in sorted((ROOT / "changes").iterdir()) if path.name != "README.md"]
    if section is None or left:
        raise FailedError(
            f"CHANGELOG.md has {'a' if section else 'no'} section {release.version}, and changes/ has "
            f"{len(left)} fragments: make release-notes WRITE=--yes VERSION={release.version}"
        )
    (release.dist / "notes.md").write_text(section[1].strip() + "\n", encoding="utf-8")
    return f"{len(re.findall('^- ', section[1], re.MULTILINE))} entries; in notes.md"


def commits(_: Release) -> str:
    """Every commit since the last release says what it changes."""
    last = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "HEAD^"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if not last:
        raise NotDoneError("there is no earlier release; the hook checks new commits")
    from check_commit_message import problem

    messages = output("git", "log", "--no-merges", "--format=%B%x00", f"{last}..HEAD").split("\0")
    wrong = [found for text in messages if text.strip() and (found := problem(text))]
    if wrong:
        raise FailedError("; ".join(wrong[:3]))
    return f"{len(messages) - 1} since {last}"


def workflows(_: Release) -> str:
    """The workflows and the issue forms are valid."""
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    tool("check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    tool("check_jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms)
    return f"{len(files)} workflows and {len(forms)} issue forms are valid"


# Distributions


def builds(release: Release) -> str:
    """Two builds of the tree give the same bytes."""
    epoch = output("git", "log", "-1", "--format=%ct").strip()
    digests = []
    for folder in (release.dist, release.work / "again"):
        for package in ("", "papers"):
            tree = release.tree / package
            for left in (tree / "build", *tree.glob("src/*.egg-info")):
                shutil.rmtree(left, ignore_errors=True)
            output(
                sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree,
                environment={"SOURCE_DATE_EPOCH": epoch},
            )  # fmt: skip
        for sdist in folder.glob("*.tar.gz"):
            without_times(sdist, int(epoch))
        files = sorted([*folder.glob("*.tar.gz"), *folder.glob("*.whl")])
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    if differ := [name for name, digest in digests[0].items() if digests[1].get(name) != digest]:
        raise FailedError(f"two builds differ: {', '.join(differ)}")
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests[0].items())
    (release.dist / "SHA256SUMS").write_text(lines)
    return f"{len(digests[0])} files, twice the same bytes; sums in SHA256SUMS"


def without_times(sdist: Path, epoch: int) -> None:
    """Write an sdist again without what differs between builds: times, owners, the order of files."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = {m.name: archive.extractfile(m).read() for m in members if m.isfile()}  # type: ignore[union-attr]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() or member.mode & 0o100 else 0o644, {}
            archive.addfile(member, io.BytesIO(contents[member.name]) if member.isfile() else None)
    with sdist.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as file:
        file.write(packed.getvalue())


def metadata(release: Release) -> str:
    """The metadata and the long descriptions are such as an index takes."""
    packed = [path for ending in ("*.whl", "*.tar.gz") for path in sorted(release.dist.glob(ending))]
    tool("twine", "check", "--strict", *packed)
    missing = [
        f"{package} has no line {line!r}"
        for package, wheel in release.wheels.items()
        for line in METADATA
        if f"\n{line}" not in _metadata(wheel).partition("\n\n")[0]
    ]
    if missing:
        raise FailedError("; ".join(missing))
    return "twine finds nothing; both name addresses, authors and licence"


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def contents(release: Release) -> str:
    """Each wheel has the files of its package, the licence, and nothing else; so has each sdist."""
    wheels = release.wheels
    wrong = check_wheel.wrong_contents(release.dist)
    for package, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            if not any(name.endswith("licenses/LICENSE") for name in archive.namelist()):
                wrong.append(f"{package} has no licence")
    if wrong:
        raise FailedError("\n".join(wrong))
    return ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in wheels.values())


class _Links(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found = list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


def readme(release: Release) -> str:
    """Each README as an index shows it: it renders, and each link and picture is absolute."""
    from readme_renderer import markdown

    found = dict[str, list[str]]()
    for package, wheel in release.wheels.items():
        page = markdown.render(_metadata(wheel).partition("\n\n")[2])
        if page is None:
            raise FailedError(f"the README of {package} does not render")
        found[package] = _Links(page).found
        relative = [link for link in found[package] if not link.startswith(("https://", "#"))]
        if relative:
            raise FailedError(f"links of {package} that an index does not follow: {', '.join(relative)}")
        (release.work / f"{package}.html").write_text(page, encoding="utf-8")
    if not any(link.endswith(".png") for link in found["offbeat"]):
        raise FailedError("the page has no picture")
    counts = ", ".join(f"{len(links)} of {package}" for package, links in found.items())
    return f"renders; absolute links and pictures: {counts}"


# The wheel in use


def fresh(release: Release) -> str:
    """The wheel works in a fresh environment outside the checkout."""
    empty = release.work / "empty"
    empty.mkdir()
    with redirect_stdout(io.StringIO()):
        builder = check_wheel.environment(release.work / "builder", with_pip=True)
        programs = check_wheel.environment(release.work / "fresh", with_pip=False)
        pins = check_wheel.constraints("digits", release.work)
        wheels = (f"{release.wheels['offbeat']}[digits,net]", release.wheels["offbeat_papers"])
        check_wheel.install(builder, programs, release.work, "-c", pins, *wheels)
        check_wheel.use(programs, "digits", empty)
        check_wheel.use_papers(programs, empty)
    return output(programs / "offbeat", "--version", cwd=empty).strip() + ", a comparison and a report"


def sbom(release: Release) -> str:
    """A bill of materials: what the wheel's environment has, with versions and licences."""
    path = bill_of_materials.write_bill(release.python, release.dist)
    if wrong := bill_of_materials.problems(path, release.python):
        raise FailedError("\n".join(wrong))
    made = json.loads(path.read_text("utf-8"))
    return f"CycloneDX {made['specVersion']}, valid, {len(made['components'])} components; in {path.name}"


def extras(release: Release) -> str:
    """Each extra can be installed: an index has a version of all that it names."""
    declared = re.findall(r"^Provides-Extra: (.+)$", _metadata(release.wheels["offbeat"]), re.MULTILINE)
    for extra in declared:
        wanted = release.work / f"{extra}.in"
        wanted.write_text(f"offbeat[{extra}] @ {release.wheels['offbeat'].as_uri()}\n", encoding="utf-8")
        resolve("--python", release.python, wanted)
    return f"an index has all that the {len(declared)} extras name"


def resolve(*words: str | Path) -> None:
    """Find versions of all that is required. Raises `NotDoneError` where no index answers."""
    macos = {"MACOSX_DEPLOYMENT_TARGET": "14.0"}  # the oldest for which PyTorch has wheels
    try:
        output(
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", *words, environment=macos
        )
    except FailedError as error:
        if re.search(r"error sending request|Failed to fetch|[Nn]etwork connectivity", str(error)):
            raise NotDoneError(f"no index answers: {error}") from None
        raise


def pinned(_: Release) -> str:
    """The pins admit the Pythons that are promised, and have wheels for the oldest and the newest."""
    text, promised = pins.CONSTRAINTS.read_text("utf-8"), pins.promised()
    newest = promised[-1].rpartition(".")[0]
    for python in (promised[0], newest):
        for system in ("linux", "macos"):
            wheels = ("--only-binary", ":all:", "--python-version", python, "--python-platform", system)
            resolve(*wheels, "-c", pins.CONSTRAINTS, "--all-extras", "pyproject.toml")
    try:
        metadata = pins.read_index()
    except subprocess.CalledProcessError as error:
        raise FailedError(error.stderr) from None
    if (true := pins.with_pythons(text, metadata)) != text:
        raise FailedError("constraints.txt says other Pythons than the index: run python scripts/pins.py")
    if wrong := pins.refused(true, promised):
        raise FailedError("\n".join(wrong))
    return f"all {len(pins.pins(text))} admit Python {promised[0]} to {newest}, and have wheels for both"


def licences(release: Release) -> str:
    """No dependency has a licence that forbids the use of Offbeat under Apache-2.0, and each has one."""
    text = tool("piplicenses", "--python", release.python, "--format=json", "--from=mixed")
    found = {package["Name"]: package["License"] for package in json.loads(text)}
    (release.dist / "licences.json").write_text(text, encoding="utf-8")
    unknown = [name for name, licence in found.items() if licence.upper() in ("UNKNOWN", "")]
    strong = [
        f"{name}: {own}" for name, own in found.items() if COPYLEFT.search(own) and not LESSER.search(own)
    ]
    if strong:
        raise FailedError(f"look at {'; '.join(strong)}")
    return f"{len(found)} packages" + (f"; to look at by hand: {', '.join(unknown)}" if unknown else "")


def audit(release: Release) -> str:
    """No dependency has a known vulnerability."""
    site = output(release.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    command = [sys.executable, "-m", "pip_audit", "--path", site, "--progress-spinner", "off", "-f", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if not done.stdout.startswith("{"):
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise NotDoneError(f"pip-audit reaches no database of vulnerabilities: {reason[:160]}")
    packages = json.loads(done.stdout)["dependencies"]
    skipped = sorted(package["name"] for package in packages if "skip_reason" in package)
    wrong = [
        f"{package['name']} {package['version']}: {found['id']}"
        for package in packages
        for found in package.get("vulns", [])
    ]
    if wrong:
        raise FailedError("; ".join(wrong))
    looked_up = len(packages) - len(skipped)
    if not looked_up:
        raise NotDoneError(
            f"the index here knows no vulnerabilities: pip-audit could look up none of {len(packages)} "
            "packages; make the check where pypi.org or osv.dev answers"
        )
    return f"{looked_up} packages without a known vulnerability; not looked up: {', '.join(skipped)}"


def oldest(_: Release) -> str:
    """The tests pass with the oldest versions that pyproject.toml allows."""
    output("make", "test-oldest")
    return "make test-oldest passes"


def newest(_: Release) -> str:
    """The tests pass with the newest versions, which an installation from an index gets."""
    output("make", "test-newest")
    return "make test-newest passes"


def demo(release: Release) -> str:
    """`make demo` works in a copy of the tree, with the oldest Python on this machine."""
    program = next(filter(None, map(_python, PYTHONS)), None)
    if program is None:
        raise NotDoneError("no Python that is promised is on this machine")
    output("make", "demo", f"PYTHON={program}", cwd=copied_tree(release.work / "demo"))
    return f"make demo works with {output(program, '--version').strip()}"


def pythons(release: Release) -> str:
    """The wheel runs with each supported Python that is on this machine."""
    ran, absent = [], []
    for version in PYTHONS:
        program = _python(version)
        if program is None:
            absent.append(version)
            continue
        folder = release.work / f"python-{version}"
        uv = (sys.executable, "-m", "uv")
        output(*uv, "venv", "--quiet", "--python", program, folder)
        output(
            *uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            folder / "bin" / "python",
            f"{release.wheels['offbeat']}[digits,net]",
        )
        done = [
            folder / "bin" / "offbeat",
            "run",
            "digits",
            "--set",
            "until.versions=3",
            "--out",
            folder / "run",
        ]
        output(*done, cwd=release.work)
        ran.append(version)
    if not ran:
        raise NotDoneError("none is on this machine")
    return f"a run with {', '.join(ran)}" + (f"; not on this machine: {', '.join(absent)}" if absent else "")


def _python(version: str) -> str | None:
    """The oldest interpreter on this machine of a version such as 3.11."""
    candidates = [
        *(Path(folder) / f"python{version}" for folder in os.get_exec_path()),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    ]
    found = dict[str, tuple[int, ...]]()
    for program in filter(Path.is_file, candidates):
        told = "import ensurepip, sys, venv; print(*sys.version_info[:3])"
        done = subprocess.run([program, "-c", told], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[str(program)] = tuple(map(int, done.stdout.split()))
    return min(found, key=found.__getitem__, default=None)


CHECKS: dict[str, Callable[[Release], str]] = {
    "versions": versions, "citation": citation, "notes": notes, "commits": commits, "workflows": workflows,
    "builds": builds, "metadata": metadata, "contents": contents, "readme": readme, "fresh": fresh,
    "extras": extras, "pins": pinned, "sbom": sbom, "licences": licences, "audit": audit, "demo": demo,
    "pythons": pythons, "oldest": oldest, "newest": newest,
}  # fmt: skip


def remaining(release: Release) -> Iterable[str]:
    """What only a maintainer can do."""
    installation = runpy.run_path(str(ROOT / "src" / "offbeat" / "core" / "installation.py"))
    yield "make check test test-thorough test-bits test-ray test-hf check-deploy on this commit"
    if release.repository == EXAMPLE:
        yield "name the repository: make release-check REPOSITORY=https://HOST/OWNER/NAME"
    if not installation["ON_INDEX"]:
        yield (
            "register both names at the index with a pending trusted publisher; then set ON_INDEX in "
            "src/offbeat/core/installation.py and run python scripts/install_lines.py"
        )
    if "\ndate-released: " not in (ROOT / "CITATION.cff").read_text("utf-8"):
        yield "write the day of the release into CITATION.cff: date-released: YYYY-MM-DD, below version"
    if unpinned := _unpinned():
        yield f"replace the versions of {len(unpinned)} actions in .github/workflows by their commits' hashes"
    tag = f"v{release.version}"
    yield f"git tag -s {tag} -m 'Offbeat {release.version}' && git push origin {tag}"
    yield "let the archive that gives DOIs take the release, and put its DOI into CITATION.cff and the README"


def _unpinned() -> set[str]:
    text = "".join(path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    return {
        name
        for name, at in re.findall(r"uses: ([\w./-]+)@(\S+)", text)
        if not re.fullmatch(r"[0-9a-f]{40}", at)
    }


def main() -> None:
    """Make every check, and say what remains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repository", default=EXAMPLE, help="address of the repository")
    parser.add_argument("--docs", help="address of the documentation")
    parser.add_argument("--skip", default="", help=f"checks to leave out: {', '.join(CHECKS)}")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="folder of the distributions; emptied first"
    )
    words = parser.parse_args()
    skipped = {name for name in words.skip.split(",") if name}
    if unknown := sorted(skipped - set(CHECKS)):
        parser.error(f"--skip {','.join(unknown)}: choose from {', '.join(CHECKS)}")
    shutil.rmtree(words.out, ignore_errors=True)
    words.out.mkdir(parents=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    with tempfile.TemporaryDirectory(prefix="offbeat-release-") as folder:
        tree = copied_tree(Path(folder) / "tree")
        index_metadata.rewrite(tree, words.repository, f"v{version}", words.docs)
        release = Release(tree, Path(folder), words.out.resolve(), version, words.repository)
        failed = [name for name, check in CHECKS.items() if not told(name, check, release, name in skipped)]
        print("\nWhat remains:")
        for number, line in enumerate(remaining(release), 1):
            print(f"{number}. {line}")
    if failed:
        sys.exit(f"\nfailed: {', '.join(failed)}")


def told(name: str, check: Callable[[Release], str], release: Release, skip: bool) -> bool:
    """Make a check and print its line; whether it did not fail."""
    try:
        state, text = ("not done", "--skip") if skip else ("ok", check(release))
    except NotDoneError as reason:
        state, text = "not done", str(reason)
    except (FailedError, SystemExit) as problem:
        state, text = "FAILED", str(problem)
    print(f"{name:<10} {state:<9} {text}", flush=True)
    return state != "FAILED"


if __name__ == "__main__":
    main()
