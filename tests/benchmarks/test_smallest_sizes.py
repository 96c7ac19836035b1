"""Every benchmark runs to its end at its smallest size, with made-up files of the datasets."""

import gzip
import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offbeat.data.heart_disease import FILES
from offbeat.data.images import IDX_FILES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
MAIN = 'if __name__ == "__main__":'
PATIENCE = 570.0  # seconds, against a benchmark that hangs
SIZES: dict[str, tuple[str, ...]] = {
    "aggregators.py": ("--sizes 1e3 --clients 2 --repeats 5 --threads 1 --window-sizes 2 --out out.csv",),
    "batched.py": ("--repeats 1 --rounds 1 --models logistic --out out.csv",),
    "codecs.py": ("--sizes 1e3",),
    "cut_links.py": ("--megabytes 0.5 --updates 1 --cuts 0.3 --out out.csv",),
    "dataloader.py": (f"--pairs 1 --tasks 1 --models logistic lenet --before {ROOT / 'src'} --out out.csv",),
    "examples_privacy.py": ("--seeds 1 --tasks 4",),
    "feature_scaling.py": ("--seeds 1",),
    "fedasmu_requests.py": ("--seeds 1 --slower 10 --out runs",),
    "flower.py": ("--messages 1 --out out.csv",),
    "flower_throughput.py": ("--messages 1 --nodes 1 --sizes '1 MB' --out out.csv",),
    "growth.py": ("--smaller 4 --only memory parameters workers --json out.json --plot out.png",),
    "guard/attacks.py": ("--world auroc --only 'n / 4' --out out.csv", "--table --out out.csv"),
    "guard/honest_worlds.py": ("--worlds 1 --out out.csv",),
    "guard/metric_worlds.py": ("--batches 1 --out runs",),
    "hospitals.py": ("--seconds 2 --folder runs",),
    "large_models.py": ("--megabytes 1 --updates 1 --sites 1",),
    "deployed_lines.py": ("--lines 20 --tasks 4 --out out.csv",),
    "lines.py": ("--seeds 1 --lines 20 --samples 200 --tasks 8 --out out.csv",),
    "overhead.py": ("--tasks 10 --out out.csv",),
    "peers_learning.py": ("",),
    "privacy_costs.py": ("--parameters 1000 --repeat 1",),
    "private_learning.py": ("--seeds 1 --versions 1", "--seeds 1 --target 0.2"),
    "recovery.py": ("--rows 1000 --out out.csv",),
    "registered_sites.py": ("--sites 2 20 --updates 20 --out out.csv",),
    "replication_rates.py": ("--claims 2",),
    "robust.py": ("--seeds 1 --tasks 10 --shares 0 20 --attacks none ALIE --rare --out out.csv",),
    "round_trip.py": ("--tasks 2 --repeats 1 --largest 1 --connections 1 --seconds 1 --every 1",),
    "soak.py": ("--sites 1 --updates 200 --stop-every 100 --every 1 --certificate-every 5 --out runs",),
    "speed/__main__.py": ("--repeats 1 --rounds 1 --only empty logistic async", "--table speed.json"),
    "startup.py": ("--runs 1",),
    "update_stages.py": ("--megabytes 0.1 --updates 10",),
    "verdict_rates.py": ("--claims 2",),
    "without_site.py": ("",),
    "worker_start.py": ("--repeat 1",),
}
"""Scripts, and the arguments of their calls, one after another in the same folder."""
ELSEWHERE = {
    "gpu/__main__.py": "tests/benchmarks/test_gpu_benchmark.py runs it without a GPU",
    "gpu_runs.py": "tests/benchmarks/test_gpu_benchmark.py runs it without a GPU",
    "raw_grpc.py": "benchmarks/round_trip.py runs it",
    "speed/bare.py": "benchmarks/speed/measure.py runs it",
    "speed/ours.py": "benchmarks/speed/measure.py runs it",
    "peers/learning.py": "needs FLGo, FLSim and APPFL",
    "peers/on_appfl.py": "needs APPFL",
    "peers/on_fedlab.py": "needs FedLab",
    "peers/on_flgo.py": "needs FLGo",
    "peers/on_flower.py": "needs Flower's simulation, which needs Ray",
    "peers/on_flsim.py": "needs FLSim",
    "peers/on_fluke.py": "needs fluke",
    "peers/on_pfl.py": "needs pfl-research",
}
"""Scripts that are not run here, and why."""


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), 1))


def write_data(root: Path) -> None:
    """Write small files of the datasets: images with a bright row by class, patients told apart by age."""
    rng = np.random.default_rng(0)
    (root / "fashion_mnist" / "raw").mkdir(parents=True)
    for part, number in enumerate((3000, 1000)):
        labels = np.arange(number, dtype=np.uint8) % 10
        images = rng.integers(0, 128, (number, 28, 28), dtype=np.uint8)
        images[np.arange(number), 2 * labels] += 128
        for file, array in zip(IDX_FILES[2 * part :], (images, labels), strict=False):
            write_idx(root / "fashion_mnist" / "raw" / f"{file}.gz", array)
    (root / "heart_disease").mkdir()
    for file in FILES:
        ages = rng.integers(30, 80, 60)
        lines = (f"{age},1,{1 + age % 4},140,230,0,{age % 3},150,0,1.5,3,0,6,{int(age > 55)}" for age in ages)
        (root / "heart_disease" / file).write_text("\n".join(lines) + "\n", encoding="ascii")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root)
    return root


def run(script: str, words: list[str], folder: Path, data: Path) -> str:
    """Run a benchmark as its user does, to its end; returns what it printed."""
    # Bytecode is written, as in use: else each process of a benchmark compiles the package anew.
    environment = {**os.environ, "OFFBEAT_DATA": str(data), "PYTHONDONTWRITEBYTECODE": ""}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, str(FOLDER / script), *words]
    with (folder / "printed").open("w+") as out, (folder / "errors").open("w+") as err:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)
        try:
            status = process.wait(PATIENCE)
        finally:
            process.terminate()  # it ends its children itself, if it can
        for file in (out, err):
            file.seek(0)
        assert status == 0, out.read() + err.read()
        return out.read()


@pytest.mark.thorough
@pytest.mark.parametrize("script", SIZES)
def test_a_benchmark_runs_at_its_smallest_size(script: str, data: Path, tmp_path: Path) -> None:
    if script.startswith("flower") and not Path(sys.executable).with_name("flower-superlink").exists():
        pytest.skip("flwr is not installed")
    for words in SIZES[script]:
        printed = run(script, shlex.split(words), tmp_path, data)
        assert printed.strip() or (tmp_path / "out.csv").exists()


def test_every_benchmark_is_run_or_has_a_reason_not_to_be() -> None:
    files = {str(path.relative_to(FOLDER)): path for path in FOLDER.rglob("*.py")}
    scripts = {name for name, path in files.items() if MAIN in path.read_text(encoding="utf-8")}
    assert scripts == SIZES.keys() | ELSEWHERE.keys()
    assert not SIZES.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("script", [name for name, reason in ELSEWHERE.items() if " runs it" in reason])
def test_what_runs_a_benchmark_names_it(script: str) -> None:
    file = ROOT / ELSEWHERE[script].partition(" ")[0]
    assert Path(script).stem in file.read_text(encoding="utf-8")
