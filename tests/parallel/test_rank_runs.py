"""Runs of several ranks as real processes: the experiment of one, exact resumes, and ends that name the cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rank_processes import free_port
from rank_runs import LIMIT, finish, parameters, series, start, train, wait_for_step, write_experiment

TWO = {"PAREN_DEVICES": "0,1"}
LONG = ("--set", "epochs=2000", "--set", "evaluate=100000")  # longer than any test
END = 40  # steps that a long run is compared after


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone(file: Path) -> Path:
    return train(file, file.parent / "alone", "--stacking", "1")


@pytest.fixture(scope="module")
def two(file: Path) -> Path:
    return train(file, file.parent / "two", "--stacking", "1", variables=TWO)


@pytest.fixture(scope="module")
def long(file: Path) -> Path:
    return train(file, file.parent / "long", "--stacking", "1", *LONG, "--steps", str(END), variables=TWO)


def node(index: int, port: int, nodes: int = 2, **more: str) -> dict[str, str]:
    return {
        "PAREN_NODES": str(nodes),
        "PAREN_NODE_RANK": str(index),
        "PAREN_RENDEZVOUS": f"127.0.0.1:{port}",
        "PAREN_RENDEZVOUS_TIMEOUT": "60",
        **more,
    }


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids of the ranks that a command started, by rank."""
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        rank = next((each for each in variables if each.startswith(b"RANK=")), None)
        if rank is not None:
            found[int(rank[5:])] = int(child)
    return found


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
    given = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "-m", "paren"]
    command += ["run", str(file), "--out", str(out), "--threads", "1"]
    done = subprocess.run(
        command, env=given | {"PAREN_CACHE": str(file.parent / "cache")}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
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
    own = write_experiment(tmp_path)
    own.write_text(own.read_text().replace("(defrun\n", "(defrun\n  :reproducible-over 4\n"))
    settings = ("--set", "epochs=25")
    one = train(own, tmp_path / "one", *settings)
    pair = train(own, tmp_path / "pair", *settings, variables=TWO)
    port = free_port()
    outs = [tmp_path / f"node {index}" for index in range(2)]
    started = [start(own, out, *settings, variables=node(i, port, **TWO)) for i, out in enumerate(outs)]
    for process in started:
        code, said = finish(process)
        assert code == 0, said
    profiled = train(own, tmp_path / "profiled", "--profile", *settings)
    assert parameters(one) == parameters(pair) == parameters(outs[0]) == parameters(profiled)
    for name, values in series(one).items():
        for other in (pair, outs[0]):
            np.testing.assert_array_equal(series(other)[name], values, err_msg=name)


# Resume ---------------------------------------------------------------------------------------------------------------


def test_a_resume_on_as_many_ranks_has_the_same_bits(file: Path, two: Path) -> None:
    out = file.parent / "resumed"
    train(file, out, "--stacking", "1", "--steps", "3", variables=TWO)
    train(file, out, "--resume", "latest", variables=TWO)
    assert parameters(out) == parameters(two)


def test_a_resume_on_another_number_of_ranks_is_refused_or_goes_on_from_the_same_place(file: Path, alone: Path) -> None:
    out = file.parent / "moved"
    train(file, out, "--stacking", "1", "--steps", "4", variables=TWO)
    code, said = finish(start(file, out, "--resume", "latest"))
    assert code == 1
    assert (
        f"E-DP-002: going on from {out}/checkpoints/000004 would not be bit-exact: ranks 2 there and 1 here\n"
        "  fix: resume on as many ranks and nodes, or accept other bits with --allow-new-layout\n"
    ) in said
    train(file, out, "--resume", "latest", "--allow-new-layout")
    assert_same_training(out, alone)


# Ends -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_the_run_goes_on_exactly(file: Path, long: Path, rank: int) -> None:
    out = file.parent / f"killed {rank}"
    process = start(file, out, "--stacking", "1", *LONG, variables=TWO)
    wait_for_step(out, 1)
    children = ranks_of(process)
    os.kill(children[rank], signal.SIGKILL)
    code, said = finish(process)
    assert code == 1
    last = said.strip().splitlines()[-2:]
    assert last[0].startswith(f"E-DP-008: rank {rank} on ")
    assert last[0].endswith(": it was ended by SIGKILL")
    assert last[1] == "  fix: see to the cause, then continue with --resume latest"
    assert not any(Path(f"/proc/{child}").exists() for child in children.values())
    train(file, out, "--resume", "auto", "--stacking", "1", *LONG, "--steps", str(END), variables=TWO)
    assert parameters(out) == parameters(long)


def test_a_frozen_rank_is_named(file: Path) -> None:
    out = file.parent / "frozen"
    process = start(file, out, *LONG, variables=TWO)
    wait_for_step(out, 1)
    children = ranks_of(process)
    os.kill(children[1], signal.SIGSTOP)
    code, said = finish(process)
    assert code == 1
    assert ": it gave no sign of life for 10 s\n" in said
    assert not any(Path(f"/proc/{child}").exists() for child in children.values())


def test_sigterm_saves_once_and_the_run_goes_on_exactly(file: Path, two: Path) -> None:
    out = file.parent / "stopped"
    process = start(file, out, "--stacking", "1", variables=TWO)
    wait_for_step(out, 1)
    process.send_signal(signal.SIGTERM)
    code, said = finish(process)
    assert code in (0, 143), said  # it may have been over
    train(file, out, "--resume", "auto", "--stacking", "1", variables=TWO)
    assert parameters(out) == parameters(two)


def test_an_error_on_one_rank_is_told_with_its_code(file: Path, tmp_path: Path) -> None:
    own = write_experiment(tmp_path)
    rows = tmp_path / "rows.py"
    rows.write_text("import os\nassert os.environ.get('RANK') != '1', 'no rows here'\n" + rows.read_text())
    code, said = finish(start(own, tmp_path / "out", variables=TWO))
    assert code == 1
    assert "E-DP-008: rank 1 on " in said
    assert "no rows here" in said


# Refusals -------------------------------------------------------------------------------------------------------------


def test_microbatches_that_cannot_be_shared_are_refused_before_any_rank_starts(file: Path, tmp_path: Path) -> None:
    code, said = finish(start(file, tmp_path / "out", "--set", "microbatches=3", variables=TWO))
    assert (code, said) == (
        1,
        "E-DP-003: 2 ranks cannot share 3 microbatches evenly\n"
        "  fix: take 1 or 3 of them, or choose :microbatches that 2 divides\n",
    )


def test_rounded_gradients_are_not_reproducible(file: Path, tmp_path: Path) -> None:
    own = write_experiment(tmp_path)
    own.write_text(own.read_text().replace("(defrun\n", "(defrun\n  :reproducible-over 4\n"))
    code, said = finish(start(own, tmp_path / "out", variables={**TWO, "PAREN_NODE_GRADIENTS": "bf16"}))
    assert code == 1
    assert "E-DP-005: PAREN_NODE_GRADIENTS is `bf16`, and :reproducible-over needs exact sums\n" in said


def test_a_node_with_other_settings_is_refused(file: Path, tmp_path: Path) -> None:
    port = free_port()
    first = start(file, tmp_path / "out", variables=node(0, port))
    second = start(file, tmp_path / "out", "--set", "rows=200", variables=node(1, port))
    codes, texts = zip(finish(first), finish(second), strict=True)
    assert codes == (1, 1)
    for text in texts:
        assert "E-DP-008: rank 1 on " in text
        assert "E-DP-006: the experiment is " in text


def test_a_node_that_does_not_come_is_named(file: Path, tmp_path: Path) -> None:
    port = free_port()
    variables = node(0, port, 3, PAREN_RENDEZVOUS_TIMEOUT="2")
    code, said = finish(start(file, tmp_path / "out", "--set", "microbatches=3", variables=variables))
    assert (code, said) == (
        1,
        f"E-DP-007: node 1, 2 did not arrive at 127.0.0.1:{port} within 2 s\n"
        "  note: arrived: 0\n"
        "  fix: start every node; PAREN_RENDEZVOUS_TIMEOUT gives them more time\n",
    )


def test_two_nodes_with_one_index_are_refused(file: Path, tmp_path: Path) -> None:
    port = free_port()
    three = ("--set", "microbatches=3")
    started = [start(file, tmp_path / "out", *three, variables=node(index, port, 3)) for index in (0, 1, 1)]
    end = time.monotonic() + LIMIT
    while all(process.poll() is None for process in started[1:]) and time.monotonic() < end:
        time.sleep(0.05)
    texts = []
    for process in started:
        ended = process.poll() is not None
        process.kill()
        _, said = process.communicate()
        texts += [said] if ended else []
    assert len(texts) == 1
    assert "E-DP-006: node 1 is there already, on " in texts[0]


def test_devices_of_nodes_have_to_be_as_many(file: Path, tmp_path: Path) -> None:
    port = free_port()
    first = start(file, tmp_path / "out", variables=node(0, port))
    code, said = finish(start(file, tmp_path / "out", variables=node(1, port, **TWO)))
    assert code == 1
    assert said.startswith("E-DP-006: the number of devices is 2 on node 1, and 1 on node 0\n")
    code, said = finish(first)
    assert code == 1
    assert ": E-DP-006: the number of devices is 2 on node 1, and 1 on node 0\n" in said
