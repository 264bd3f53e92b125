"""What ends a run of several ranks, as real processes: faults of all kinds at all places, and the lines about them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from rank_processes import free_port
from rank_runs import (
    END,
    ENDED,
    HOST,
    LIMIT,
    LONG,
    TWO,
    assert_gone,
    finish,
    last_line,
    node,
    parameters,
    ranks_of,
    running,
    start,
    start_torchrun,
    train,
    train_on_ranks,
    wait_for_step,
)

ONE = ("--stacking", "1")


def fail(file: Path, out: Path, fault: str, *arguments: str, torchrun: int = 0, **variables: str) -> str:
    """What a run says that a fault ends, which leaves no process behind."""
    given = {"FAULT": fault, **variables}
    if torchrun:
        process = start_torchrun(torchrun, file, out, *ONE, *LONG, *arguments, variables=given)
        code, said = finish(process)
    else:
        code, said = finish(start(file, out, *ONE, *LONG, *arguments, variables=given | TWO))
    assert code == 1, said
    return said


def go_on(file: Path, out: Path) -> dict[str, bytes]:
    """The parameters at `END` after a resume."""
    train_on_ranks(2, file, out, "--resume", "auto", *ONE, *LONG, "--steps", str(END))
    return parameters(out)


def status_of(out: Path) -> tuple[str, str, str]:
    found = json.loads((out / "status.json").read_text())
    return found["state"], found["code"], found["message"]


# Dead, frozen ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_and_the_run_goes_on_exactly(file: Path, long: Path, rank: int) -> None:
    out = file.parent / f"killed {rank}"
    said = fail(file, out, f"kill@{rank}:step6")
    message = f"rank {rank} on {HOST} failed in step 6: it was ended by SIGKILL"
    assert said.endswith(f"rank {1 - rank} waited for rank {rank}\nE-DP-008: {message}\n")
    assert status_of(out) == ("failed", "E-DP-008", message)
    assert go_on(file, out) == parameters(long)


def test_a_frozen_rank_is_named(file: Path) -> None:
    out = file.parent / "frozen"
    process = start(file, out, *LONG, variables=TWO)
    wait_for_step(out, 1)
    children = ranks_of(process)
    os.kill(children[1], signal.SIGSTOP)
    code, said = finish(process)
    assert code == 1
    assert re.fullmatch(
        f"E-DP-008: rank 1 on {HOST} failed .*[0-9].*: it gave no sign of life for 10 s", last_line(said)
    )
    assert_gone(children.values())


def test_a_rank_that_is_frozen_before_its_first_sign_is_named(file: Path) -> None:
    process = start(file, file.parent / "frozen at once", *LONG, variables={"FAULT": "stop@1:load", **TWO})
    end = time.monotonic() + LIMIT
    while len(children := ranks_of(process)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    code, said = finish(process)
    assert code == 1
    assert (
        last_line(said) == f"E-DP-008: rank 1 on {HOST} failed at the start (joining): it gave no sign of life for 10 s"
    )
    assert_gone(children.values())


def test_a_rank_that_ends_without_a_word_is_named(file: Path) -> None:
    said = fail(file, file.parent / "ended", "system@1:save")
    assert last_line(said) == f"E-DP-008: rank 1 on {HOST} failed in step 3: it ended with exit code 3"


# Alive and stuck ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "where", "limit"),
    [
        ("sleep@1:step3", "in step 3", "PAREN_STEP_TIMEOUT"),
        ("sleep@0:evaluate", "after step 3 (evaluating)", "PAREN_STEP_TIMEOUT"),
        ("sleep@0:write", "after step 4 (saving)", "PAREN_WORK_TIMEOUT"),
        ("sleep@1:compile", "at the start (compiling)", "PAREN_WORK_TIMEOUT"),
    ],
)
def test_a_stuck_rank_is_named_after_a_limit(file: Path, long: Path, fault: str, where: str, limit: str) -> None:
    """The limit leaves time to the ranks that are not stuck, on a machine that is busy with other things."""
    out = file.parent / fault
    said = fail(file, out, fault, **{limit: "12"})
    rank, waited = fault[6], f"the others waited 12 s for it, the limit of {limit}"
    assert last_line(said) == f"E-DP-008: rank {rank} on {HOST} failed {where}: {waited}"
    if "step" in fault or "write" in fault:
        assert go_on(file, out) == parameters(long)


def test_long_work_of_one_rank_runs_into_no_limit_and_is_told_of(file: Path, two: Path) -> None:
    """It is longer than what is allowed in a step, before the first one and in a resume."""
    limits = {"PAREN_STEP_TIMEOUT": "9", "GATE": str(file.parent / "gate"), **TWO}
    outs = [file.parent / name for name in ("slow", "slow to resume")]
    train_on_ranks(2, file, outs[1], *ONE, "--steps", "3")
    started = [  # side by side, as they wait
        start(file, outs[0], *ONE, variables={"FAULT": "hold@0:data", **limits}),
        start(file, outs[1], "--resume", "latest", variables={"FAULT": "hold@0:restore", **limits}),
    ]
    for process, phase in zip(started, ("reading data", "restoring"), strict=True):
        process.wait_to_say(rf"waiting for rank 0 on {HOST} \({phase}\), [1-9]\d s\n")
    (file.parent / "gate").touch()
    for process, out in zip(started, outs, strict=True):
        code, said = finish(process)
        assert code == 0, said
        assert parameters(out) == parameters(two)


# Errors ---------------------------------------------------------------------------------------------------------------


def test_an_error_on_one_rank_is_told_with_its_code(file: Path, tmp_path: Path) -> None:
    """The rank's own report first; its code and text are in the last line."""
    said = fail(file, tmp_path / "out", "memory@1:step3")
    report, waited, last = said.strip().splitlines()[-6:-2], *said.strip().splitlines()[-2:]
    assert [re.sub("[0-9.]+ [KMGT]?i?B(ytes)?", "N", line) for line in report] == [
        "E-MEM-002: memory ran out after step 2: N are free, N were planned",
        report[1],
        "  note: the system said: provoked by a test",
        "  fix: end other programs, or make the model or the microbatch smaller, then continue with --resume latest",
    ]
    assert waited == "rank 0 waited for rank 1"
    assert last == f"E-DP-008: rank 1 on {HOST} failed in step 3: {report[0]}"


def test_a_fault_of_paren_on_one_rank_is_told_with_its_traceback(file: Path, tmp_path: Path) -> None:
    said = fail(file, tmp_path / "out", "raise@1:data")
    assert "Traceback (most recent call last):\n" in said
    assert said.endswith(
        "This is a fault of paren, not of your file. Please report it with the lines above.\n"
        f"rank 0 waited for rank 1\n"
        f"E-DP-008: rank 1 on {HOST} failed at the start (reading data): ValueError: provoked by a test\n"
    )


def test_an_error_on_another_node_is_the_last_line_on_every_node(file: Path, tmp_path: Path) -> None:
    port = free_port()
    variables = [node(index, port, FAULT="raise@3:step3", **TWO) for index in range(2)]
    started = [start(file, tmp_path / "out", *LONG, variables=each) for each in variables]
    ends = [finish(process) for process in started]
    last = f"E-DP-008: rank 3 on {HOST} failed in step 3: ValueError: provoked by a test"
    for (code, said), waiting in zip(ends, ("rank 0, 1", "rank 2"), strict=True):
        assert code == 1
        assert said.endswith(f"{waiting} waited for rank 3\n{last}\n")
    assert "Traceback" not in ends[0][1]
    assert "Traceback" in ends[1][1]


def test_a_value_that_is_not_finite_on_another_rank_is_traced_to_its_line(file: Path, long: Path) -> None:
    out = file.parent / "not finite"
    said = fail(file, out, "nan@1:step3")
    place = f"{file}:13:26"
    message = "E-NUM-001: the loss of step 3 is nan, first produced by 'contract'"
    assert said.endswith(
        f"{place}: {message}\n"
        "    (linear (dropout (tanh (linear x 16)) 0.2) 1))\n"
        "                           ^^^^^^^^^^^^^\n"
        "  fix: a smaller rate or :clip may help; :on-nonfinite skip leaves such steps out\n"
        "rank 0 waited for rank 1\n"
        f"E-DP-008: rank 1 on {HOST} failed in step 3: {message} ({place})\n"
    )
    assert [path.name for path in (out / "checkpoints").glob("0*")] == ["000002"]
    assert go_on(file, out) == parameters(long)


def test_a_skipped_step_names_what_another_rank_found(file: Path, tmp_path: Path) -> None:
    text = file.read_text().replace("(defrun\n", "(defrun\n  :on-nonfinite skip\n")
    own = tmp_path / file.name
    own.write_text(text)
    (tmp_path / "rows.py").write_text((file.parent / "rows.py").read_text())
    out = train(own, tmp_path / "out", "--steps", "4", variables={"FAULT": "nan@1:step3", **TWO})
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line.get("annotation") == "skipped"]
    assert (line["step"], line["operation"], line["place"]) == (3, "contract", f"{own}:13:26")


def test_ranks_whose_states_differ_publish_nothing(file: Path, long: Path) -> None:
    out = file.parent / "different"
    said = fail(file, out, "flip@1:step3")
    message = "E-DP-004: at step 4 rank 1 holds another linear.weight than rank 0"
    assert said.endswith(
        f"{message}\n"
        "  fix: continue with --resume latest from the checkpoint before, and report it\n"
        "rank 0 waited for rank 1\n"
        f"E-DP-008: rank 1 on {HOST} failed after step 4 (saving): {message}\n"
    )
    assert [path.name for path in (out / "checkpoints").glob("0*")] == ["000002"]
    assert go_on(file, out) == parameters(long)


# Signals --------------------------------------------------------------------------------------------------------------


def stop_in(file: Path, out: Path, fault: str, phase: str, *, rank: int | None = None) -> tuple[int, str]:
    """Exit code and stderr of a run that SIGTERM, to the command or to one rank, meets in a phase, which a fault makes
    last until then."""
    process = start(file, out, *ONE, *LONG, variables={"FAULT": fault, **TWO})
    end = time.monotonic() + LIMIT
    while phase_of(out) != phase and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid if rank is None else ranks_of(process)[rank], signal.SIGTERM)
    return finish(process)


def phase_of(out: Path) -> str | None:
    path = out / "status.json"
    return json.loads(path.read_text())["phase"] if path.exists() else None


@pytest.mark.parametrize(
    ("fault", "phase", "rank", "step"),
    [
        ("heed@0:compile", "compiling", None, 0),
        ("heed@0:evaluate", "evaluating", None, 3),
        ("heed@0:write", "saving", None, None),
        ("heed@1:evaluate", "evaluating", 1, 3),
    ],
)
def test_a_stop_signal_is_heard_in_every_phase_and_by_all_ranks(
    file: Path, long: Path, fault: str, phase: str, rank: int | None, step: int | None
) -> None:
    out = file.parent / f"stopped {phase} {rank}"
    code, said = stop_in(file, out, fault, phase, rank=rank)
    assert code == 143, said
    at = "[0-9]" if step is None else str(step)
    saved = f"saved at step {at}: --resume latest goes on from there" if step != 0 else "stopped before step 1"
    assert re.search(f"{saved}\n", said), said
    assert go_on(file, out) == parameters(long)


def test_a_second_signal_ends_all_ranks_at_once(file: Path, long: Path) -> None:
    out = file.parent / "stopped twice"
    process = start(file, out, *ONE, *LONG, variables={"FAULT": "sleep@0:evaluate", **TWO})
    end = time.monotonic() + LIMIT
    while phase_of(out) != "evaluating" and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait_to_say("stopping at the next step border")
    process.send_signal(signal.SIGTERM)
    code, rest = finish(process)
    assert (code, rest.strip().splitlines()[-1]) == (143, "stopped at once; the last checkpoint stands")
    while running(out) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(out)
    assert go_on(file, out) == parameters(long)


# Under torchrun -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("stop@2:step3", "it gave no sign of life for 10 s"),
        ("kill@0:step3", "its process is gone"),
        ("sleep@1:step3", "the others waited 12 s for it, the limit of PAREN_STEP_TIMEOUT"),
        ("raise@3:evaluate", "ValueError: provoked by a test"),
    ],
)
def test_under_torchrun_the_ranks_watch_each_other(file: Path, long: Path, fault: str, cause: str) -> None:
    out = file.parent / f"torchrun {fault}"
    said = fail(file, out, fault, torchrun=4, PAREN_STEP_TIMEOUT="12" if fault.startswith("sleep") else "40")
    rank, place = fault.split("@")[1][0], "in step 3" if "step" in fault else "after step 3"
    lines = [line for line in said.splitlines() if line.startswith("E-DP-008: ")]
    named = f"E-DP-008: rank {rank} on {HOST} failed {place}"
    assert lines, said
    assert all(
        re.fullmatch(rf"{re.escape(named)}.*: {re.escape(cause)} \(rank \d {ENDED}\)", each) for each in lines
    ), lines
    assert not running(out)


def test_ranks_of_torchrun_that_wait_for_one_that_never_joins_are_not_waited_for(file: Path, tmp_path: Path) -> None:
    """They end when torchrun asks them to, though they are inside of a call in which Python runs no signal handler:
    it would ask again after 30 s."""
    out = tmp_path / "out"
    fault = "raise@0:join sleep5@0:join"  # it sleeps first
    process = start_torchrun(3, file, out, *ONE, *LONG, variables={"FAULT": fault})
    code, said = finish(process)
    assert code == 1
    assert "forcefully" not in said, "which it says of whom it asks again"
    assert re.search(r"Root Cause.*\n.*\n.*\n.*\n *rank +: 0 ", said) is not None
    assert not running(out)
