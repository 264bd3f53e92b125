"""Modules compiled in workers: the same objects, and no harm where a worker cannot do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import paren
from paren.engine import CompiledEngine
from paren.forecast.plans import make_plans
from paren.runtime import machine_code
from paren.runtime.cache import KernelCache
from paren.runtime.cpu import CpuDevice
from paren.runtime.machine_code import LEAST, Machine, Modules, emit_aside
from paren.runtime.native import Compiler


def function(number: int) -> str:
    return f"define i32 @answer() {{\nentry:\n  %sum = add i32 {number}, 1\n  ret i32 %sum\n}}\n"


def modules(count: int) -> dict[str, tuple[str, bool]]:
    return {str(number): (function(number), number % 2 == 0) for number in range(count)}


def test_workers_make_the_same_objects() -> None:
    wanted = modules(LEAST)
    machine = Machine()
    assert emit_aside(wanted, 2) == {key: machine.emit(*module) for key, module in wanted.items()}


@pytest.mark.parametrize(("count", "workers"), [(LEAST - 1, 2), (LEAST, 1), (0, 2)])
def test_little_is_not_worth_a_worker(count: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert emit_aside(modules(count), workers) == {}


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true", "/bin/echo", "/nowhere/python", "", None])
def test_without_workers_this_process_compiles(
    program: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert emit_aside(modules(LEAST), 2) == {}
    compiler = Compiler(KernelCache(tmp_path))
    texts = {key: text for key, (text, _) in modules(LEAST).items()}
    compiler.compile_aside([(text, True) for text in texts.values()], 2)
    assert compiler.load(texts, "answer").keys() == texts.keys()
    assert (compiler.compiled, compiler.reused) == (LEAST, 0)


def test_a_module_that_cannot_be_compiled_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = modules(LEAST) | {"broken": ("define", True)}
    made = emit_aside(broken, 2)
    assert "broken" not in made
    assert made.keys() < broken.keys()
    with pytest.raises(RuntimeError, match="parsing error"):
        Machine().emit(*broken["broken"])


def test_what_workers_made_is_kept_and_counted(tmp_path: Path) -> None:
    texts = {str(number): function(number) for number in range(LEAST)}
    for compiled, reused in ((LEAST, 0), (0, LEAST)):
        compiler = Compiler(KernelCache(tmp_path))
        compiler.compile_aside([(text, True) for text in texts.values()], 2)
        compiler.load(texts, "answer")
        assert (compiler.compiled, compiler.reused) == (compiled, reused)


def test_an_interrupt_of_a_terminal_does_not_reach_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for them decides."""
    sessions = []
    start = machine_code._start

    def noted(share: Modules) -> subprocess.Popen[bytes] | None:
        worker = start(share)
        assert worker is not None
        sessions.append(os.getsid(worker.pid) == worker.pid)
        return worker

    monkeypatch.setattr(machine_code, "_start", noted)
    assert emit_aside(modules(LEAST), 2)
    assert sessions == [True, True]


def test_an_engine_asks_for_everything_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans of a run, products included, so that one set of workers compiles it; nothing is compiled later."""
    given: list[int] = []
    aside = Compiler.compile_aside

    def counted(self: Compiler, texts: list[tuple[str, bool]], workers: int) -> None:
        given.append(len(texts))
        aside(self, texts, workers)

    monkeypatch.setattr(Compiler, "compile_aside", counted)
    program = paren.load(Path(__file__).parents[2] / "examples" / "regression.paren").program
    plans = make_plans(program)
    device = CpuDevice(2)
    engine = CompiledEngine(program, plans, device)
    assert given[0] > 5
    assert not any(given[1:])
    assert device.compiled == given[0] + 1  # and the driver
    engine.close()
