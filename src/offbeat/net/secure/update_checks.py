"""Check of the updates of a run with privacy: none is judged by itself."""

from msgspec.structs import replace

from offbeat.core.commands import Train
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.net.messages import UpdateSubmission
from offbeat.net.secure.masked_updates import MaskedUpdateCheck
from offbeat.net.server.driver import Driver
from offbeat.net.server.site_registry import SiteRecord
from offbeat.net.server.validation import EachUpdateCheck, UpdateCheck, UpdateForm


class PrivateUpdateCheck:
    """Checks the form of an update only: that its values are not finite, or absurd, would tell of the data.

    Args:
        form: The form of an update.
        samples_unit: Of what the numbers of samples are multiples that sites tell.
    """

    def __init__(self, form: UpdateForm, samples_unit: int) -> None:
        self._form, self.samples_unit = form, samples_unit

    def check(self, site: SiteRecord, command: Train, update: UpdateSubmission, base: Model) -> LocalResult:
        """Check an update, of which metrics are dropped; values that are not finite become zeros later."""
        return self._form.check(replace(update, metrics={}), base, command.steps, finite=False)


def update_check_of(plan: ReleasePlan | None, form: UpdateForm, driver: Driver) -> UpdateCheck:
    """The check of the updates of a run.

    Args:
        plan: What is fixed for the releases of the run. None means that each update is used by itself.
        form: The form of an update that is not masked.
        driver: The run's driver.
    """
    if plan is None:
        return EachUpdateCheck(form, driver.tensors, driver.directions)
    if driver.helpers is not None:
        return MaskedUpdateCheck(driver, driver.helpers.helpers, plan.privacy.samples_unit)
    return PrivateUpdateCheck(form, plan.privacy.samples_unit)
