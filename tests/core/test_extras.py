"""The hint for an optional dependency that is not installed."""

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.extras import missing_extra, requires_extra
from offbeat.core.installation import install_hint


def test_the_hint_says_how_to_install_the_extra() -> None:
    assert str(missing_extra("grpc", "net")) == f"grpc is not installed: {install_hint('net')}"
    assert str(missing_extra("ray", "ray", "executor ray: ")).startswith("executor ray: ray is not installed")


def test_a_failed_import_becomes_the_hint() -> None:
    with pytest.raises(UsageError, match="no_such_package is not installed"), requires_extra("net"):
        import no_such_package  # noqa: F401
