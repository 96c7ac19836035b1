"""What is checked on the pretended device, in a process of its own.

PyTorch starts its threads of differentiation for the devices that it knows then, once for a process, and a
process that has them cannot fork: the other tests do without.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

CHECKS = Path(__file__).parent / "checks"
ROOT = CHECKS.parent.parent.parent
PLUGIN = "tests.device.checks.plugin"


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch takes no backend in Python",
)
@pytest.mark.parametrize("chosen", ["not thorough", pytest.param("thorough", marks=pytest.mark.thorough)])
def test_on_the_pretended_device(chosen: str) -> None:
    files = sorted(map(str, CHECKS.glob("check_*.py")))
    assert files
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-p",
        PLUGIN,
        "-m",
        chosen,
        *files,
    ]
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
