"""What a run prints: a line with its facts, without tensors and journal."""

from dataclasses import replace
from pathlib import Path

import offbeat as ob

UNTIL = ob.Until(versions=3)


def test_a_run_prints_a_line_without_its_tensors(tmp_path: Path) -> None:
    learner = ob.NoTraining(3, parameters=2000)
    run = ob.simulate(ob.fedbuff(2, steps=5), learner=learner, until=UNTIL, out=tmp_path / "run")
    assert str(run) == repr(run)
    assert repr(run).startswith("<Run fedbuff: seed 0, clients 3, versions 3, client tasks 6, ")
    assert repr(run).endswith(f" s; reached 3 versions; {tmp_path / 'run'}>")
    assert repr(ob.read_run(tmp_path / "run")) == repr(run).replace("<Run ", "<RunRecord ")
    in_memory = ob.simulate(ob.fedbuff(2, steps=5), learner=learner, until=UNTIL)
    assert repr(in_memory).endswith(" s; reached 3 versions>")
    assert repr(run.model) == "<Model: tensors: 1, parameters: 2,000>"
    for text in (repr(run), repr(in_memory), repr([run, run.model])):
        assert "tensor(" not in text
        assert "\n" not in text


def test_its_metrics_are_in_the_line_and_a_run_that_goes_on_has_none() -> None:
    run = ob.simulate(ob.fedbuff(2, steps=5), learner=ob.NoTraining(3), until=UNTIL)
    summary = replace(run.summary, accuracy=0.77216, loss=0.93, metrics={"accuracy": 0.77216, "auroc": 0.5})
    assert ", accuracy 0.7722, auroc 0.5, loss 0.93, " in repr(replace(run, summary=summary))


def test_a_damaged_record_still_prints(tmp_path: Path) -> None:
    ob.simulate(ob.fedbuff(2, steps=5), learner=ob.NoTraining(3), until=UNTIL, out=tmp_path / "run")
    record = ob.read_run(tmp_path / "run")
    running = replace(record, meta={k: v for k, v in record.meta.items() if k != "summary"}, stop_reason=None)
    assert "versions" not in repr(running)
    damaged = replace(record, meta={**record.meta, "summary": {"seconds": "?"}})
    assert repr(damaged).startswith("<RunRecord fedbuff: ")
