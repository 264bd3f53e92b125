"""What kernels take of a card, in the report: compiled for it where NVRTC is, remembered, and told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import paren
from paren.inspect.card_code import CardCode, KernelCode
from paren.inspect.explain import Explanation
from paren.runtime.cuda.nvrtc import Nvrtc
from paren.runtime.cuda.resources import Resources

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "regression.paren"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    return tmp_path


def explained() -> Explanation:
    return paren.load(EXAMPLE, variant="smoke").explain(memory="24GiB", arch="sm_90")


def code_line(report: Explanation) -> str:
    lines = str(report).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("code"))
    return " ".join([*lines[first].split(), *(word for word in lines[first + 1].split())])


def test_kernels_are_compiled_for_an_architecture_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = explained()
    code = report.code
    assert code is not None
    assert (code.architecture, code.compiler) == ("sm_90", Nvrtc().name)
    assert {kernel.name for kernel in code.kernels} >= {
        region.name for graph in report.graphs for region in graph.regions if region.kind == "kernel"
    }
    assert all(kernel.threads > 0 and kernel.resources.registers > 0 for kernel in code.kernels)
    assert report.data["code"] == code.data

    def no_more(*_: object) -> dict[str, Resources]:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Nvrtc, "measure", no_more)
    assert explained().code == code


def test_without_the_compiler_nothing_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.delitem(sys.modules, "paren.runtime.cuda.nvrtc", raising=False)
    report = explained()
    assert report.code is None
    assert report.data["code"] is None
    assert "\ncode" not in str(report)


def test_the_screen_names_what_spills() -> None:
    report = paren.load(EXAMPLE, variant="smoke").explain(memory="24GiB")
    assert report.code is None
    small = KernelCode("relu", f"{report.program.path}:7:1", 256, Resources(32, 512, 0, 0))
    large = KernelCode("softmax", f"{report.program.path}:9:4", 1024, Resources(64, 32768, 336, 672))
    fine = replace(report, code=CardCode("sm_80", "NVRTC 13.0", (small,)))
    assert code_line(fine) == (
        "code 1 kernel for sm_80 by NVRTC 13.0: at most 32 registers a thread and 512 bytes of shared memory a block; "
        "none spills registers"
    )
    spilling = replace(report, code=CardCode("sm_80", "NVRTC 13.0", (small, large)))
    assert code_line(spilling) == (
        "code 2 kernels for sm_80 by NVRTC 13.0: at most 64 registers a thread and 32 KiB of shared memory a block; "
        "1 spill registers, softmax at 9:4 672 bytes a thread"
    )
