"""Memory is refused before anything is read or compiled, and compiling is told apart from training; shape mistakes are
found when the file is checked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paren_command import EXAMPLES, SMALL, paren, write_small

import paren as library
from paren.forecast.fit import refuse_if_too_large
from paren.forecast.memory import memory_of
from paren.forecast.stacking import Candidate, forced_candidate
from paren.runtime.memory import Available
from paren.text.size import show_bytes


def test_a_run_that_does_not_fit_is_refused_with_its_parts_and_what_would_fit(tmp_path: Path) -> None:
    file = str(EXAMPLES / "gpt.paren")
    arguments = (file, "--variant", "smoke", "--out", "out", "--threads", "2")  # each of which needs memory
    ended = paren(tmp_path, "run", *arguments, PAREN_MEMORY="24MiB")
    assert (ended.code, ended.out) == (1, "")
    lines = ended.err.splitlines()
    assert re.fullmatch(
        rf"{re.escape(file)}:\d+:21: E-MEM-001: the run needs [\d.]+ MiB, and 24 MiB are free", lines[0]
    )
    size = r"[\d.]+ [KM]iB"
    parts = ("parameters", "gradients", "optimizer", "live", "inputs", "products", "saving", "host")
    assert re.fullmatch("  note: it would hold " + ", ".join(f"{part} {size}" for part in parts), lines[3])
    assert lines[4].startswith(f"  note: most is alive in the graph accumulate at {file}:")
    assert lines[5] == "  note: the limit is the value of PAREN_MEMORY"
    assert re.fullmatch(r"  note: in accumulate \d+ steps run again to fit, about [\d.]+ ms a call", lines[6])
    assert re.fullmatch(r"  fix: write :microbatches \d+, which needs [\d.]+ MiB", lines[7])
    assert not (tmp_path / "out").exists()


def candidate(experiment: library.Experiment) -> Candidate:
    return Candidate(experiment.program, experiment.plans, memory_of(experiment.program, experiment.plans))


@pytest.mark.parametrize("share", [0.95, 0.6, 0.4])
def test_the_change_that_is_named_fits(share: float) -> None:
    experiment = library.load(EXAMPLES / "gpt.paren", variant="smoke")
    first = candidate(experiment)
    limit = int(share * first.memory.planned)
    with pytest.raises(library.ParenError) as caught:
        refuse_if_too_large(first, Available(limit, 2 * limit, "available memory of the machine"))
    used = f"of {show_bytes(2 * limit)} in all, {show_bytes(limit)} are in use"
    assert caught.value.notes[2].message == f"the limit is the available memory of the machine: {used}"
    named = re.match(r"write :microbatches (\d+), ", caught.value.fix or "")
    assert named is not None
    settings = {"microbatches": int(named[1])}
    changed = library.load(EXAMPLES / "gpt.paren", variant="smoke", set=settings)
    refuse_if_too_large(candidate(changed), Available(limit, limit, "value of PAREN_MEMORY"))


def test_where_no_batch_fits_the_model_is_too_large() -> None:
    experiment = library.load(EXAMPLES / "gpt.paren", variant="smoke")
    with pytest.raises(library.ParenError) as caught:
        refuse_if_too_large(candidate(experiment), Available(2**20, 2**20, "value of PAREN_MEMORY"))
    assert re.fullmatch(
        r"make the model smaller: one example a call needs [\d.]+ MiB, [\d.]+ MiB of it for parameters and what goes "
        r"with them",
        caught.value.fix or "",
    )


def test_a_stacking_that_does_not_fit_is_left_out() -> None:
    experiment = library.load(EXAMPLES / "gpt.paren", variant="smoke", set={"microbatches": 4})
    first = candidate(experiment)
    limit = int(1.1 * first.memory.planned)
    with pytest.raises(library.ParenError) as caught:
        refuse_if_too_large(forced_candidate(first, 4), Available(limit, limit, "value of PAREN_MEMORY"))
    one = show_bytes(first.memory.planned)
    assert caught.value.fix == f"leave out --stacking: one microbatch a call needs {one}"


def test_a_first_start_compiles_and_a_second_takes_all_from_the_cache(tmp_path: Path) -> None:
    write_small(tmp_path)
    line = r"compiling  (\d+) kernels? compiled, (\d+) from the cache, [\d.]+ s"
    counts = []
    for out in ("first", "second"):
        ended = paren(tmp_path, "run", "f.paren", "--out", out)
        match = re.search(line, ended.err)
        assert match is not None
        assert ended.err.index("compiling") < ended.err.index("step 1/4")
        counts.append((int(match[1]), int(match[2])))
    (compiled, _), (again, reused) = counts
    assert compiled > 0
    assert (again, reused) == (0, compiled)


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("(matmul (linear x 4) (param w [5 4] :init zeros))", "E-TYPE"),  # the wrong width in layer 2
        ("(matmul x (transpose (param w [3 4] :init zeros)))", "E-TYPE"),  # a transposed weight
        ("(+ (linear x 4) (linear x 3))", "E-TYPE"),
        ("(reshape (linear x 4) [3 2])", "E-TYPE"),
        ("(concat [(linear x 4) (reshape x [1 3])] :axis 0)", "E-"),
    ],
)
def test_shape_mistakes_are_found_by_check_with_both_shapes(tmp_path: Path, model: str, code: str) -> None:
    write_small(tmp_path, SMALL.replace("(linear x 4)", model, 1))
    checked, run = (paren(tmp_path, command, "f.paren") for command in ("check", "run"))
    assert (checked.code, checked.out) == (1, "")
    assert run.err == checked.err
    assert re.match(rf"f\.paren:6:\d+: {code}", checked.err)


def test_classes_of_the_model_and_labels_of_the_data_differ(tmp_path: Path) -> None:
    write_small(tmp_path, SMALL.replace("(linear x 4)", "(linear x 3)"))
    ended = paren(tmp_path, "run", "f.paren")
    assert ended.code == 1
    assert "sample 3 of array label in d.npz is 3, but label must be in 0 .. 2" in ended.err


def test_a_batch_that_microbatches_do_not_divide_is_trained_whole(tmp_path: Path) -> None:
    path = write_small(tmp_path, SMALL.replace(":batch batch", ":batch 8 :microbatches 3"))
    run = library.load(path).run(out=tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    whole = library.load(write_small(tmp_path)).run(out=tmp_path / "out")
    assert run.step == whole.step == 4


@pytest.mark.parametrize("at", [1, 2, 4])
def test_memory_that_the_system_refuses_ends_the_run_with_a_code(tmp_path: Path, at: int) -> None:
    """The limit of the process is lowered to what it has in allocation `at`: the kernel itself refuses. Then there is a
    little room, as Python needs some to say anything, and it is chance how much of what it has is free."""
    write_small(tmp_path, SMALL.replace("(linear x 4)", "(linear (linear x 1000000) 4)"))
    program = f"""import mmap, resource, sys
from pathlib import Path
import paren.runtime.cpu as cpu
from paren.cli.app import main
allocate, make_map, calls = cpu.allocate, mmap.mmap, 0
def limit(size):
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
def make_map_under_a_limit(*given, **named):
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit(size)
    try:
        return make_map(*given, **named)
    finally:
        limit(size + (16 << 20))
def allocate_under_a_limit(size, **how):
    global calls
    calls += 1
    if calls == {at}:
        mmap.mmap = make_map_under_a_limit
    try:
        return allocate(size, **how)
    finally:
        mmap.mmap = make_map
cpu.allocate = allocate_under_a_limit
sys.exit(main(["run", "f.paren", "--out", "out"]))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"^E-MEM-002: [\d.]+ \w+ could not be allocated, [\d.]+ GiB are free$", done.stderr, re.MULTILINE)
    assert re.search(r"^  note: the run's plan is [\d.]+ MiB: parameters [\d.]+ MiB, ", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
    status = json.loads((tmp_path / "out" / "status.json").read_bytes())
    assert (status["state"], status["code"], status["step"]) == ("failed", "E-MEM-002", 0)
