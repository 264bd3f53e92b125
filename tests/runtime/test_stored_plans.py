"""Plans on disk: what is read is what would be planned, and whatever a plan follows from is told apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import paren
from paren import own_files, pipeline
from paren.forecast.plans import Plans, make_plans
from paren.lang.elaborate import elaborate
from paren.pipeline import PLAIN, Planning
from paren.plan.plan import Plan
from paren.plan.traits import CPU, CUDA, Traits
from paren.runtime import stored_plans
from paren.runtime.cache import PlanCache

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "regression": ("examples/regression.paren", None),
    "digits": ("examples/digits.paren", None),
    "gpt": ("examples/gpt.paren", "smoke"),
    "W3": ("bench/workloads/train.paren", "W3"),
    "W6": ("bench/workloads/train.paren", "W6"),
}
TEXT = """\
(defdata points (python "points.py" points :fields ((x float32 [3]) (y float32 []))))
(defmodel net ((x float32 [3])) (reshape (mlp x [5] 1) []))
(defrun :data points :loss (mean-squared-error (net x) y) :optimizer (sgd :rate 0.1) :batch 4 :steps 3)
"""
POINTS = """\
import numpy as np


def points():
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    return {"train": {"x": x, "y": x.sum(1)}}
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept, of small graphs too."""
    monkeypatch.setattr(stored_plans, "own_digest", lambda *_: "this paren")
    monkeypatch.setattr(stored_plans, "LEAST", 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the graphs that were planned."""
    names: list[str] = []
    plan = pipeline._plan

    def noted(*given: object) -> Plan:
        names.append(given[0].name)  # type: ignore[attr-defined]
        return plan(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "_plan", noted)
    return names


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "points.py").write_text(POINTS)
    (tmp_path / "net.paren").write_text(TEXT)
    return tmp_path / "net.paren"


def plans_of(path: Path, cache: Path, planning: Planning = PLAIN, *overrides: str) -> Plans:
    return make_plans(elaborate(path, overrides=overrides), replace(planning, cache=PlanCache(cache)))


@pytest.mark.parametrize("traits", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_read_is_what_would_be_planned(name: str, traits: Traits, tmp_path: Path, made: list[str]) -> None:
    path, variant = PROGRAMS[name]
    planning = Planning(traits=traits, cache=PlanCache(tmp_path))
    make_plans(elaborate(ROOT / path, variant=variant), planning)
    again = elaborate(ROOT / path, variant=variant)
    fresh = make_plans(again, replace(planning, cache=None))
    made.clear()
    read = make_plans(again, planning)
    assert made == []
    assert read == fresh


def test_a_plan_speaks_of_the_program_that_asks(file: Path, tmp_path: Path) -> None:
    plans_of(file, tmp_path / "cache")
    program = elaborate(file)
    read = make_plans(program, Planning(cache=PlanCache(tmp_path / "cache")))
    assert read.accumulate.steps[0].spans[0].source in {node.span.source for node in program.loss.nodes}


def test_runs_have_the_same_bits(file: Path, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    for number, cache in enumerate(("one", "one", "other")):
        monkeypatch.setenv("PAREN_CACHE", str(tmp_path / cache))
        made.clear()
        paren.load(file).run(tmp_path / f"out {number}", threads=1)
        assert ("accumulate" in made) == (number != 1)
        (weights,) = (tmp_path / f"out {number}/checkpoints").glob("0*/parameters.safetensors")
        saved.append(weights.read_bytes())
    assert saved[0] == saved[1] == saved[2]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("[5]", "[6]"),
        lambda text: text.replace("(mean-squared-error ", "(mean-squared-error  "),
        lambda text: text + "; a word\n",
        lambda text: text.replace(") :opt", ")\n:opt"),
    ],
    ids=["width", "place", "comment", "line"],
)
def test_another_text_is_planned(file: Path, tmp_path: Path, made: list[str], change) -> None:
    plans_of(file, tmp_path / "cache")
    file.write_text(change(TEXT))
    made.clear()
    program = elaborate(file)
    assert make_plans(program, Planning(cache=PlanCache(tmp_path / "cache"))) == make_plans(program)
    assert made.count("accumulate") == 2


@pytest.mark.parametrize(
    "planning",
    [Planning(patterns=False), Planning(budget=1 << 20), Planning(traits=CUDA), Planning(uploads=True)],
    ids=["patterns", "budget", "traits", "uploads"],
)
def test_planned_otherwise_is_another_plan(file: Path, tmp_path: Path, made: list[str], planning: Planning) -> None:
    plans_of(file, tmp_path / "cache")
    made.clear()
    plans_of(file, tmp_path / "cache", planning)
    assert "accumulate" in made


def test_another_paren_makes_its_own(
    file: Path, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans_of(file, tmp_path / "cache")
    for digest in ("another paren", None):
        monkeypatch.setattr(stored_plans, "own_digest", lambda *_, digest=digest: digest)
        for again in (True, digest is None):
            made.clear()
            plans_of(file, tmp_path / "cache")
            assert ("accumulate" in made) == again


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_damaged_plans_are_made_again(file: Path, tmp_path: Path, made: list[str], damage: str) -> None:
    plans_of(file, tmp_path / "cache")
    paths = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in paths]
    for path, content, other in zip(paths, contents, contents[1:] + contents[:1], strict=True):
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": content[:-1], "empty": b"", "swap": other}[damage])
    made.clear()
    program = elaborate(file)
    assert make_plans(program, Planning(cache=PlanCache(tmp_path / "cache"))) == make_plans(program)
    assert made.count("accumulate") == 2
    assert [path.read_bytes() for path in paths] == contents


def test_a_folder_that_cannot_be_made_is_done_without(file: Path, tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    program = elaborate(file)
    planning = Planning(cache=PlanCache(tmp_path / "in the way"))
    assert make_plans(program, planning) == make_plans(program)
    reason = f"the cache folder {tmp_path / 'in the way'} cannot be used, so each start compiles anew: Not a directory"
    assert planning.notes == (reason,)


def test_processes_find_each_others_plans(file: Path, tmp_path: Path) -> None:
    """Nothing in a key follows the order of a set."""
    script = f"""
from pathlib import Path
from paren.forecast.plans import make_plans
from paren.lang.elaborate import elaborate
from paren.pipeline import Planning
from paren.runtime import stored_plans
from paren.runtime.cache import PlanCache
stored_plans.own_digest, stored_plans.LEAST = lambda *_: "this paren", 0
make_plans(elaborate(Path({str(file)!r})), Planning(cache=PlanCache(Path({str(tmp_path / "cache")!r}))))
"""
    found = []
    for seed in "12":
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, check=True)
        found.append({str(path) for path in (tmp_path / "cache").rglob("*")})
    assert found[0] == found[1]
    assert found[0]


def test_all_that_makes_plans_is_in_their_key() -> None:
    """Everything of paren that planning loads lies in the files that are digested, or only keeps what they made."""
    script = "import sys, paren.pipeline; print(*[name for name in sys.modules if name.startswith('paren.')])"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    makers = tuple("paren." + name.removesuffix(".py").replace("/", ".") for name in stored_plans.MAKERS)
    others = {name for name in loaded.stdout.split() if not f"{name}.".startswith(tuple(f"{each}." for each in makers))}
    assert others == {"paren.own_files", "paren.runtime", "paren.runtime.cache"}


def test_the_digest_is_of_the_files_that_were_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = own_files.own_digest.__wrapped__
    monkeypatch.setattr(own_files, "FOLDER", tmp_path)
    monkeypatch.setattr(own_files, "BEGUN", time.time() + 3600)
    assert digest("a", "b.py") is None
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "b.py").write_text("1")
    assert digest("a", "b.py") is None
    found = set()
    for name, text in (("x.py", ""), ("x.py", "1"), ("y.paren", "1"), ("inner/x.py", "1"), ("b.py", "2")):
        (tmp_path / ("b.py" if name == "b.py" else f"a/{name}")).write_text(text)
        found.add(digest("a", "b.py"))
    assert len(found - {None}) == 5
    (tmp_path / "a" / "notes.txt").write_text("1")
    assert digest("a", "b.py") in found
    monkeypatch.setattr(own_files, "BEGUN", (tmp_path / "b.py").stat().st_mtime)
    assert digest("a", "b.py") is None
