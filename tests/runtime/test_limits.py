"""The limits of a machine are measured through the device, remembered, and never a reason to fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from defined_kernels import defined_device

from paren.ir.types import DType
from paren.plan.cost import Cost
from paren.plan.limits import Limits, cost_seconds
from paren.runtime import limits
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device
from paren.runtime.limits import FILE, limits_of, measure_limits, read_limits

DEVICE = CpuDevice(1)
SOME = Limits(1e10, {"float32": 1e11}, 1e11, 1e-8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that measure in no time; the figures mean nothing then."""
    for name in ("SMALL", "LARGE"):
        sizes = getattr(limits, name)
        monkeypatch.setattr(limits, name, replace(sizes, far=4096, near=min(sizes.near, 1024), shape=(32, 48, 16)))


@pytest.mark.parametrize("device", [DEVICE, defined_device()[0]], ids=["cpu", "cuda"])
def test_everything_is_measured(device: Device) -> None:
    found = measure_limits(device)
    assert min(found.traffic, found.instructions, found.start, *found.products.values()) > 0
    assert set(found.products) == {"float32", "bfloat16"}


def test_limits_are_remembered_for_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_limits(DEVICE, tmp_path) is None
    first = limits_of(DEVICE, tmp_path / "cache")
    monkeypatch.setattr(limits, "measure_limits", lambda device: SOME)
    assert limits_of(DEVICE, tmp_path / "cache") == first
    assert limits_of(CpuDevice(2), tmp_path / "cache") == SOME
    assert read_limits(DEVICE, tmp_path / "cache") == first
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [FILE]


def test_measuring_again_keeps_the_better_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Limits(2e10, {"float32": 5e10, "bfloat16": 3e11}, 5e10, 1e-9)
    measured = iter([SOME, other])
    monkeypatch.setattr(limits, "measure_limits", lambda device: next(measured))
    limits_of(DEVICE, tmp_path)
    best = Limits(2e10, {"float32": 1e11, "bfloat16": 3e11}, 1e11, 1e-9)
    assert limits_of(DEVICE, tmp_path, again=True) == best == limits_of(DEVICE, tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"text"', "null", '{"KEY": 3}', '{"KEY": {"traffic": -1}}'])
def test_a_damaged_file_is_measured_again(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "measure_limits", lambda device: SOME)
    key = limits._key(DEVICE)
    (tmp_path / FILE).write_text(content.replace("KEY", key))
    assert limits_of(DEVICE, tmp_path) == SOME
    assert read_limits(DEVICE, tmp_path) == SOME
    assert key in json.loads((tmp_path / FILE).read_text())


def test_rates_that_cannot_be_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "measure_limits", lambda device: SOME)
    limits_of(DEVICE, tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    content[limits._key(DEVICE)]["traffic"] = 0
    (tmp_path / FILE).write_text(json.dumps(content))
    assert read_limits(DEVICE, tmp_path) is None


def test_a_folder_that_cannot_be_made_costs_a_measurement_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert limits_of(DEVICE, tmp_path / "file" / "cache").traffic > 0


def test_the_longest_of_moving_and_computing_decides() -> None:
    for cost, seconds in (
        (Cost(read=10**10, written=10**10, flops=10**11), 2.0),
        (Cost(read=10**10, flops=3 * 10**11), 3.0),
        (Cost(read=10**10, instructions=4 * 10**11), 4.0),
    ):
        assert cost_seconds(cost, SOME) == pytest.approx(seconds)
    faster = Limits(1e10, {"float32": 1e11, "float64": 5e10}, 1e11, 0)
    assert cost_seconds(Cost(flops=10**11), faster, DType.FLOAT64) == pytest.approx(2.0)
    assert cost_seconds(Cost(flops=10**11), SOME, DType.FLOAT64) == pytest.approx(1.0)
