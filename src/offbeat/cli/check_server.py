"""What `offbeat serve --check` does: it tests a server's set-up, and opens nothing."""

from collections.abc import Callable

from offbeat.cli.check_results import show_results
from offbeat.cli.server_set_up import ServerSetUp, check_access, check_state, make_run, page_address
from offbeat.experiment import Experiment
from offbeat.net.check import CheckResult, check_loading
from offbeat.net.server_check import check_server
from offbeat.runs.record import holds_run, read_run
from offbeat.runs.schema import DATABASE

_REFUSALS: dict[str, Callable[[ServerSetUp], object]] = {"access": check_access, "page": page_address}


def check_set_up(set_up: ServerSetUp, *, as_json: bool) -> None:
    """Check all that a server needs, and print the results. Ends with exit code 1 if a check has failed."""
    given = set_up.state, set_up.listen, set_up.page, set_up.credentials, set_up.options.clients
    results = [_as_served(set_up, result) for result in check_server(*given)]
    experiments: list[Experiment] = []
    results.append(check_loading("data", lambda: _data(set_up, experiments)))
    if experiments:
        results.append(check_loading("state", lambda: _state(set_up, experiments[0])))
    show_results(results, as_json=as_json)


def _as_served(set_up: ServerSetUp, result: CheckResult) -> CheckResult:
    """A result that passes only where the server would not refuse the same thing."""
    refuses = _REFUSALS.get(result.name)
    if refuses is None or not result.passed:
        return result

    def checked() -> str:
        refuses(set_up)
        return result.text

    return check_loading(result.name, checked)


def _data(set_up: ServerSetUp, made: list[Experiment]) -> str:
    """Load the test data and make the run; it is added to `made`."""
    run = make_run(set_up)
    made.append(run.experiment)
    return "no test data" if run.test is None else f"{len(run.test)} samples to test on"


def _state(set_up: ServerSetUp, experiment: Experiment) -> str:
    """Whether the state directory is free for a new run, or holds this one."""
    state = set_up.state
    check_state(set_up, experiment)
    if not (state / DATABASE).is_file() or not holds_run(state):
        return f"{state} has no run: a new one begins"
    return f"{state} has this run, {read_run(state).status}: it goes on"
