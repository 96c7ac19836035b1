"""The helpers of a run that has none: everything goes on, and nobody is a helper."""

import pytest

from offbeat.core.events import Begin
from offbeat.core.privacy.privacy_options import Noise, Privacy
from offbeat.core.privacy.releases import ReleasePlan
from offbeat.net.messages import Register, Registered
from offbeat.net.secure.helpers import Helpers, NoHelpers
from offbeat.net.secure.secure_aggregation import SecureAggregation, helpers_of
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.validation import InvalidUpdateError


def members(contract: type) -> set[str]:
    """What a class offers to others, without what every class has."""
    return {name for name in dir(contract) if not name.startswith("_")} | set(contract.__annotations__)


def test_no_helpers_do_all_that_helpers_do():
    assert members(NoHelpers) == members(Helpers)
    assert members(SecureAggregation) >= members(Helpers) - {"names", "connected"}


@pytest.mark.parametrize("noise", [None, Noise(multiplier=1.0)])
def test_a_run_without_secure_aggregation_has_none(noise: Noise | None):
    plan = None if noise is None else ReleasePlan(Privacy(clip=1.0, weight_bits=0, most=3, noise=noise), 4, 5)
    assert isinstance(helpers_of(plan, ServerOptions())(None), NoHelpers)  # type: ignore[arg-type]


def test_all_that_others_would_hold_up_goes_on():
    done, helpers = list[str](), NoHelpers()
    helpers.settle(0.0, Begin(), lambda: done.append("settled"))
    helpers.unless_waiting(lambda: done.append("action"), lambda: done.append("instead"))
    helpers.when_ready(lambda: done.append("ready"))
    helpers.while_heard(done.append(step) for step in ("a", "b"))
    assert done == ["settled", "action", "ready", "a", "b"]
    assert not helpers.postpones("anna")
    assert helpers.next_due(lambda: 7.0) == 7.0
    assert helpers.choose("anna", helper=1, site=2) == 2


def test_nobody_may_register_as_a_helper():
    NoHelpers().check_site("anna", Register(1, 1))
    with pytest.raises(InvalidUpdateError, match="anna"):
        NoHelpers().check_site("anna", Register(0, 0, public_key=bytes(32)))
    told = Registered(0, "run", {}, 60.0)
    assert NoHelpers().registered("anna", told) is told
