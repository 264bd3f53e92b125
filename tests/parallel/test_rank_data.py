"""Which examples the ranks of a run take: every one once, in the order that one process has, also after a resume on
another number of ranks. And how a batch is shared out."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rank_runs import (
    HOST,
    finish,
    parameters,
    series,
    start,
    start_torchrun,
    train,
    train_on_ranks,
    write_experiment,
)

ROWS, HELD_OUT, STEPS_PER_EPOCH = 128, 37, 2
EPOCHS = 3
RANKS = (1, 2, 4)
Order = dict[int, list[int]]  # examples by position
MODEL = """
(def width 8)

(defdata tokens (token-file "tokens.bin" :dtype uint8 :length 8 :split ((train 0.9) (validation 0.1))))

(defmodel network ((tokens int32 [8]))
  (linear (tanh (linear (embedding tokens 16 width) width)) 16))

(defrun
  :data           tokens
  :loss           (cross-entropy (network tokens) targets)
  :optimizer      (adamw :rate 1e-2)
  :batch          6
  :microbatches   2
  :evaluate-every 5
  :steps          10)
"""


def run(file: Path, out: Path, seen: Path, ranks: int, *arguments: str) -> Path:
    """A run on so many ranks, which write down what they see."""
    seen.mkdir()
    return train_on_ranks(ranks, file, out, "--stacking", "1", *arguments, variables={"SEEN": str(seen)})


def order(seen: Path) -> Order:
    """The examples of each position, those of the first rank first."""
    found: Order = {}
    for path in sorted(seen.glob("*.trained")):
        for line in path.read_text().splitlines():
            position, *ids = map(int, line.split())
            found.setdefault(position, []).extend(ids)
    return found


@pytest.fixture(scope="module")
def alone(file: Path) -> Order:
    folder = file.parent / "seen alone"
    run(file, file.parent / "watched alone", folder, 1)
    return order(folder)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_row_is_taken_once_an_epoch_in_the_order_of_one_process(
    file: Path, alone: Order, tmp_path: Path, ranks: int
) -> None:
    """Batches of 127 of 128 rows: the last of an epoch is one row, and all ranks but one have nothing to do."""
    out = run(file, tmp_path / "out", tmp_path / "seen", ranks)
    found = order(tmp_path / "seen")
    assert found == alone
    for epoch in range(EPOCHS):
        positions = range(epoch * STEPS_PER_EPOCH, (epoch + 1) * STEPS_PER_EPOCH)
        assert [len(found[position]) for position in positions] == [127, 1]
        assert Counter(row for position in positions for row in found[position]) == Counter(range(ROWS))
    labels = Counter(label for path in (tmp_path / "seen").glob("*.evaluated") for label in path.read_text().split())
    assert (len(labels), set(labels.values())) == (HELD_OUT, {EPOCHS})  # an evaluation every two steps
    columns, others = series(out), series(file.parent / "watched alone")
    for name, values in others.items():
        np.testing.assert_allclose(columns[name], values, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def stopped(file: Path) -> Path:
    """A run of two ranks that stopped in the middle of an epoch."""
    return train_on_ranks(2, file, file.parent / "stopped in the middle", "--stacking", "1", "--steps", "3")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_resume_on_another_number_of_ranks_is_refused_or_takes_the_same_examples(
    file: Path, alone: Order, stopped: Path, tmp_path: Path, ranks: int
) -> None:
    out, checkpoint = tmp_path / "out", stopped / "checkpoints"
    shutil.copytree(stopped, out)
    if ranks != 2:
        arguments = ("--stacking", "1", "--resume", "latest")
        process = start(file, out, *arguments) if ranks == 1 else start_torchrun(ranks, file, out, *arguments)
        code, said = finish(process)
        differ = f"ranks 2 there and {ranks} here"
        message = f"E-DP-002: going on from {out}/{checkpoint.name}/000003 would not be bit-exact: {differ}"
        fix = "resume on as many ranks and nodes, or accept other bits with --allow-new-layout"
        assert code == 1
        assert f"{message}\n  fix: {fix}\n" in said
        if ranks > 1:
            assert f"E-DP-008: rank 0 on {HOST} failed at the start (preparing): {message} (rank " in said
    run(file, out, tmp_path / "seen", ranks, "--resume", "latest", *(["--allow-new-layout"] if ranks != 2 else []))
    found = order(tmp_path / "seen")
    assert found == {position: alone[position] for position in range(3, EPOCHS * STEPS_PER_EPOCH)}
    columns, others = series(out), series(file.parent / "watched alone")
    for name, values in others.items():
        np.testing.assert_allclose(columns[name], values, rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_reproducible_run_resumes_on_any_number_of_ranks_with_the_same_bits(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    file.write_text(file.read_text().replace("(defrun\n", "(defrun\n  :reproducible-over 4\n"))
    whole = train(file, tmp_path / "whole")
    stopped = train_on_ranks(2, file, tmp_path / "stopped", "--stacking", "1", "--steps", "3")
    for ranks in RANKS:
        out = tmp_path / f"resumed on {ranks}"
        shutil.copytree(stopped, out)
        run(file, out, tmp_path / f"seen {ranks}", ranks, "--resume", "latest", "--allow-new-layout")
        assert parameters(out) == parameters(whole), ranks


def test_one_token_file_is_shared_by_ranges(tmp_path: Path) -> None:
    file = tmp_path / "tokens.paren"
    file.write_text(MODEL)
    np.random.default_rng(0).integers(0, 16, 700).astype(np.uint8).tofile(tmp_path / "tokens.bin")
    alone, two = train(file, tmp_path / "alone"), train_on_ranks(2, file, tmp_path / "two")
    for name, values in series(alone).items():
        np.testing.assert_allclose(series(two)[name], values, rtol=2e-5, atol=1e-6, err_msg=name)
