"""What is checked on the pretended device, in a process of its own.

PyTorch starts its threads of differentiation for the devices that it knows then, once for a process, and a
process that has them cannot fork: the other tests do without.
"""

from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.forks import Fork

CHECKS = Path(__file__).parent / "checks"
ROOT = CHECKS.parent.parent.parent
SCRIPT = """
import os, sys
import pytest

for name in [name for name in os.environ if name.startswith("PYTEST_")]:
    del os.environ[name]
# A worker process imports the script.
if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch takes no backend in Python",
)
@pytest.mark.parametrize("chosen", ["not thorough", pytest.param("thorough", marks=pytest.mark.thorough)])
def test_on_the_pretended_device(chosen: str, tmp_path: Path) -> None:
    files = sorted(CHECKS.glob("check_*.py"))
    assert files
    script = tmp_path / "checks.py"
    script.write_text(SCRIPT, encoding="utf-8")
    options = ("-n0", "-p", "no:cacheprovider", "-p", "tests.device.checks.plugin", "-m", chosen)
    checks = Fork(script, *options, *files, cwd=ROOT, PYTHONPATH=str(ROOT))
    printed, errors = checks.communicate()
    assert checks.returncode == 0, printed[-8000:] + errors[-2000:]
