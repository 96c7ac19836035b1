"""How checks are run: in their order, with one result for each."""

from offbeat.core.errors import UsageError
from offbeat.net.checks import Check, CheckResult, run_checks
from offbeat.net.transport import ChannelClosedError


def test_a_check_passes_fails_does_not_apply_or_is_left_out():
    asked: list[str] = []

    def found(text: str) -> str | None:
        asked.append(text)
        return text or None

    def wrong(text: str) -> str:
        raise UsageError(f"{text} cannot be used")

    def closed(text: str) -> str:
        raise ChannelClosedError("the server is gone")

    checks = (
        Check("data", found),
        Check("policy", wrong),
        Check("link", closed, after=("data",)),
        Check("token", found, after=("data", "link")),
        Check("disk", found, after=("data",)),
    )
    passed = CheckResult("data", True, "5 samples")
    failed = [
        CheckResult("policy", False, "5 samples cannot be used"),
        CheckResult("link", False, "the server is gone"),
    ]
    assert list(run_checks(checks, "5 samples")) == [passed, *failed, CheckResult("disk", True, "5 samples")]
    assert asked == ["5 samples", "5 samples"]
    assert list(run_checks(checks[:1], "")) == []
