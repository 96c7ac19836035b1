"""Refusals of secure aggregation, each in one sentence.

docs/privacy-refusals.md lists them, and a test compares.
"""

from enum import StrEnum
from typing import Any

from offbeat.core.errors import UsageError


class SecureRefusal(StrEnum):
    """A sentence of refusal; names in braces stand for the given values."""

    OTHER_COMMITTEE = "release {release} is of another committee than this helper's"
    NUMBERS = "a release, task, client or weight has more than 64 bits"
    CLIENTS = "release {release} has the updates of {clients} clients: {least} to {most} are summed together"
    CLIENT_TWICE = "client {client} is in release {release} twice"
    TASK_TWICE = "task {task} is in release {release} twice"
    RELEASED = "task {task} was released before, in release {earlier}"
    WEIGHT = "weight {weight} of task {task} is not allowed: 1 to {largest}"
    DOMINANT = (
        "task {task} has {percent:.3g} % of the weight of release {release}: "
        "at most {allowed:.3g} % is allowed"
    )
    GROUP = "group {group} is not one of this helper's"
    SEEDS = "the seeds of task {task} do not decrypt"
    FEW_VOTES = "release {release} has {votes} votes of helpers: {needed} are needed"
    WRONG_KEY = "the key of helper {name} is not one of X25519: name a new committee"
    PINNED_KEY = "the key of helper {name} is not the one in the policy file"
    PINNED_NAME = "helper {name} is not in the policy file"
    MALFORMED = "the committee is malformed: it needs 2 helpers, and 32 bytes of each key and of the run"
    PLAN = "the committee has {option} = {given}, the plan of this run has {planned}"
    SAME_KEY = (
        "helpers {name} and {other} have the same key, and would be one helper: start one of them with a new "
        "directory"
    )
    OWN_KEY = "the committee has another key for helper {name} than this helper's: name a new committee"
    COMMITTED = (
        "helper {name} serves another committee already: start it with a new file, and name a new committee"
    )
    ROLLED_BACK = "the file of helper {name} is older than the one seen before: name a new committee"
    FEW_HELPERS = (
        "the committee has {left} of the {needed} helpers that a release needs: name a new one with "
        "--set server.helpers"
    )
    LEFT_OUT = (
        "release {release} is not used: {left_out} of its updates have seeds that do not decrypt at {names}, "
        "and what is left of it may not be summed ({reason})"
    )
    REFUSED = "release {release} is not used: helper {name} refuses it ({reason})"
    NOT_VOTED = "release {release} is not used: {told}"
    CONTRADICTION = (
        "release {release} is not used: helpers {names} contradict each other, and who of them is right "
        "cannot be told"
    )
    REFUTED = "says that seeds do not decrypt, which the other helpers refute"
    LEFT_OUT_TOLD = (
        "the update of task {task} is left out of release {release}: its seeds do not decrypt at {names}"
    )
    WRONG_SHARE = "release {release}: helper {name} has answered with another release or length"
    FEW_ANSWERS = "release {release} is not used: {told}"
    GIVEN_UP = "release {release} is given up after {seconds:.0f} s: no answer of {names}"
    FAILING = (
        "{count} releases in a row have failed, and the next one waits for its helpers, which are asked "
        "again: {reason}; mend who is to blame, or name a new committee with --set server.helpers"
    )
    LOST = (
        "{names}: gone instead of an answer for a release; a helper ends so whose answers are malformed: "
        "look for its name in the log, mend it, or name a new committee with --set server.helpers"
    )
    OUT = (
        "helper {name} is out: it was in the minority twice, the last time as it {reason}; it is not asked "
        "any more, and takes part again in a new committee only"
    )
    FEWEST_LEFT = (
        "the committee has {left} helpers left, and a release needs {needed}: one more that is away, refuses "
        "or lies stops releases"
    )
    NOT_OPENED = (
        "the seeds of this site did not decrypt at {names} in {times} releases in a row, the last {release}: "
        "it is sent away"
    )
    SLOW = (
        "release {release}: helper {name} has not answered for {seconds:.0f} s: it is asked last from now on"
    )
    ASIDE = (
        "sums that this site takes part in cannot be those of clipped updates: it is put aside while "
        "releases without it are tried"
    )
    SPOILS = (
        "sums that this site takes part in cannot be those of clipped updates, and releases without it are "
        "right: it is sent away"
    )
    INVALID_SUM = (
        "release {release} is not used: its sum has norm {norm:.1e}, "
        "that of {updates} clipped updates is at most {bound:.1e}"
    )
    OTHER_HELPERS = (
        "release {release} is not used: a new committee has taken the place of the one it was masked for"
    )
    MOST = (
        "most = {most} is not allowed with helpers = {helpers}, colluding = {colluding}: "
        "a release of more than {allowed} updates does not fit into a message"
    )
    NOT_A_SITE = "{name} is a helper of this run: connect with offbeat helper, or choose another name"
    NOT_A_HELPER = "{name} is not a helper of this run, which has {helpers}: join it, or choose another name"
    OTHER_MASK = "masked for another committee: the task is trained again"

    def error(self, **given: Any) -> UsageError:
        """The error, with the given values in place of the names."""
        return UsageError(self.value.format(**given))
