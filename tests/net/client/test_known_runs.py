"""A site remembers what a run has promised: servers that deviate get nothing from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

import offbeat as ob
from offbeat.core.errors import DamageError, UsageError
from offbeat.net import SitePolicy
from offbeat.net.client.known_runs import FILE, KnownRuns
from offbeat.net.messages import (
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    Registered,
    RunFinished,
    TaskCancel,
    TaskFailed,
    TaskRecall,
    UpdateSubmission,
)
from offbeat.net.transport import ServerChannel
from offbeat.secure.committee import fingerprint
from tests.net.deviating_server import (
    HELPERS,
    MODEL,
    code_of,
    committee_of,
    meet,
    plan_of,
    sent_of_training,
    serving,
    task_of,
)

pytestmark = pytest.mark.usefixtures("here")

NOISE = ob.Noise(multiplier=4, budget=ob.Budget(epsilon=8, delta=1e-5))
NOISY = ob.Privacy(clip=0.5, least=3, noise=NOISE)
SECURE = ob.Privacy(clip=0.5, least=4, colluding_clients=2, secure=ob.Secure(HELPERS, 1))
BOTH = replace(SECURE, noise=NOISE)


def noise_of(**changed: Any) -> ob.Noise:
    return replace(NOISE, **changed)


@pytest.mark.parametrize(
    ("promised", "offered", "short"),
    [
        (NOISY, None, "noise of multiplier 4, now no privacy"),
        (BOTH, None, "secure aggregation and noise of multiplier 4, now no privacy"),
        (BOTH, NOISY, "secure aggregation, now none"),
        (BOTH, SECURE, "noise of multiplier 4, now none"),
        (NOISY, replace(NOISY, noise=noise_of(multiplier=3.9)), "noise of multiplier 4, now 3.9"),
        (
            NOISY,
            replace(NOISY, noise=noise_of(budget=ob.Budget(9, 1e-5))),
            "a budget of epsilon = 8, now epsilon = 9",
        ),
        (
            NOISY,
            replace(NOISY, noise=noise_of(budget=ob.Budget(None, 1e-5))),
            "a budget of epsilon = 8, now no limit",
        ),
        (NOISY, replace(NOISY, noise=noise_of(budget=ob.Budget(8, 1e-4))), "delta = 1e-05, now 0.0001"),
        (NOISY, replace(NOISY, noise=noise_of(bands=4)), "bands = 1, now 4"),
        (
            replace(NOISY, noise=noise_of(accounting="zcdp")),
            NOISY,
            "accounting = zcdp, now gdp",
        ),
        (NOISY, replace(NOISY, least=2), "least = 3, now 2"),
        (NOISY, replace(NOISY, clip=0.6), "clip = 0.5, now 0.6"),
        (NOISY, replace(NOISY, labels="public"), "labels that stay at the sites, now labels: public"),
        (SECURE, replace(SECURE, dominance=0.6), "dominance = 0.5, now 0.6"),
        (SECURE, replace(SECURE, colluding_clients=1), "colluding_clients = 2, now 1"),
        (
            replace(SECURE, secure=ob.Secure(HELPERS, 2)),
            SECURE,
            "colluding = 2, now 1",
        ),
        (
            SECURE,
            replace(SECURE, secure=ob.Secure(("anna", "bert", "mallory"), 1)),
            "the helpers anna, bert, cleo, now anna, bert, mallory",
        ),
    ],
)  # fmt: skip
def test_less_privacy_than_promised_gets_nothing_until_it_is_accepted(
    promised: ob.Privacy, offered: ob.Privacy | None, short: str, tmp_path: Path
) -> None:
    """By a server that is started again, or another one that knows the run's name."""
    keys = None if promised.secure is None else committee_of(promised)
    assert meet(serving(promised, [task_of(0)], keys), tmp_path)[0] == "done"
    keys = None if offered is None or offered.secure is None else committee_of(offered)
    weaker = serving(offered, [task_of(1)], keys)
    error, said = meet(weaker, tmp_path)
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"run heart has promised {short}: ask the server's operator")
    assert not sent_of_training(said)
    assert [type(message) for message in said] == [Register, Leave]
    for wrong in ("", "0" * 32):
        assert isinstance(meet(weaker, tmp_path, accept=[wrong])[0], UsageError)
    codes = [code_of(error)]
    ended, said = meet(weaker, tmp_path, accept=codes)
    if isinstance(ended, UsageError):  # other helpers have other keys too
        assert not sent_of_training(said)
        codes.append(code_of(ended))
        ended, said = meet(weaker, tmp_path, accept=codes)
    assert ended == "done"
    assert len(sent_of_training(said)) == 1
    assert meet(serving(offered, [task_of(2)], keys), tmp_path)[0] == "done"  # it is recorded
    recorded = KnownRuns(tmp_path)._runs["heart"].accepted
    assert recorded[0].what == f"run heart has promised {short}"
    assert len(recorded) == len(codes)


@pytest.mark.parametrize(
    "offered",
    [
        NOISY,
        replace(NOISY, noise=noise_of(multiplier=8, budget=ob.Budget(4, 1e-6), accounting="zcdp")),
        replace(NOISY, least=4, clip=0.4),
    ],
)
def test_what_is_not_less_is_taken_and_holds_from_then_on(offered: ob.Privacy, tmp_path: Path) -> None:
    assert meet(serving(None, [task_of(0)]), tmp_path)[0] == "done"  # which promises nothing
    for number, privacy in enumerate((NOISY, offered), 1):
        assert meet(serving(privacy, [task_of(number)]), tmp_path)[0] == "done"
    if offered is not NOISY:
        error, said = meet(serving(NOISY, [task_of(3)]), tmp_path)
        assert isinstance(error, UsageError)
        assert not sent_of_training(said)


def test_a_code_is_good_for_one_change(tmp_path: Path) -> None:
    """Left on the command line it accepts no second replay."""
    assert meet(serving(NOISY, [task_of(0)]), tmp_path)[0] == "done"
    code = code_of(meet(serving(None, []), tmp_path)[0])
    assert meet(serving(None, [task_of(1)]), tmp_path, accept=[code])[0] == "done"
    assert meet(serving(NOISY, [task_of(2)]), tmp_path, accept=[code])[0] == "done"
    error, said = meet(serving(None, [task_of(3)]), tmp_path, accept=[code])
    assert isinstance(error, UsageError)
    assert code_of(error) != code
    assert not sent_of_training(said)


@pytest.mark.parametrize("offered", [NOISY, None])
def test_another_run_with_the_same_data_gets_nothing_until_it_is_accepted(
    offered: ob.Privacy | None, tmp_path: Path
) -> None:
    """A server can give a run any name."""
    assert meet(serving(NOISY, [task_of(0)]), tmp_path)[0] == "done"
    other = serving(offered, [task_of(0)], run="lungs")
    error, said = meet(other, tmp_path)
    once_more = "run lungs would use the same data once more" + ("" if offered else " without privacy")
    assert str(error).startswith(f"this site has a promise of privacy of run heart; {once_more}: ask")
    assert [type(message) for message in said] == [Register, Leave]
    assert meet(other, tmp_path, accept=[code_of(error)])[0] == "done"
    assert meet(serving(offered, [task_of(1)], run="lungs"), tmp_path)[0] == "done"
    error, _ = meet(serving(NOISY, [task_of(0)]), tmp_path)  # the first run is remembered all the same
    assert str(error).startswith("the server gives task 0 a second time, though it was acknowledged")
    assert isinstance(meet(serving(None, []), tmp_path)[0], UsageError)
    assert isinstance(meet(serving(NOISY, [], run="spleen"), tmp_path)[0], UsageError)


def test_runs_without_privacy_promise_nothing(tmp_path: Path) -> None:
    for run in ("heart", "lungs", "heart"):
        assert meet(serving(None, [task_of(0)], run=run), tmp_path)[0] == "done"
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("connection", ["the same", "another", "a restart"])
def test_other_keys_in_mid_run_get_nothing_until_they_are_accepted(
    connection: str, epoch: int, tmp_path: Path
) -> None:
    first, other = committee_of(SECURE), committee_of(SECURE, "swapped", epoch)
    connections = 0

    async def swapping(channel: ServerChannel) -> None:
        nonlocal connections
        connections += 1
        await channel.receive()
        channel.send(Registered(0, "heart", plan_of(SECURE), 60.0, False, "site"))
        if connections == 1:
            channel.send(first)
            channel.send(task_of(0))
            assert isinstance(await channel.receive(), UpdateSubmission)  # which it keeps to itself
            if connection == "another":
                await channel.close()
                return
        channel.send(other)
        channel.send(task_of(0 if connection == "a restart" else 1))
        message = await channel.receive()
        if isinstance(message, UpdateSubmission) and message.committee != first.digest:
            channel.send(RunFinished("has it", "heart"))
        await channel.receive()

    if connection == "a restart":
        assert meet(serving(SECURE, [task_of(0)], first), tmp_path)[0] == "done"
        connections = 1
    error, said = meet(swapping, tmp_path)
    assert str(error).startswith(
        "run heart has promised the keys that it told at first, now another key of helper anna, bert, cleo: "
    )
    assert {m.committee for m in said if isinstance(m, UpdateSubmission)} <= {first.digest}
    assert isinstance(said[-1], Leave)
    script = serving(SECURE, [task_of(2)], other)
    assert isinstance(meet(script, tmp_path)[0], UsageError)
    ended, said = meet(script, tmp_path, accept=[code_of(error)])
    assert ended == "done"
    assert isinstance(said[-2], UpdateSubmission)
    assert said[-2].committee == other.digest
    error, said = meet(serving(SECURE, [task_of(3)], first), tmp_path)  # nor back
    assert isinstance(error, UsageError)
    assert not sent_of_training(said)


def test_a_policy_that_names_the_new_keys_accepts_them(tmp_path: Path) -> None:
    """The way of a run whose helpers are lost: sites name the new ones in their policy."""
    names = ("anna", "bert", "dora")
    after = replace(SECURE, secure=ob.Secure(names, 1))
    first, other = committee_of(SECURE), committee_of(after, "new", 2)
    assert meet(serving(SECURE, [task_of(0)], first), tmp_path)[0] == "done"
    policy = SitePolicy(helpers={h.name: fingerprint(h.public_key, h.verify_key) for h in other.helpers})
    assert meet(serving(after, [task_of(1)], other), tmp_path, policy=policy)[0] == "done"
    assert meet(serving(after, [task_of(2)], other), tmp_path)[0] == "done"
    error, said = meet(serving(SECURE, [task_of(3)], first), tmp_path, policy=policy)
    assert isinstance(error, UsageError)
    assert not sent_of_training(said)


def test_a_plan_that_changes_within_a_connection(tmp_path: Path) -> None:
    """While a task is in training, too: its update stays here."""

    async def changing(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, "heart", plan_of(NOISY), 60.0, False, "site"))
        channel.send(task_of(0))
        channel.send(Registered(0, "heart", plan_of(None), 60.0, False, "site"))
        await channel.receive()

    error, said = meet(changing, tmp_path)
    assert str(error).startswith("run heart has promised noise of multiplier 4, now no privacy")
    assert [type(message) for message in said] == [Register, Leave]


def test_without_a_directory_a_process_remembers(caplog: pytest.LogCaptureFixture) -> None:
    connections = 0

    async def weaker_each_time(channel: ServerChannel) -> None:
        nonlocal connections
        connections += 1
        await channel.receive()
        privacy = NOISY if connections == 1 else None
        channel.send(Registered(0, "heart", plan_of(privacy), 60.0, False, "site"))
        channel.send(task_of(connections))
        await channel.receive()
        await channel.close()

    error, said = meet(weaker_each_time, None)
    assert str(error).startswith("run heart has promised noise of multiplier 4, now no privacy")
    assert [type(message) for message in said] == [Register, UpdateSubmission, Register, Leave]
    assert "without state (--state) what this run promises is forgotten with this process" in caplog.text


# ---- tasks ----


def updates(said: Any) -> list[UpdateSubmission]:
    return [message for message in said if isinstance(message, UpdateSubmission)]


def same(one: UpdateSubmission, other: UpdateSubmission) -> bool:
    return torch.equal(torch.as_tensor(one.delta), torch.as_tensor(other.delta)) and one.boxes == other.boxes


@pytest.mark.parametrize("privacy", [NOISY, SECURE])
@pytest.mark.parametrize(
    "changed", [{"steps": 3}, {"seed": 4}, {"lr_factor": 0.5}, {"ask_after": 1}, {"model": None}, {}]
)
def test_an_acknowledged_task_is_not_trained_again(
    changed: dict[str, Any], privacy: ob.Privacy, tmp_path: Path
) -> None:
    keys = None if privacy.secure is None else committee_of(privacy)
    again = task_of(5, **({"model": other_model()} if "model" in changed else changed))
    for state in (tmp_path / "restarted", tmp_path / "connected"):
        first = serving(privacy, [task_of(5)], keys)
        if state.name == "connected":
            first = serving(privacy, [task_of(5), again], keys)
        error, said = meet(first, state)
        if state.name == "restarted":
            assert error == "done"
            error, more = meet(serving(privacy, [again], keys), state)
            said += more
        assert str(error).startswith("the server gives task 5 a second time")
        assert len(updates(said)) == 1


def other_model() -> Any:
    return structs.replace(MODEL, values=MODEL.values + 0.01)


@pytest.mark.parametrize("privacy", [NOISY, SECURE])
def test_a_task_that_was_not_acknowledged_is_sent_again_as_it_was(
    privacy: ob.Privacy, tmp_path: Path
) -> None:
    keys = None if privacy.secure is None else committee_of(privacy)

    async def silent(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, "heart", plan_of(privacy), 60.0, False, "site"))
        if keys is not None:
            channel.send(keys)
        channel.send(task_of(5))
        await channel.receive()
        channel.send(task_of(5))
        await channel.receive()
        channel.send(task_of(5, steps=3))
        await channel.receive()

    error, said = meet(silent, tmp_path)
    assert str(error).startswith("the server gives task 5 a second time, with other steps")
    ended, more = meet(serving(privacy, [], keys), tmp_path)
    assert ended == "done"
    assert len(updates(said)) == 2
    assert all(same(update, updates(said)[0]) for update in updates(said + more))


@pytest.mark.parametrize("recalled", [False, True])
def test_a_cancelled_task_has_one_result(recalled: bool, tmp_path: Path) -> None:
    """One that is recalled the second time would end after other steps."""

    async def cancelling(channel: ServerChannel) -> None:
        await channel.receive()
        channel.send(Registered(0, "heart", plan_of(NOISY), 60.0, False, "site"))
        channel.send(task_of(5, steps=6, ask_after=2))
        for again in (False, True):
            assert isinstance(await channel.receive(), ModelRequest)
            if again and recalled:
                channel.send(TaskRecall(5))
            channel.send(ModelResponse(5))
            await channel.receive()
            channel.send(TaskCancel(5, "its update is not needed"))
            channel.send(task_of(5, steps=6, ask_after=2))
        await channel.receive()
        channel.send(RunFinished("done", "heart"))
        await channel.receive()

    _, said = meet(cancelling, tmp_path)
    sent = updates(said)
    assert all(same(update, sent[0]) for update in sent)
    assert len(sent) == (1 if recalled else 2)
    told = [message.reason for message in said if isinstance(message, TaskFailed)]
    assert told == (["OtherResultError"] if recalled else [])


def test_a_task_is_masked_anew_for_accepted_helpers_with_the_same_result(tmp_path: Path) -> None:
    first, other = committee_of(SECURE), committee_of(SECURE, "new", 2)
    script = serving(SECURE, [task_of(5)], first, acknowledges=False)
    ended, said = meet(script, tmp_path)
    assert ended == "done"
    again = serving(SECURE, [task_of(5)], other)
    ended, more = meet(again, tmp_path, accept=[code_of(meet(again, tmp_path)[0])])
    assert ended == "done"
    (one,), (two,) = updates(said), updates(more)
    assert (one.committee, two.committee) == (first.digest, other.digest)
    error, more = meet(serving(SECURE, [task_of(5)], other), tmp_path)
    assert "though it was acknowledged" in str(error)


# ---- the file ----


def test_a_damaged_file_ends_the_site_in_one_line(tmp_path: Path) -> None:
    assert meet(serving(NOISY, [task_of(0)]), tmp_path)[0] == "done"
    whole = bytearray((tmp_path / FILE).read_bytes())
    whole[-3] ^= 1
    (tmp_path / FILE).write_bytes(whole)
    error, said = meet(serving(None, [task_of(1)]), tmp_path)
    assert isinstance(error, DamageError)
    assert "what runs have promised the site" in str(error)
    assert not said


def test_a_promise_that_cannot_be_written_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("offbeat.net.client.known_runs.write_tensors", full)
        error, said = meet(serving(NOISY, [task_of(0)]), tmp_path)
    assert "cannot write the site's state" in str(error)
    assert not sent_of_training(said)
