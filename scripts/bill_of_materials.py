"""Write the bill of materials of the wheels in a folder, in CycloneDX, and look for what is wrong with it.

    python scripts/bill_of_materials.py PYTHON FOLDER

PYTHON is the interpreter of an environment in which these wheels are installed: the bill lists what that has,
with versions and licences. The script needs the distribution cyclonedx-bom. The exit code is 1 if the
bill is wrong.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_INSTALLED = (
    "import importlib.metadata as m, json; "
    "print(json.dumps(sorted({(d.name, d.version) for d in m.distributions()})))"
)


def _output(*command: str | Path, epoch: str = "") -> str:
    environment = {**os.environ, **({"SOURCE_DATE_EPOCH": epoch} if epoch else {})}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_bill(python: Path, dist: Path) -> Path:
    """Write the bill of materials beside the wheels; returns its file.

    Args:
        python: Interpreter of the environment.
        dist: Folder of the wheels.
    """
    wheel = next(dist.glob("offbeat-*.whl"))
    text = _output(
        sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml",
        "--output-reproducible", "--of", "JSON", "-o", "-", python,
        epoch=_output("git", "log", "-1", "--format=%ct").strip(),
    )  # fmt: skip
    bill = json.loads(text)
    # Folders of the machine that builds are nobody's business: the wheels lie beside the bill.
    for reference in _references(bill):
        if reference["url"].startswith("file:"):
            reference["url"] = reference["url"].rpartition("/")[2]
    bill["metadata"]["component"]["hashes"] = [{"alg": "SHA-256", "content": _sha256(wheel)}]
    path = dist / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    return path


def _references(bill: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for component in (bill["metadata"]["component"], *bill["components"]):
        yield from component.get("externalReferences", ())


def problems(path: Path, python: Path) -> list[str]:
    """What is wrong with the form of a bill of materials, and with what it lists.

    Args:
        path: File of the bill, beside the wheels.
        python: Interpreter of the environment.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = path.read_text("utf-8")
    bill = json.loads(text)
    invalid = JsonStrictValidator(SchemaVersion.from_version(bill["specVersion"])).validate_str(text)
    installed = {(name, version) for name, version in json.loads(_output(python, "-c", _INSTALLED))}
    return [f"not valid: {invalid}"] * bool(invalid) + differences(bill, installed, path.parent.glob("*.whl"))


def differences(bill: dict[str, Any], installed: set[tuple[str, str]], wheels: Iterable[Path]) -> list[str]:
    """What a bill lacks of an environment and of its wheels, and which folders of this machine it names.

    Args:
        bill: The bill.
        installed: Name and version of each distribution in the environment.
        wheels: The wheels that the bill is for.
    """
    root, references = bill["metadata"]["component"], list(_references(bill))
    listed = {(each["name"], each.get("version")) for each in (root, *bill["components"])}
    sums = {digest["content"] for each in (root, *references) for digest in each.get("hashes", ())}
    return [
        *(f"not listed: {name} {version}" for name, version in sorted(installed - listed)),
        *(f"another {wheel.name}" for wheel in sorted(wheels) if _sha256(wheel) not in sums),
        *(f"a folder of this machine: {each['url']}" for each in references if "file:" in each["url"]),
    ]


def main() -> None:
    """Write the bill and look at it."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    python, dist = (Path(word).absolute() for word in sys.argv[1:])
    bill = write_bill(python, dist)
    if wrong := problems(bill, python):
        sys.exit("\n".join(wrong))
    print(bill)


if __name__ == "__main__":
    main()
