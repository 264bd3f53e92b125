"""paren as a contestant: `python -m bench.paren_contestant W3 --weights FILE [--timed N] [--threads N]
[--device cuda]`.

It trains through `paren.load` and `Experiment.run`, with a progress view that notes when steps are over: so a step's
time holds everything that the loop does for it, its line in the metrics included. `--prepare` only writes the file of
weights.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from bench.recorder import Recorder
from bench.workloads.sizes import DIFFERENT_BATCHES, WORKLOADS, LanguageModel, Network, Workload

FILES = Path(__file__).parent / "workloads"


BURST = 3e-4  # seconds; reports that follow each other faster are of steps that one call made


class Stamps:
    """A progress view that records every step of a language model.

    paren may make several steps in one call, and reports them all when it returns: the call's time is shared equally.
    """

    def __init__(self, recorder: Recorder, untimed: int) -> None:
        self.recorder = recorder
        self.untimed = untimed
        self.reports: list[tuple[int, float]] = []  # (step, when it was reported)

    def begin(self, done: int, stop: int) -> None:
        self.recorder.begin()
        self.reports.append((done, time.perf_counter()))
        if not self.untimed:
            self.recorder.start()

    def step(self, step: int, record: Mapping[str, object]) -> None:
        self.reports.append((step, time.perf_counter()))
        if step == 1:
            self.recorder.first()
        if step == self.untimed:
            self.recorder.start()
        if step == self.untimed + self.recorder.count:
            self.recorder.stop(self.durations()[self.untimed :])
        self.note(step, _loss(record))

    def note(self, step: int, loss: float) -> None:
        """Takes the loss of a step."""
        self.recorder.loss(loss)

    def durations(self) -> list[float]:
        """Seconds of each step so far."""
        seconds: list[float] = []
        calls = self.reports[:1]
        for (step, now), after in zip(self.reports[1:], [*self.reports[2:], (0, math.inf)], strict=True):
            if after[1] - now > BURST:
                begun, before = calls[-1]
                seconds += [(now - before) / (step - begun)] * (step - begun)
                calls.append((step, now))
        return seconds

    def phase(self, name: str) -> None: ...

    def notice(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None: ...


class EpochStamps(Stamps):
    """A progress view that records the epochs of a network: calls may cross their borders, so each is the mean."""

    def __init__(self, recorder: Recorder, steps: int) -> None:
        super().__init__(recorder, 0)
        self.steps = steps
        self.epoch: list[float] = []

    def step(self, step: int, record: Mapping[str, object]) -> None:
        self.reports.append((step, time.perf_counter()))
        if step == 1:
            self.recorder.first()
        epochs = self.recorder.count
        if step == self.steps * epochs:
            self.recorder.stop([(self.reports[-1][1] - self.reports[0][1]) / epochs] * epochs)
        self.note(step, _loss(record))

    def note(self, step: int, loss: float) -> None:
        self.epoch.append(loss)
        if step % self.steps == 0:
            self.recorder.loss(fmean(self.epoch))
            self.epoch = []


def _loss(record: Mapping[str, object]) -> float:
    loss = record["loss"]
    assert isinstance(loss, float)
    return loss


def settings_of(workload: Workload, timed: int, weights: Path) -> tuple[Path, str | None, dict[str, object]]:
    """The paren file, its variant and the settings that make it the workload."""
    if isinstance(workload, Network):
        settings: dict[str, object] = {"epochs": timed, "weights": str(weights)}
        return FILES / "ratio.paren", None, settings
    settings = {"steps": workload.untimed + timed, "different": DIFFERENT_BATCHES, "weights": str(weights)}
    return FILES / "train.paren", workload.name, settings


def write_weights(workload: Workload, path: Path) -> None:
    """The peers' first weights under paren's names, with matrices as [inputs outputs]."""
    from safetensors.numpy import save_file  # NumPy and safetensors are not loaded in a process that is measured

    from bench.workloads.content import language_model_weights, network_weights

    arrays = {}
    if isinstance(workload, Network):
        for number, (weight, bias) in enumerate(network_weights(workload.layers)):
            layer = f"mlp.linear-{number}" if number else "mlp.linear"
            arrays |= {f"{layer}.weight": weight.T.copy(), f"{layer}.bias": bias}
    else:
        given = language_model_weights(workload.layers, workload.width, workload.vocabulary, workload.length)
        names = _names_in_paren(workload)
        for name, array in given.items():
            turned = array.ndim == 2 and name not in ("embedding", "position")
            arrays[names[name]] = array.T.copy() if turned else array
    save_file(arrays, str(path))


def _names_in_paren(workload: LanguageModel) -> dict[str, str]:
    names = {"embedding": "embedding", "position": "position"}
    parts = {
        "norm1": "attention.layer-norm",
        "qkv": "attention.qkv",
        "projection": "attention.projection",
        "norm2": "mlp.layer-norm",
        "up": "mlp.up",
        "down": "mlp.down",
    }
    for kind in ("weight", "bias"):
        names[f"norm.{kind}"] = f"layer-norm.{kind}"
        for layer in range(workload.layers):
            names |= {f"{layer}.{old}.{kind}": f"block.{layer}.{new}.{kind}" for old, new in parts.items()}
    return names


def card_peak(device: str) -> dict[str, int]:
    """The most memory of the card that was in use, in bytes, by the same count as the peers' (torch's allocator)."""
    if device == "cpu":
        return {}
    import torch  # which a run on a card has loaded already

    return {"card_peak": torch.cuda.max_memory_allocated()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--timed", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    workload = WORKLOADS[given.workload]
    if given.prepare:
        write_weights(workload, given.weights)
        return
    import paren  # after the arguments are known to be right

    timed = given.timed or workload.timed
    recorder = Recorder(timed)
    if isinstance(workload, Network):
        view: Stamps = EpochStamps(recorder, workload.steps)
    else:
        view = Stamps(recorder, workload.untimed)
    file, variant, settings = settings_of(workload, timed, given.weights.resolve())
    experiment = paren.load(file, variant=variant, set=settings)
    with tempfile.TemporaryDirectory() as folder:
        experiment.run(out=folder, device=given.device, threads=given.threads, progress=view)
    recorder.finish({"paren": version("paren"), "torch": version("torch")}, **card_peak(given.device))


if __name__ == "__main__":
    main()
