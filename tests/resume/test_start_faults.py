"""Starts that cannot be what was asked, by the command: each is refused or mended, and says so."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from resume_runs import (
    MLP,
    POINTS,
    STEPS,
    Trial,
    assert_equal_runs,
    newest,
    run,
    run_signalled,
    status_of,
    write_program,
)
from warm import LIMIT, Command

import paren


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.make(tmp_path_factory.mktemp("mlp"), "mlp")


@pytest.fixture
def half(trial: Trial, tmp_path: Path) -> Path:
    """A run stopped at step 16, with checkpoints 7, 14 and 16."""
    trial.run(tmp_path / "run", steps=16)
    return tmp_path / "run"


def flip(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def refusal(code: str, message: str, shown: str) -> None:
    assert f"{code}: {message}\n" in shown, shown
    assert "Traceback" not in shown


def test_latest_in_an_empty_directory(trial: Trial, tmp_path: Path) -> None:
    for out in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        code, printed, shown = run(*trial.command(out, "--resume", "latest"))
        assert (code, printed) == (1, "")
        refusal("E-CKPT-001", f"{out} holds no run to resume", shown)
        assert not (out / "run.json").exists()


def test_a_step_that_does_not_exist(trial: Trial, half: Path) -> None:
    before = sorted(path.name for path in half.rglob("*"))
    code, _, shown = run(*trial.command(half, "--resume", 15))
    assert code == 1
    refusal(
        "E-CKPT-002", f"there is no checkpoint {half / 'checkpoints' / '000015'}", shown.replace(" (did", "\n (did")
    )
    assert "holds 000007, 000014, 000016" in shown
    assert sorted(path.name for path in half.rglob("*")) == before


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("parameters.safetensors", "flip"),
        ("optimizer.safetensors", "cut"),
        ("optimizer.safetensors", "delete"),
        ("manifest.json", "flip"),
    ],
)
def test_a_damaged_newest_checkpoint(trial: Trial, half: Path, file: str, fault: str) -> None:
    """Asked for by number it is refused, with the file's name; `latest` goes back to the one before, and says so."""
    path = newest(half) / file
    match fault:
        case "flip":
            flip(path)
        case "cut":
            path.write_bytes(path.read_bytes()[:-5])
        case _:
            path.unlink()
    with pytest.raises(paren.ParenError) as caught:
        trial.run(half, resume="16")
    assert caught.value.code == "E-CKPT-003"
    assert re.match(rf"the checkpoint {newest(half)} is damaged: .*{file}", caught.value.message)
    code, _, shown = run(*trial.command(half, "--resume", "latest"))
    assert code == 0
    assert re.search(rf"checkpoint 000016 is damaged \(.*{file}.*\), going back to 000014\n", shown), shown
    assert "going on at step 14 of 20\n" in shown
    assert_equal_runs(half, trial.whole)


def test_all_checkpoints_damaged(trial: Trial, half: Path) -> None:
    for path in half.glob("checkpoints/*/parameters.safetensors"):
        flip(path)
    for wanted in ("latest", "auto"):
        code, _, shown = run(*trial.command(half, "--resume", wanted))
        assert code == 1
        refusal("E-CKPT-010", f"no checkpoint in {half / 'checkpoints'} is whole", shown)


@pytest.mark.parametrize("version", [0, 1])
def test_a_checkpoint_of_another_format(trial: Trial, half: Path, version: int) -> None:
    path = newest(half) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": version}))
    code, _, shown = run(*trial.command(half, "--resume", 16))
    assert code == 1
    refusal(
        "E-CKPT-005",
        f"the checkpoint {newest(half)} is of format {version}, and this paren reads format 3",
        shown,
    )
    code, _, shown = run(*trial.command(half, "--resume", "latest"))
    assert code == 0
    assert f"checkpoint 000016 is damaged (format {version}), going back to 000014\n" in shown
    assert_equal_runs(half, trial.whole)


def test_a_flipped_byte_of_the_best_parameters(trial: Trial, tmp_path: Path) -> None:
    shutil.copytree(trial.whole, tmp_path / "run")
    path = max((tmp_path / "run" / "best").glob("*.safetensors"))
    flip(path)
    with pytest.raises(paren.ParenError) as caught:
        paren.restore(tmp_path / "run", best=True)
    assert caught.value.code == "E-CKPT-003"
    assert str(path.name) in caught.value.message
    assert paren.restore(tmp_path / "run").step == STEPS


def test_a_complete_run_again(trial: Trial, tmp_path: Path) -> None:
    shutil.copytree(trial.whole, tmp_path / "run")
    for resume in ("latest", "auto"):
        ended = trial.run(tmp_path / "run", resume=resume)
        assert (ended.ended, ended.step, ended.exit_code) == ("done", STEPS, 0)
    code, printed, shown = run(*trial.command(tmp_path / "run"))
    assert (code, printed) == (0, f"{tmp_path / 'run'}\n")
    assert f"{tmp_path / 'run'} holds this run, complete after 20 steps: nothing to do\n" in shown
    assert_equal_runs(tmp_path / "run", trial.whole)


def test_an_unfinished_run_without_resume(trial: Trial, half: Path) -> None:
    code, _, shown = run(*trial.command(half))
    assert code == 1
    refusal("E-RUN-001", f"{half} holds an unfinished run of this experiment, at step 16", shown)


def test_overwrite_starts_anew(trial: Trial, half: Path) -> None:
    code, _, shown = run(*trial.command(half, "--overwrite"))
    assert code == 0, shown
    assert_equal_runs(half, trial.whole)
    code, _, shown = run(*trial.command(half, "--overwrite", "--resume", "latest"))
    assert code == 1
    refusal("E-RUN-008", "--overwrite and --resume contradict each other", shown)


@pytest.mark.parametrize("options", [(), ("--resume", "latest"), ("--resume", "auto"), ("--resume", "7")])
def test_another_experiment_is_refused(trial: Trial, half: Path, options: tuple[str, ...]) -> None:
    before = (half / "metrics.jsonl").read_bytes()
    code, _, shown = run(*trial.command(half, "--set", "dropped=0.25", *options))
    assert code == 1
    refusal("E-RUN-002", f"{half} holds another experiment (dropped is 0.3 there and 0.25 here)", shown)
    assert (half / "metrics.jsonl").read_bytes() == before


def test_changed_data_are_refused(trial: Trial, half: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.paren"
    shutil.copy(trial.file, file)
    (tmp_path / "points.py").write_text(POINTS.replace("np.sin(x)", "np.cos(x)"))
    code, _, shown = run("run", file, "--out", half, "--resume", "latest")
    assert code == 1
    assert f"E-RUN-002: {half} holds another experiment" in shown


def test_several_starts_at_once(trial: Trial, tmp_path: Path) -> None:
    """One trains; the others are refused with its process and host."""
    out = tmp_path / "run"
    arguments = (*trial.command(out), "--set", "steps=1000000", "--set", "patience=1000000")
    starts = [Command(arguments) for _ in range(4)]
    deadline = time.monotonic() + LIMIT
    while sum(process.poll() is None for process in starts) > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    (winner,) = [process for process in starts if process.poll() is None]
    for process in starts:
        if process is not winner:
            _, shown = process.communicate()
            assert process.returncode == 1
            assert re.search(
                rf"E-RUN-004: {out} is in use by process {winner.pid} on \S+, since \d{{4}}-\d\d-\d\dT[\d:]+\+00:00\n",
                shown,
            ), shown
    winner.send_signal(signal.SIGTERM)
    assert winner.wait() == 143
    winner.communicate()
    assert not (out / "holder.json").exists()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_folder_is_deleted_ends(tmp_path: Path, replaced: bool) -> None:
    """It would write into what is gone, and end well, while another run may begin there."""
    out, text = tmp_path / "run", re.sub(r"(:evaluate-every|:checkpoint-every) \d", r"\1 1000000", MLP)
    file = write_program(tmp_path, "mlp", text)
    process = Command(("run", str(file), "--out", str(out), "--set", "steps=100000000"))
    deadline = time.monotonic() + LIMIT
    while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    out.rename(tmp_path / "aside")
    if replaced:
        out.mkdir()
        (out / "lock").touch()
    _, shown = process.communicate()
    assert process.returncode == 1
    refusal("E-RUN-016", f"{out} was deleted or replaced while the run wrote to it", shown)


def test_the_lock_of_a_dead_process_is_taken_over(trial: Trial, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, _ = run_signalled(int(signal.SIGKILL), 1, "finish", 9, *trial.command(out))
    assert code == -signal.SIGKILL
    assert (out / "holder.json").exists()
    assert run(*trial.command(out, "--resume", "auto"))[0] == 0
    assert_equal_runs(out, trial.whole)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB of its own; only root may have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a file system is not permitted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True, capture_output=True)


def test_a_disk_without_room_is_refused_before_step_1(trial: Trial, disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(39 << 20))
    code, _, shown = run(*trial.command(disk / "run"))
    assert code == 1
    assert re.search(rf"E-RUN-006: {disk}/run/checkpoints has \S+ \w+ free, and the run needs 16 MiB for ", shown), (
        shown
    )
    assert status_of(disk / "run").code == "E-RUN-006"
    (disk / "filler").unlink()
    assert run(*trial.command(disk / "run"))[0] == 0


def test_a_read_only_disk_is_refused_before_step_1(trial: Trial, disk: Path) -> None:
    trial.run(disk / "run", steps=3)
    remount(disk, "ro")
    for out in (disk / "run", disk / "new"):
        code, _, shown = run(*trial.command(out, "--resume", "auto"))
        assert code == 1
        assert re.search(rf"E-RUN-005: {out}\S* is not writable \(read-only file system\)\n", shown), shown
    remount(disk, "rw")
    assert run(*trial.command(disk / "run", "--resume", "latest"))[0] == 0
    assert_equal_runs(disk / "run", trial.whole)


@pytest.mark.parametrize(("event", "number", "kept"), [("save", 33, 7), ("save", 1, None), ("finish", 16, 14)])
def test_a_disk_that_fills_up(trial: Trial, disk: Path, event: str, number: int, kept: int | None) -> None:
    """In the second save, in the first, and between saves: the run stops with a code, and what was saved stands.

    A thread writes while steps go on, so at a busy moment the disk fills while the save before is still being written:
    then that one is not published.
    """
    out = disk / "run"
    code, _, shown = run_signalled(f"fill:{disk / 'filler'}", 1, event, number, *trial.command(out))
    assert code == 1
    assert re.search(r"E-(CKPT-008|RUN-012): .*no space left on device", shown), shown
    assert "Traceback" not in shown
    (disk / "filler").unlink()
    if kept is not None:
        published = [path.name for path in (out / "checkpoints").glob("[0-9]*")]
        assert max(published, default=f"{kept:06d}") in (f"{kept:06d}", f"{kept - 7:06d}")
    assert run(*trial.command(out, "--resume", "auto"))[0] == 0
    assert_equal_runs(out, trial.whole)
