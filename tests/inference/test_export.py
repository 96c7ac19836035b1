"""Files of a run's model: what they hold is the run's model, and what cannot be written is refused."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import offbeat as ob
from offbeat.core.model import Model
from offbeat.local.seeding import seeded
from offbeat.models.specs import MLPSpec, ModelMaker
from tests.net.support import run_spec
from tests.sampling import thorough

DATA = ob.federate(
    ob.Dataset(torch.randn(8, 3), torch.arange(8) % 2, 2),
    ob.Dataset(torch.randn(4, 3), torch.arange(4) % 2, 2),
    np.split(np.arange(8), 2),
)

export = partial(ob.export, allow=[f"{__name__}:{name}" for name in ("Tied", "Branching")])


class Tied(nn.Module):
    """A frozen layer, which the seed draws, one under two names, and a head."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, width).requires_grad_(False)
        self.body = self.again = nn.Linear(width, width)
        self.head = nn.Linear(width, 2)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.body(self.frozen(x)))) * self.scale


def run_of(path: Path, module: Any = Tied, seed: int = 5, **options: Any) -> ob.Run:
    learner = ob.TorchLearner(module, DATA, ob.Training(batch_size=4), **options)
    return ob.simulate(
        ob.fedbuff(size=1, steps=1), learner=learner, seed=seed, until=ob.Until(versions=3), out=path
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ob.Run:
    return run_of(tmp_path_factory.mktemp("export") / "run")


def scores(module: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return module.eval()(DATA.test.x)  # type: ignore[union-attr, no-any-return]


def of_the_run(run: ob.Run) -> nn.Module:
    """The module with the run's weights, made as its learner has made it."""
    return run.model.load_into(seeded(Tied, 5))


def test_a_state_dict_has_all_tensors_the_frozen_ones_too(run: ob.Run, tmp_path: Path) -> None:
    exported = export(run.path, tmp_path / "model.pt")  # type: ignore[arg-type]
    assert exported == ob.ExportedModel(
        tmp_path / "model.pt", exported.metadata, (), tmp_path / "model.pt.md"
    )
    module = Tied()
    module.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(scores(module), scores(of_the_run(run)))


def test_a_safetensors_file_says_what_it_is(run: ob.Run, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    exported = export(ob.read_run(run.path), file)  # type: ignore[arg-type]
    module = Tied()
    module.load_state_dict(load_file(file))
    assert torch.equal(scores(module), scores(of_the_run(run)))
    with safe_open(file, "pt") as opened:
        found = opened.metadata()
    assert len(found.pop("xxh3_64")) == 16
    assert found == exported.metadata
    assert (found["architecture"], found["arguments"]) == (f"{__name__}:Tied", "{}")
    assert (found["version"], found["seed"], found["label"], found["run"]) == ("3", "5", "fedbuff", "run")
    assert found["digest"] == run.model.digest() == Model.of(module_of(file)).digest()
    assert json.loads(found["metrics"]) == run.summary.metrics
    assert json.loads(found["algorithm"])["size"] == 1


def module_of(file: Path) -> nn.Module:
    module = Tied()
    module.load_state_dict(load_file(file))
    return module


def test_a_run_goes_on_from_an_exported_file(run: ob.Run, tmp_path: Path) -> None:
    export(run.path, tmp_path / "model.safetensors")  # type: ignore[arg-type]
    starts = [run.path, tmp_path / "model.safetensors"]
    ends = [
        ob.simulate(
            ob.fedavg(steps=1), learner=ob.TorchLearner(Tied, DATA), seed=5, until=ob.Until(versions=1),
            initial=start, evaluate=None,
        ).model.digest()
        for start in starts
    ]  # fmt: skip
    assert ends[0] == ends[1]


def test_personal_tensors_are_left_out_and_named(tmp_path: Path) -> None:
    run_of(tmp_path / "run", personal=["head.*"])
    exported = export(tmp_path / "run", tmp_path / "model.pt")
    assert exported.missing == ("head.weight", "head.bias")
    assert not exported.missing & torch.load(tmp_path / "model.pt", weights_only=True).keys()
    for name in ("model.pt2", "model.onnx"):
        with pytest.raises(ob.UsageError, match=r"needs all tensors, and head\.weight, head\.bias stay at"):
            export(tmp_path / "run", tmp_path / name)


def test_the_best_version(run: ob.Run, tmp_path: Path) -> None:
    with pytest.raises(ob.UsageError, match=r"has no best\.safetensors: leave out --best"):
        export(run.path, tmp_path / "best.pt", best=True)  # type: ignore[arg-type]
    run_of(tmp_path / "run")
    better = {name: tensor + 1 for name, tensor in run.model.state_dict().items()}
    kept = {"metric": "loss", "value": "0.5", "version": "2", "t": "1.0"}
    save_file(better, tmp_path / "run" / "best.safetensors", kept)
    exported = export(tmp_path / "run", tmp_path / "best.pt", best=True)
    assert exported.metadata["version"] == "2"
    assert json.loads(exported.metadata["metrics"])["loss"] == run.metrics[2]["loss"]
    found = torch.load(tmp_path / "best.pt", weights_only=True)
    assert torch.equal(found["body.weight"], better["body.weight"])


def test_a_served_run_is_described_by_its_plan(run: ob.Run, tmp_path: Path) -> None:
    learner = ob.TorchLearner(Tied, DATA, ob.Training(batch_size=4))
    plan = run_spec(ob.fedbuff(size=1, steps=1), learner, 5).document()
    record = ob.read_run(run.path)  # type: ignore[arg-type]
    meta = {key: value for key, value in record.meta.items() if key != "learner"} | {
        "plan": plan,
        "run": "6f",
    }
    exported = export(replace(record, meta=meta), tmp_path / "model.safetensors")
    assert exported.metadata["run"] == "6f"
    assert torch.equal(scores(module_of(exported.path)), scores(of_the_run(run)))
    with pytest.raises(
        ob.UsageError, match=r"needs the shape of a sample.*offbeat\.export\(run, file, example"
    ):
        export(replace(record, meta=meta), tmp_path / "model.pt2")
    dtype, shape = ob.read_run(run.path).entry("learner")["sample"]  # as a server with test data records it
    described = replace(record, meta=meta | {"sample": [dtype, shape]})
    export(described, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    example = torch.zeros(3, *shape, dtype=getattr(torch, dtype))
    assert torch.allclose(program(example), of_the_run(run)(example), atol=1e-6)


@pytest.mark.parametrize("sample", [["float32", [2**20, 2**20]], ["float32", [0, 2**62]], ["save", [4]]])
def test_a_sample_that_a_hostile_directory_records_is_not_made(
    sample: Any, run: ob.Run, tmp_path: Path
) -> None:
    record = ob.read_run(run.path)  # type: ignore[arg-type]
    learner = record.meta["learner"] | {"sample": sample}
    hostile = replace(record, meta=record.meta | {"learner": learner})
    with pytest.raises(ob.UsageError, match=r"the run records a sample of .* 1 to 268,435,456 numbers"):
        export(hostile, tmp_path / "model.pt2")


def test_a_run_that_has_not_finished_has_no_model_yet(tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ob.simulate(
            ob.fedavg(steps=1), learner=ob.TorchLearner(Tied, DATA), until=ob.Until(versions=3),
            out=tmp_path / "run", watch=interrupt,
        )  # fmt: skip
    with pytest.raises(ob.UsageError, match="is interrupted, and a run writes its model when it finishes"):
        export(tmp_path / "run", tmp_path / "model.pt")
    record = ob.read_run(tmp_path / "run")
    served = record.meta | {"plan": {}}
    for meta, command in ((record.meta, "offbeat resume"), (served, "the same offbeat serve")):
        with pytest.raises(ob.UsageError, match=rf"let it finish \({command}\)"):
            export(replace(record, meta=meta), tmp_path / "model.pt")


@pytest.mark.parametrize("module", [Tied(), lambda: Tied(), Model.of(nn.Linear(3, 2))])
def test_a_module_without_a_name_is_asked_for(module: Any, tmp_path: Path) -> None:
    if isinstance(module, Model):
        ob.simulate(
            ob.fedavg(steps=1), learner=ob.NoTraining(2, 8), until=ob.Until(versions=1), out=tmp_path / "run"
        )
    else:
        run_of(tmp_path / "run", module)
    with pytest.raises(ob.UsageError, match=r"give --model module:function \(in Python module=…\)"):
        export(tmp_path / "run", tmp_path / "model.pt")
    if not isinstance(module, Model):  # a function draws the frozen layer from the run's seed
        given = module if isinstance(module, Tied) else Tied
        drawn = module if isinstance(module, Tied) else seeded(Tied, 5)
        export(tmp_path / "run", tmp_path / "model.pt", module=given)
        found = torch.load(tmp_path / "model.pt", weights_only=True)
        assert torch.equal(found["frozen.weight"], drawn.frozen.weight)


def test_another_module_than_the_runs_is_refused(run: ob.Run, tmp_path: Path) -> None:
    frozen = of_the_run(run).requires_grad_(False).frozen
    smaller = nn.Module()
    smaller.frozen, smaller.body = frozen, nn.Linear(3, 3)
    for module, why in (
        (Tied(), "the frozen parameters of the Tied made here are not those of"),
        (nn.Sequential(frozen), "the frozen parameters"),
        (smaller, r"model\.safetensors does not fit: it has again\.bias, which the Module has not"),
    ):
        with pytest.raises(ob.UsageError, match=why):
            export(run.path, tmp_path / "model.pt", module=module)  # type: ignore[arg-type]
    assert not (tmp_path / "model.pt").exists()


def test_what_cannot_be_written_is_refused_in_one_line(run: ob.Run, tmp_path: Path) -> None:
    for file, why in (
        (tmp_path / "model.bin", "has no known format: give a file whose name ends with one of .safetensors"),
        (tmp_path / "none" / "model.pt", "cannot be written"),
        (tmp_path / "none" / "model.safetensors", "cannot be written"),
    ):
        with pytest.raises(ob.UsageError, match=why):
            export(run.path, file)  # type: ignore[arg-type]


def test_a_program_of_a_built_in_model_takes_any_number_of_samples(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", ModelMaker(MLPSpec(hidden=(4,)), (3,), 2))
    exported = export(tmp_path / "run", tmp_path / "model.pt2")
    assert json.loads(exported.metadata["arguments"]) == {"hidden": [4], "sample_shape": [3], "classes": 2}
    files = {"metadata.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=files)
    made = run.model.load_into(ModelMaker(MLPSpec(hidden=(4,)), (3,), 2)())
    x = torch.randn(5, 3)
    torch.testing.assert_close(program.module()(x), made(x))
    assert json.loads(files["metadata.json"]) == exported.metadata


class Branching(nn.Module):
    """What it computes depends on the values, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(x) + 1


def test_what_has_no_graph_is_refused_in_one_line(tmp_path: Path) -> None:
    run_of(tmp_path / "run", Branching)
    with pytest.raises(
        ob.UsageError, match=r"model\.pt2: .*:Branching cannot be exported: \w+: .+"
    ) as caught:
        export(tmp_path / "run", tmp_path / "model.pt2")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("example", thorough(None, torch.randn(3, 3), (torch.randn(2, 3),)))
def test_onnx_runtime_gives_the_modules_scores(example: Any, run: ob.Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    exported = export(run.path, tmp_path / "model.onnx", example=example)  # type: ignore[arg-type]
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    assert session.get_modelmeta().custom_metadata_map.items() >= exported.metadata.items()
    assert session.get_inputs()[0].shape == ["batch", 3]
    found = session.run(None, {"x": DATA.test.x.numpy()})[0]  # type: ignore[union-attr]
    torch.testing.assert_close(torch.from_numpy(found), scores(of_the_run(run)))
