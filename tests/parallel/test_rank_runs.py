"""Runs of several ranks as real processes: the experiment of one, and exact resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rank_processes import free_port
from rank_runs import (
    LIMIT,
    TWO,
    finish,
    node,
    parameters,
    series,
    start,
    start_torchrun,
    train,
    train_on_ranks,
    write_experiment,
)


def assert_same_training(found: Path, wanted: Path) -> None:
    columns, others = series(found), series(wanted)
    assert columns.keys() == others.keys()
    assert {"loss", "evaluation/loss", "evaluation/error", "gradient-norm", "largest"} <= columns.keys()
    for name, values in others.items():
        np.testing.assert_allclose(columns[name], values, rtol=2e-5, atol=1e-6, err_msg=name)


# The same experiment --------------------------------------------------------------------------------------------------


def test_two_ranks_train_as_one(alone: Path, two: Path) -> None:
    """Batches of 127 of 128 rows: in every other step one row is left, and one rank has nothing to do."""
    assert_same_training(two, alone)


def test_four_ranks_of_torchrun_train_as_one(file: Path, alone: Path) -> None:
    out = file.parent / "four"
    process = start_torchrun(4, file, out)
    shown, said = process.communicate(timeout=LIMIT)
    assert (process.returncode, shown) == (0, f"{out}\n"), said
    assert_same_training(out, alone)


def test_two_nodes_of_one_rank_give_the_bits_of_one_node_of_two(file: Path, two: Path) -> None:
    port = free_port()
    outs = [file.parent / f"node {index}" for index in range(2)]
    started = [start(file, out, "--stacking", "1", variables=node(i, port)) for i, out in enumerate(outs)]
    for process in started:
        code, said = finish(process)
        assert code == 0, said
    assert parameters(outs[0]) == parameters(two)
    assert not outs[1].exists()  # node 0 writes


def test_two_nodes_of_two_ranks_train_as_one(file: Path, alone: Path) -> None:
    port, out = free_port(), file.parent / "nodes of two"
    started = [start(file, out, variables=node(index, port, **TWO)) for index in range(2)]
    for process in started:
        code, said = finish(process)
        assert code == 0, said
    assert_same_training(out, alone)


def test_reproducible_runs_have_the_same_bits_on_one_two_and_four_ranks(file: Path, tmp_path: Path) -> None:
    """With products in float64, and with steps whose regions ran one by one for a profile."""
    own = write_experiment(tmp_path)
    wide = "(cast (matmul (cast x float64) (cast (param wide [6 16] :init (normal 0.3)) float64)) float32)"
    text = own.read_text().replace("(defrun\n", "(defrun\n  :reproducible-over 4\n")
    assert "(linear x 16)" in text
    own.write_text(text.replace("(linear x 16)", wide))
    settings = ("--set", "epochs=25")
    one = train(own, tmp_path / "one", *settings)
    pair = train_on_ranks(2, own, tmp_path / "pair", "--profile", *settings)
    assert (tmp_path / "pair" / "report" / "trace.json").exists()
    four = train_on_ranks(4, own, tmp_path / "four", *settings, nodes=2)
    profiled = train(own, tmp_path / "profiled", "--profile", *settings)
    assert parameters(one) == parameters(pair) == parameters(four) == parameters(profiled)
    for name, values in series(one).items():
        for other in (pair, four):
            np.testing.assert_array_equal(series(other)[name], values, err_msg=name)


# Resume ---------------------------------------------------------------------------------------------------------------


def test_a_resume_on_as_many_ranks_has_the_same_bits(file: Path, two: Path) -> None:
    out = file.parent / "resumed"
    train(file, out, "--stacking", "1", "--steps", "3", variables=TWO)
    train(file, out, "--resume", "latest", variables=TWO)
    assert parameters(out) == parameters(two)
