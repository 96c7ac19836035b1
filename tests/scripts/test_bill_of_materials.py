"""The bill of materials: what it lacks is found."""

from hashlib import sha256
from pathlib import Path

from tests.script_modules import load_script

script = load_script(Path(__file__).parents[2] / "scripts" / "bill_of_materials.py")


def test_what_a_bill_lacks_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "offbeat-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    hashes = [{"alg": "SHA-256", "content": sha256(b"wheel").hexdigest()}]
    root = {"name": "offbeat", "version": "1.0", "hashes": hashes}
    numpy = {"name": "numpy", "version": "2.0", "externalReferences": [{"url": "https://numpy.org"}]}
    bill = {"metadata": {"component": root}, "components": [numpy]}
    installed = {("offbeat", "1.0"), ("numpy", "2.0")}
    assert script.differences(bill, installed, [wheel]) == []

    wheel.write_bytes(b"another")
    numpy["externalReferences"] = [{"url": "file:///home/me/numpy.whl"}]
    assert script.differences(bill, {*installed, ("torch", "2.6.0")}, [wheel]) == [
        "not listed: torch 2.6.0",
        "another offbeat-1.0-py3-none-any.whl",
        "a folder of this machine: file:///home/me/numpy.whl",
    ]
