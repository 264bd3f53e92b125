"""Runs on a device whose memory the processor cannot read leave the bytes that runs on the CPU leave."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hidden_memory import HiddenDevice, hidden
from resume_runs import Trial, assert_equal_runs, newest
from safetensors.numpy import load_file

import paren
from paren.engine import CompiledEngine
from paren.forecast import residence
from paren.forecast.plans import make_plans
from paren.runtime import array, limits
from paren.runtime.device import open_device
from paren.text.brevity import tell_apart
from paren.text.errors import InternalError, ParenError
from paren.train import chunk, tensor_file
from paren.train.read_run import read_annotations

# Calls for each microbatch, one for a step, many steps in one call.
TRIALS = [("gpt", 1), ("gpt", 3), ("mlp", 4)]

DIGITS = """\
(defdata images (digits :split ((train 0.8) (validation 0.2))))
(defmodel classifier ((image float32 [1 8 8]))
  (let ((x (max-pool (relu (conv2d image 4 :kernel 3 :padding 1)) :kernel 2)))
    (linear (dropout (relu (linear (flatten x) 16)) 0.2) 10)))
(defrun :data images :loss (cross-entropy (classifier image) label)
  :metrics ((accuracy (= (argmax (classifier image)) label))) :optimizer (muon :rate 0.01)
  :batch 64 :steps 20 :evaluate-every 10 :checkpoint-every 8 :log-every 1 :average 0.9
  :keep (best evaluation/accuracy :max) :seed 1{more})
"""


@pytest.fixture(scope="module", params=TRIALS, ids=lambda each: f"{each[0]}-{each[1]}")
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.make(tmp_path_factory.mktemp("trial"), *request.param)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures a card takes a processor minutes."""
    monkeypatch.setattr(limits, "LARGE", limits.Sizes(4096, 512, 64, (32, 48, 16), (1, 1)))


def digits(folder: Path, more: str = "") -> paren.Experiment:
    (folder / "digits.paren").write_text(DIGITS.format(more=more))
    return paren.load(folder / "digits.paren")


def test_a_whole_run(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints, the best parameters, averages, moments and diagnostics are in it."""
    monkeypatch.setattr(chunk, "SECONDS", 60.0)
    calls: list[int] = []
    steps = CompiledEngine.steps
    monkeypatch.setattr(CompiledEngine, "steps", lambda self, *given: calls.append(1) or steps(self, *given))
    with hidden() as opened:
        trial.run(tmp_path / "out")
    assert_equal_runs(tmp_path / "out", trial.whole)
    assert bool(calls) is (trial.stacking == 3)  # the other has something to do between any two steps
    assert opened[0].memory.downloads


def test_a_run_that_is_cut_and_goes_on_elsewhere(trial: Trial, tmp_path: Path) -> None:
    """From the hidden memory to the host's and back: what a checkpoint holds does not tell where it lay."""
    with hidden():
        trial.run(tmp_path / "out", steps=5)
    trial.run(tmp_path / "out", steps=13, resume="latest")
    with hidden():
        trial.run(tmp_path / "out", resume="latest")
    assert_equal_runs(tmp_path / "out", trial.whole)


def test_another_device_is_another_identity(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind and target: a run goes on elsewhere only if other bits are accepted; a model is restored anywhere."""
    out = tmp_path / "out"
    monkeypatch.setattr(HiddenDevice, "name", "other")
    monkeypatch.setattr(HiddenDevice, "target", "chip 9", raising=False)
    with hidden():
        trial.run(out, steps=5)
    type_ = trial.experiment.program.models[0].inputs[0].type
    batch = np.zeros((2, *type_.shape), type_.dtype.numpy)
    assert np.isfinite(paren.restore(out)(batch)).all()
    with pytest.raises(ParenError) as caught:
        trial.run(out, resume="latest")
    assert caught.value.code == "E-CKPT-007"
    target, here = tell_apart("chip 9", open_device("cpu", 1).target)
    assert caught.value.message == (
        f"going on from {out}/checkpoints/000005 would not be bit-exact: device other there and cpu here, "
        f"target {target} there and {here} here"
    )
    options = {"threads": trial.threads, "stacking": trial.stacking, "resume": "latest", "allow_new_layout": True}
    trial.experiment.run(out=out, steps=6, **options)
    assert newest(out).name == "000006"


def test_a_restored_model(trial: Trial) -> None:
    """For one number of rows and another, whose arena is larger, and the first again."""
    field = trial.experiment.program.models[0].inputs[0]
    expected, best = paren.restore(trial.whole), paren.restore(trial.whole, best=True)
    with hidden():
        model = paren.restore(trial.whole)
        other = paren.restore(trial.whole, best=True)
        for rows in (3, 7, 3):
            batch = np.arange(rows * field.type.size).reshape(rows, *field.type.shape) % 11
            given = batch.astype(field.type.dtype.numpy)
            assert model(given).tobytes() == expected(given).tobytes()
    for found, wanted in ((model, expected), (other, best)):
        assert {name: value.tobytes() for name, value in found.parameters().items()} == {
            name: value.tobytes() for name, value in wanted.parameters().items()
        }


def test_a_network_of_convolutions_and_an_optimizer_of_products(tmp_path: Path) -> None:
    digits(tmp_path).run(tmp_path / "plain", threads=1)
    with hidden():
        digits(tmp_path).run(tmp_path / "out", threads=1)
    assert_equal_runs(tmp_path / "out", tmp_path / "plain")


def test_first_weights_from_a_file(trial: Trial, tmp_path: Path) -> None:
    """Parameters from the file, and averages equal to them."""
    weights = newest(trial.whole) / "parameters.safetensors"
    text = trial.file.read_text().replace("(defrun", f'(defrun :from "{weights}"')
    trial.file.with_name("again.paren").write_text(text)
    experiment = paren.load(trial.file.with_name("again.paren"))
    experiment.run(out=tmp_path / "plain", steps=3, threads=1, stacking=trial.stacking)
    with hidden():
        experiment.run(out=tmp_path / "out", steps=3, threads=1, stacking=trial.stacking)
    for name in ("parameters", "optimizer"):
        files = [newest(tmp_path / out) / f"{name}.safetensors" for out in ("out", "plain")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_what_is_not_finite_is_found(tmp_path: Path) -> None:
    """The same step, operation and place, and the parameters before it are safe."""
    (tmp_path / "points.py").write_text(
        "import numpy as np\ndef points(rows):\n"
        "    x = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)\n"
        "    return {'x': x, 'y': x.sum(axis=1)}\n"
    )
    (tmp_path / "net.paren").write_text(
        '(defdata d (python "points.py" points :fields ((x float32 [5]) (y float32 [])) :rows 28))\n'
        "(defmodel net ((x float32 [5])) (linear (exp (linear x 8)) 1))\n"
        "(defrun :data d :loss (mean-squared-error (net x) y) :optimizer (sgd :rate 9.0) :batch 4 :steps 50)\n"
    )
    messages = []
    for memory in (nullcontext, hidden):
        with memory(), pytest.raises(ParenError) as caught:
            paren.load(tmp_path / "net.paren").run(tmp_path / memory.__name__, threads=1)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "E-NUM-001" in messages[0]
    assert "first produced by" in messages[0]


def test_a_measured_stacking_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which degree is taken depends on the clock; the device holds nothing of the trial when the engine begins."""
    before: list[int] = []
    start = CompiledEngine.start_counting

    def counted(engine: CompiledEngine) -> None:
        assert isinstance(engine.device, HiddenDevice)
        before.append(engine.device.used_bytes())
        start(engine)

    monkeypatch.setattr(CompiledEngine, "start_counting", counted)
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    with hidden() as opened:
        digits(tmp_path, " :microbatches 4").run(tmp_path / "out", steps=2, threads=1)
    assert before == [0]
    assert opened[0].memory.uploads


def test_checkpoints_cross_in_bounded_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written from a copy of the state comes chunk by chunk, and is read back so."""
    monkeypatch.setattr(tensor_file, "CHUNK", 1 << 10)
    monkeypatch.setattr(array, "PART", 1 << 10)
    with hidden() as opened:
        digits(tmp_path).run(tmp_path / "out", steps=3, threads=1)
        downloads = opened[0].memory.downloads
        assert max(downloads) <= 1 << 10
        digits(tmp_path).run(tmp_path / "out", steps=5, threads=1, resume="latest")
    monkeypatch.undo()
    digits(tmp_path).run(tmp_path / "plain", steps=5, threads=1)
    name = "parameters.safetensors"
    found, expected = (load_file(newest(tmp_path / out) / name) for out in ("out", "plain"))
    assert {key: value.tobytes() for key, value in found.items()} == {
        key: value.tobytes() for key, value in expected.items()
    }


def test_a_step_is_one_upload_of_its_batch_and_one_download(trial: Trial, tmp_path: Path) -> None:
    """And one number up: of the update, before it; several calls clear two sums and the gradients, and send each its
    part."""
    seen: list[tuple[int, int, int]] = []
    step = CompiledEngine.step

    def counted(engine: CompiledEngine, *given: object) -> object:
        memory = engine.device.memory  # type: ignore[attr-defined]
        before = len(memory.uploads), len(memory.downloads), len(memory.fills)
        sums = step(engine, *given)  # type: ignore[arg-type]
        after = len(memory.uploads), len(memory.downloads), len(memory.fills)
        seen.append(tuple(b - a for a, b in zip(before, after, strict=True)))
        return sums

    with pytest.MonkeyPatch.context() as patch, hidden():
        patch.setattr(CompiledEngine, "step", counted)
        trial.run(tmp_path / "out", steps=2)
    assert set(seen) == {(1 + 2 + 3, 1, 1) if trial.stacking == 1 else (2, 1, 0)}


def test_the_plan_counts_what_is_allocated(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the device's memory; what waits or is copied in host memory is told apart."""
    used: list[int] = []
    report = CompiledEngine.used_bytes
    monkeypatch.setattr(CompiledEngine, "used_bytes", lambda self: used.append(report(self)) or used[-1])
    with hidden():
        trial.run(tmp_path / "out", steps=2)
    (memory,) = [line for line in read_annotations(tmp_path / "out") if line["annotation"] == "memory"]
    assert "saving" not in memory
    assert "host" not in memory
    assert (memory["data"] > 0) is (trial.stacking != 1)
    assert 0 <= max(used) - memory["planned"] < 2048  # registers, and each vector's least size


def test_data_that_are_many_stay_in_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each step sends its batch; the bits are the same."""
    plain, out = Trial.make(tmp_path, "mlp", 4), tmp_path / "out"
    monkeypatch.setattr(residence, "MOST", 100)
    with hidden():
        plain.run(out)
    assert_equal_runs(out, plain.whole)
    (memory,) = [line for line in read_annotations(out) if line["annotation"] == "memory"]
    assert memory["data"] == 0


def test_what_lies_in_host_memory_is_told_apart(tmp_path: Path) -> None:
    with hidden():
        report = digits(tmp_path).explain(threads=1)
    assert report.memory.planned == sum(report.memory.parts.values())
    assert report.memory.host_parts.keys() == {"gradients", "inputs", "exchange", "carried", "saving", "host"}
    (line,) = [line.strip() for line in str(report).splitlines() if "in host memory" in line]
    assert line.startswith("in host memory: inputs ")


def test_an_array_in_the_wrong_memory_is_refused(tmp_path: Path) -> None:
    """Kernels would read bytes of the host's where the device has none, or the other way round."""
    program = digits(tmp_path).program
    for device, other in ((HiddenDevice(), open_device("cpu", 1)), (open_device("cpu", 1), HiddenDevice())):
        engine = CompiledEngine(program, make_plans(program), device)
        engine._forward_state |= {"linear.bias": other.allocate(64).view(np.float32)[:16]}
        engine._evaluate._bound.clear()
        with pytest.raises(InternalError, match=r"state linear.bias is not in the memory of the device"):
            engine._evaluate.bind(engine._forward_state, engine._evaluated.arrays, engine._arena)
