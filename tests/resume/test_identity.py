"""What makes another experiment of a file, and what does not: a resume is allowed or refused by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from resume_runs import GPT, MLP, POINTS, write_program

import paren
from paren.data.open import open_data
from paren.run import run_digest


def digest(file: Path) -> str:
    experiment = paren.load(file)
    form, run = experiment.program.data, experiment.program.run
    cache = Path(os.environ["PAREN_CACHE"]) / "data"
    return run_digest(experiment.program, open_data(form, root=file.parent, cache=cache, seed=run.seed))


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: digest(write_program(tmp_path_factory.mktemp(name), name)) for name in ("gpt", "mlp")}


SAME: dict[str, Callable[[str], str]] = {
    "comments": lambda text: f"; a new first line\n{text.replace('(defrun', '; before the run' + chr(10) + '(defrun')}",
    "layout": lambda text: text.replace("\n  :", "\n\n      :").replace(" (def ", "   (def "),
    "windows lines": lambda text: text.replace("\n", "\r\n"),
    "order of options": lambda text: changed(
        changed(text, "  :clip 1.0\n", ""), "  :batch 6\n", "  :batch 6\n  :clip 1.0\n"
    ),
    "a constant by another name": lambda text: text.replace("dropped", "rate-of-dropout"),
    "a constant computed": lambda text: changed(text, "(def width 16)", "(def width (* 2 8))"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_experiment(digests: dict[str, str], tmp_path: Path, name: str) -> None:
    assert digest(write_program(tmp_path / "elsewhere", "gpt", SAME[name](GPT))) == digests["gpt"]


OTHER = {
    "a rate": ("(def rate 3e-2)", "(def rate 3.000001e-2)"),
    "a width": ("(def width 16)", "(def width 32)"),
    "dropout": ("(def dropped 0.2)", "(def dropped 0.20001)"),
    "a loss": ("(cross-entropy (gpt tokens) targets)", "(* 2.0 (cross-entropy (gpt tokens) targets))"),
    "a metric": ("(argmax (gpt tokens))", "(argmin (gpt tokens))"),
    "a metric's name": ("(accuracy", "(precision"),
    "an initialiser": ("(normal 0.05)", "(normal 0.051)"),
    "an option of the optimizer": (":weight-decay 0.1", ":weight-decay 0.2"),
    "a batch": (":batch 6", ":batch 9"),
    "a precision": (":clip 1.0", ":clip 1.0 :precision bfloat16"),
    "microbatches": (":microbatches 3", ":microbatches 2"),
    "steps": ("(def steps 20)", "(def steps 21)"),
    "a seed": (":seed 3", ":seed 4"),
    "an average": (":average 0.8", ":average 0.81"),
    "clipping": (":clip 1.0", ":clip 1.5"),
    "what is best": ("(best evaluation/loss :min)", "(best evaluation/accuracy :max)"),
    "how often is evaluated": (":evaluate-every 5", ":evaluate-every 4"),
    "how much is evaluated": (":evaluation-count 3", ":evaluation-count 2"),
    "how often a diagnostic is taken": (":every 3", ":every 2"),
    "how a diagnostic is reduced": (":reduce max", ":reduce min"),
    "a diagnostic": ("(max (abs (gpt tokens)))", "(max (gpt tokens))"),
    "the length of samples": (":length 16", ":length 16 :stride 8"),
    "the split": ("(train 0.8) (validation 0.2)", "(train 0.7) (validation 0.3)"),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_experiment(digests: dict[str, str], tmp_path: Path, name: str) -> None:
    assert digest(write_program(tmp_path, "gpt", changed(GPT, *OTHER[name]))) != digests["gpt"]


def test_a_byte_of_the_data(digests: dict[str, str], tmp_path: Path) -> None:
    """Of the same size and time: only the byte tells."""
    file = write_program(tmp_path)
    text = file.parent / "text.txt"
    times = os.stat(text)
    content = bytearray(text.read_bytes())
    content[100] ^= 1
    text.write_bytes(content)
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest(file) != digests["gpt"]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("np.sin(x)", "np.cos(x)", False),
        ("size=(rows, 5)", "size=(rows, 5), scale=1.0001", False),
        ("import numpy as np", "# a comment\nimport numpy as np", True),
    ],
)
def test_a_data_function(digests: dict[str, str], tmp_path: Path, old: str, new: str, same: bool) -> None:
    """What it returns counts."""
    file = write_program(tmp_path, "mlp")
    (tmp_path / "points.py").write_text(changed(POINTS, old, new))
    assert (digest(file) == digests["mlp"]) is same


def test_a_keyword_of_the_data_function(digests: dict[str, str], tmp_path: Path) -> None:
    assert digest(write_program(tmp_path, "mlp", changed(MLP, ":rows 28", ":rows 29"))) != digests["mlp"]


def test_a_comment_does_not_stop_a_resume_and_a_constant_does(tmp_path: Path) -> None:
    file = write_program(tmp_path, "mlp")
    paren.load(file).run(out=tmp_path / "run", steps=3)
    file.write_text(f"; edited between\n\n{MLP}")
    paren.load(file).run(out=tmp_path / "run", steps=5, resume="latest")
    file.write_text(changed(MLP, "(def dropped 0.3)", "(def dropped 0.31)"))
    with pytest.raises(paren.ParenError) as caught:
        paren.load(file).run(out=tmp_path / "run", resume="latest")
    assert (caught.value.code, caught.value.message) == (
        "E-RUN-002",
        f"{tmp_path / 'run'} holds another experiment (dropped is 0.3 there and 0.31 here)",
    )
