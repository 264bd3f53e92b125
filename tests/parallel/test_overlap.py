"""Gradients that are exchanged while the backward goes on have the bits of those that are exchanged after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from rank_processes import run_ranks
from rank_runs import parameters, series, write_experiment

import paren
from paren.data.loader import GlobalBatch, Microbatch
from paren.engine import CompiledEngine
from paren.forecast.plans import make_plans
from paren.parallel import exchange
from paren.parallel.combination import Combination
from paren.runtime.array import AnyArray
from paren.runtime.device import open_device
from paren.runtime.executor import Executable

BUCKET = 32  # elements, so that a small network has several


def train_rank(rank: int, port: int, file: str, out: str, microbatches: int, staged: Sequence[int]) -> int:
    """Trains as one of two ranks, which are `staged` or exchange everything behind the backward; gives the number of
    stages of a step."""
    launched = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in launched.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", PAREN_CACHE=str(Path(file).parent / "cache"))
    exchange.BUCKET = BUCKET
    if rank not in staged:

        def last_steps(executable: Executable, arrays: Sequence[AnyArray]) -> list[int]:
            return [len(executable.tasks)] * len(arrays)

        Executable.last_steps = last_steps  # type: ignore[method-assign]  # in this process, which ends with the test
    counts = []
    prepare = Combination.prepare

    def prepared(
        combination: Combination, gradients: AnyArray, weight: Callable[[], float], stages: Sequence[int]
    ) -> None:
        counts.append(max(stages))
        prepare(combination, gradients, weight, stages)

    Combination.prepare = prepared  # type: ignore[method-assign]  # in this process
    experiment = paren.load(file, set={"microbatches": microbatches})
    experiment.run(out=out, threads=1, stacking=1)
    return counts[0]


@pytest.mark.parametrize("microbatches", [2, 4])
def test_exchanging_beside_the_backward_does_not_change_bits(tmp_path: Path, microbatches: int) -> None:
    """With one microbatch a rank the gradients lie in the arena, with two they are added to."""
    file = write_experiment(tmp_path)
    runs = {(0, 1): tmp_path / "both", (): tmp_path / "neither", (0,): tmp_path / "one"}
    for staged, out in runs.items():
        stages = run_ranks(2, train_rank, str(file), str(out), microbatches, staged)
        assert [count > 1 for count in stages] == [rank in staged for rank in range(2)]
    wanted = parameters(runs[()])
    for out in runs.values():
        assert parameters(out) == wanted
        for name, values in series(runs[()]).items():
            np.testing.assert_array_equal(series(out)[name], values, err_msg=name)


PLAIN = """
(defdata examples (python "rows.py" pairs :fields ((x float32 [6]) (label float32 [1]) (weight float32 [])) :rows 32))
(defmodel network ((x float32 [6])) (linear (tanh (linear x 16)) 1))
(defrun :data examples :loss (mean-squared-error (network x) label) :optimizer (sgd :rate 0.5) :batch 32
        :microbatches MICROBATCHES :steps 4)
"""


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_a_gradient_is_owed_is_added_once(tmp_path: Path, microbatches: int) -> None:
    write_experiment(tmp_path)
    file = tmp_path / "plain.paren"
    file.write_text(PLAIN.replace("MICROBATCHES", str(microbatches)))
    program = paren.load(file).program
    rows = 32 // microbatches
    random = np.random.default_rng(0)
    parts = [
        Microbatch(
            {
                "x": random.standard_normal((rows, 6), np.float32),
                "label": random.standard_normal((rows, 1), np.float32),
                "weight": np.ones(rows, np.float32),
            },
            np.arange(number * rows, (number + 1) * rows, dtype=np.uint32),
            np.ones(rows, np.float32),
        )
        for number in range(microbatches)
    ]
    batch = GlobalBatch(0, 0, np.arange(32), tuple(parts))
    debts = {slot.name: random.standard_normal(slot.type.shape, np.float32) for slot in program.parameters}

    def step(owes: bool) -> dict[str, np.ndarray]:
        engine = CompiledEngine(program, make_plans(program), open_device("cpu", 1))
        engine.initialize(3)
        if owes:
            for name, array in engine.owe().items():
                array[...] = debts[name]
        assert engine.owes is owes
        engine.step(batch, 1)
        assert not engine.owes
        return {name: np.array(array) for name, array in engine.slots().items()}

    plain, owed = step(False), step(True)
    for name, debt in debts.items():
        np.testing.assert_allclose(owed[name], plain[name] - 0.5 * debt, rtol=1e-4, atol=1e-6)
