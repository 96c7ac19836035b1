"""What the site has from the code and from rows of results: the table of algorithms, their pages in the
navigation, the reference, how Offbeat is installed, the tables of claims and runs.

A line such as `<!-- public: offbeat.parts -->` on a page is replaced by what the named function below makes.
"""

import inspect
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any

import offbeat.algorithms
from offbeat import parts
from offbeat.algorithms import ALGORITHMS, Factory
from offbeat.algorithms.describe import driver_needs, short_paper
from offbeat.algorithms.hyperparameters import option_classes
from offbeat.core.installation import ON_INDEX, install_command
from offbeat_papers.experiments import JudgedExperiment, judge_experiments
from offbeat_papers.folder import default_results
from offbeat_papers.tables import site_tables, write_csv_files
from offbeat_papers.texts import Grid, markdown

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

DOCS = Path(__file__).parent
MARK = re.compile(r"^<!-- (\w+)(?:: (\S+))? -->$", re.MULTILINE)
KINDS = (parts.Schedule, parts.Aggregator, parts.ServerStep, parts.Objective)


def page_of(factory: Factory[...]) -> str:
    """The page of an algorithm below docs/: of its own name, or of its module's."""
    names = (factory.name, factory.make.__module__.rpartition(".")[2])
    pages = [f"algorithms/{name}.md" for name in names]
    return next((page for page in pages if (DOCS / page).is_file()), pages[0])


def title_of(page: str) -> str:
    """The heading of a page."""
    return (DOCS / page).read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def algorithms() -> list[str]:
    """The table of all algorithms."""
    rows = ["| name | paper | kind | needs | page |", "|---|---|---|---|---|"]
    for name, factory in ALGORITHMS.items():
        needs = ", ".join(driver_needs(factory())) or "–"
        page = page_of(factory)
        link = f"[{title_of(page)}]({Path(page).name})"
        rows.append(f"| `{name}` | {short_paper(factory.paper)} | {factory.kind} | {needs} | {link} |")
    return rows


def factories() -> list[str]:
    """The factories, for the reference."""
    return [f"::: {factory.make.__module__}.{name}" for name, factory in ALGORITHMS.items()]


def papers() -> list[str]:
    """The parts and the option objects of the papers, for the reference: those that are not shared."""
    options = {
        option
        for factory in ALGORITHMS.values()
        for parameter in factory.signature.parameters.values()
        for option in option_classes(parameter.annotation)
    }
    modules = walk_packages(offbeat.algorithms.__path__, "offbeat.algorithms.")
    found = [
        value
        for module in modules
        for name, value in vars(import_module(module.name)).items()
        if inspect.isclass(value) and value.__module__ == module.name
        if name not in parts.__all__ and not name.startswith("_")
        if value in options or any(kind in value.__mro__ for kind in KINDS)
    ]
    return [f"::: {value.__module__}.{value.__name__}" for value in found]


def public(module: str) -> list[str]:
    """What a module makes public, for the reference: its classes and functions that stand nowhere above."""
    owner = import_module(module)
    values = {name: getattr(owner, name) for name in owner.__all__}
    above = () if module == "offbeat" else (offbeat,) if module == "offbeat.parts" else (offbeat, parts)
    return [
        f"::: {module}.{name}"
        for name, value in values.items()
        if inspect.isroutine(value) or inspect.isclass(value)
        if not isinstance(value, Factory)  # the factories have a section of their own
        if not any(getattr(other, name, None) is value for other in above)
    ]


def index_install() -> list[str]:
    """What the page about installation says of package indexes."""
    if not ON_INDEX:
        return [
            '!!! warning "No package index has Offbeat yet"',
            "    Install it from a checkout or from a wheel. Until the first release, a package of the name",
            "    `offbeat` or `offbeat-papers` on an index is somebody else's.",
        ]
    return [
        "## From an index",
        "",
        "```sh",
        install_command("digits", "net"),
        install_command("papers"),
        "```",
    ]


@cache
def judged() -> list[JudgedExperiment]:
    """The papers' experiments, judged by the rows: that takes half a minute, so it is done once."""
    return judge_experiments(default_results())


@cache
def tables() -> dict[str, Grid]:
    """The tables of the papers' claims, of the leaderboard and of runs."""
    return site_tables(default_results(), judged())


def table(name: str) -> list[str]:
    """A table of claims, ranks or runs, whose hundreds of rows are not in the site's search."""
    return ["<div data-search-exclude markdown>", "", *markdown(tables()[name]).splitlines(), "", "</div>"]


def picture(_: str) -> list[str]:
    """The file that a tutorial's picture is made from: nothing for a reader."""
    return []


def _with_download(markdown: str, page: str) -> str:
    """A tutorial with a link to its notebook, below its first paragraph."""
    name = Path(page).stem
    link = f'<a href="{name}.ipynb" download>Download this tutorial as a notebook</a>'
    heading, first, rest = markdown.split("\n\n", 2)
    return "\n\n".join((heading, first, link, rest))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the marks of a page, and link the notebook of a tutorial."""
    if page.file.src_uri.startswith("tutorials/"):
        markdown = _with_download(markdown, page.file.src_uri)

    def lines(mark: re.Match[str]) -> str:
        argument = [mark[2]] if mark[2] else []
        return "\n".join(globals()[mark[1]](*argument))

    return MARK.sub(lines, markdown)


def slug(title: str) -> str:
    """The name of the page of a section of the reference."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def reference() -> tuple[str, dict[str, str]]:
    """The reference's first page, and the text of each section by its title."""
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    intro, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    titled = dict(section.split("\n", 1) for section in sections)
    last = titled.pop("Where to go on")
    links = [f"- [{title}](reference/{slug(title)}.md)" for title in titled]
    return "\n".join([intro, *links, "", "## Where to go on", last]), titled


def on_files(files: "Files", config: Any) -> "Files":
    """Divide the reference: each section is a page, which the site's search leaves out."""
    from mkdocs.structure.files import File  # the tests read the other functions without mkdocs

    whole = files.get_file_from_path("reference.md")
    if whole is None:  # another project's documentation, built with these hooks
        return files
    first, sections = reference()
    whole.content_string = first
    for title, text in sections.items():
        text = re.sub(r"\]\((?=[\w-]+\.md)", "](../", text)
        head = f"---\nsearch:\n  exclude: true\n---\n\n# {title}\n"
        files.append(File.generated(config, f"reference/{slug(title)}.md", content=head + text))
    return files


def origin() -> str | None:
    """The address of the repository that this checkout was cloned from, if it is one of a browser's."""
    command = ["git", "config", "--get", "remote.origin.url"]
    found = subprocess.run(command, cwd=DOCS, capture_output=True, text=True, check=False).stdout.strip()
    found = re.sub(r"^git@([^:]+):", r"https://\1/", found).removesuffix(".git")
    return found if re.match(r"https?://[^@]+$", found) else None


def _lists(entries: list[Any]) -> Iterator[list[Any]]:
    """All lists of a navigation, from the outermost on."""
    yield entries
    for section in [entry for entry in entries if isinstance(entry, dict)]:
        for inner in section.values():
            if isinstance(inner, list):
                yield from _lists(inner)


def _script(name: str) -> Any:
    """A script of this folder as a module."""
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def on_post_build(config: Any) -> None:
    """Write the notebooks of the tutorials, a report of short runs, and the tables as CSV files."""
    site, notebooks = Path(config.site_dir), _script("notebooks")
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        notebooks.write_notebook(page, site / "tutorials" / page.stem / f"{page.stem}.ipynb")
    _script("sample_report").write_report(site / "results" / "report.html")
    write_csv_files(tables(), judged(), site / "tables")


def on_config(config: Any) -> Any:
    """Link the repository; put the pages of the algorithms and of the reference in the navigation."""
    if not config.repo_url:
        config.repo_url = origin()
    by_kind: list[dict[str, Any]] = []
    placed = set[str]()
    for kind, members in groupby(ALGORITHMS.values(), key=lambda factory: factory.kind):
        # A page of several algorithms is where its first one is.
        pages = [page for page in dict.fromkeys(map(page_of, members)) if page not in placed]
        placed.update(pages)
        by_kind.append({kind.capitalize(): [{title_of(page): page} for page in pages]})
    sections = [{title: f"reference/{slug(title)}.md"} for title in reference()[1]]
    for entries in _lists(config.nav):
        for place, own in (("algorithms/*", by_kind), ("reference/*", sections)):
            if place in entries:
                at = entries.index(place)
                entries[at : at + 1] = own
    return config
