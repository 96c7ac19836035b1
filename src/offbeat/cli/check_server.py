"""What `offbeat serve --check` does: it tests a server's set-up, and opens nothing."""

from dataclasses import replace
from pathlib import Path

from offbeat.allowed import Allow
from offbeat.cli.check_results import show_results
from offbeat.cli.state_dir import is_locked
from offbeat.core.errors import RunError, UsageError
from offbeat.experiment import Experiment
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.check import CheckResult, check_loading
from offbeat.net.run_spec import make_run_spec
from offbeat.net.server.open_run import check_same
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server_check import check_server
from offbeat.recipes.build import make_algorithm, make_experiment, make_server_learner
from offbeat.recipes.recipe import Recipe
from offbeat.runs.record import holds_run, read_run
from offbeat.runs.schema import DATABASE


def check_set_up(
    recipe: Recipe,
    state: Path,
    listen: str,
    page: str | None,
    credentials: ServerCredentials,
    server_options: ServerOptions,
    test: str | None,
    allow: Allow,
    *,
    as_json: bool,
) -> None:
    """Check all that a server needs, and print the results. Ends with exit code 1 if a check has failed."""
    results = list(check_server(state, listen, page, credentials, server_options.clients))
    experiments: list[Experiment] = []
    results.append(check_loading("data", lambda: _data(recipe, test, allow, experiments)))
    results.append(_check_state(state, server_options, experiments))
    show_results(results, as_json=as_json)


def _data(recipe: Recipe, test: str | None, allow: Allow, made: list[Experiment]) -> str:
    """Load the test data and make the run's model and algorithm; the run is added to `made`."""
    learner = make_server_learner(recipe, test, allow)
    made.append(make_experiment(recipe, make_algorithm(recipe.algorithm, allow), learner))
    tested = learner.data.test
    return "no test data" if tested is None else f"{len(tested)} samples to test on"


def _check_state(state: Path, server_options: ServerOptions, made: list[Experiment]) -> CheckResult:
    """Whether the state directory is free for a new run, or holds this one."""
    try:
        return CheckResult("state", True, _state(state, server_options, made))
    except (RunError, UsageError) as error:
        return CheckResult("state", False, str(error))


def _state(state: Path, server_options: ServerOptions, made: list[Experiment]) -> str:
    if not (state / DATABASE).is_file() or not holds_run(state):
        return f"{state} has no run: a new one begins"
    if is_locked(state):
        raise UsageError(
            f"another process is serving {state}: end it with offbeat stop {state}, or choose another "
            "directory"
        )
    record = read_run(state)
    if made:
        experiment = made[0]
        layout = experiment.learner.initial(experiment.seed).layout if experiment.learner else None
        plan = experiment.release_plan(layout, server_options.clients) if layout is not None else None
        spec = make_run_spec(replace(experiment, privacy=plan.privacy if plan else None))
        check_same(record, spec)
    return f"{state} has this run, {record.status}: it goes on"
