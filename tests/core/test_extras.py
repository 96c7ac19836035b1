"""The hint for an optional dependency that is not installed."""

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.extras import missing_extra, requires_extra


def test_the_hint_is_true_for_an_installed_package_and_for_a_checkout() -> None:
    assert str(missing_extra("grpc", "net")) == (
        'grpc is not installed: pip install "offbeat[net]", or in a checkout pip install -e ".[net]"'
    )
    assert str(missing_extra("ray", "ray", "executor ray: ")).startswith("executor ray: ray is not installed")


def test_a_failed_import_becomes_the_hint() -> None:
    with pytest.raises(UsageError, match="no_such_package is not installed"), requires_extra("net"):
        import no_such_package  # noqa: F401
