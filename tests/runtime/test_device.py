"""Devices by name, and the exact words of the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from paren.runtime import device as devices
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device, open_device
from paren.text.codes import CODES
from paren.text.errors import ParenError


def test_the_cpu(tmp_path: Path) -> None:
    device: Device = open_device("cpu", 1, tmp_path)
    assert isinstance(device, CpuDevice)
    assert (device.name, device.threads, device.reason) == ("cpu", 1, "")
    assert device.compiler.cache.folder == tmp_path


def test_the_number_of_threads_has_a_default() -> None:
    assert open_device("cpu").threads >= 1


def test_auto_says_why() -> None:
    device = open_device("auto", 1)
    assert (device.name, device.reason) == ("cpu", "auto: the CPU, because this version of paren has no CUDA yet")


def test_the_reference() -> None:
    device: Device = open_device("reference")
    assert (device.name, device.threads) == ("reference", 1)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
@pytest.mark.parametrize(
    ("driver", "note"), [(True, "an NVIDIA driver is installed"), (False, "no NVIDIA driver was found either")]
)
def test_cuda_is_refused_and_never_replaced(
    name: str, driver: bool, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.Path, "exists", lambda _path: driver)
    with pytest.raises(ParenError) as caught:
        open_device(name)
    assert str(caught.value) == (
        f"E-DEV-001: device {name} cannot be used: this version of paren has no CUDA yet\n"
        f"  note: {note}\n"
        "  fix: use cpu, or auto to take the best device there is"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [("cpus", "unknown device cpus (did you mean cpu?)"), ("tpu", "unknown device tpu"), ("", "unknown device ")],
)
def test_unknown_devices(name: str, message: str) -> None:
    with pytest.raises(ParenError) as caught:
        open_device(name)
    assert caught.value.code == "E-DEV-002"
    assert caught.value.message.startswith(message)
    assert caught.value.fix == "use one of cpu, cuda, auto, reference"


@pytest.mark.parametrize("threads", [0, -2])
def test_threads_below_one(threads: int) -> None:
    with pytest.raises(ParenError) as caught:
        open_device("cpu", threads)
    assert (caught.value.code, caught.value.message) == (
        "E-DEV-003",
        f"the number of threads is {threads}, at least 1 is needed",
    )


def test_codes_are_registered() -> None:
    assert {"E-DEV-001", "E-DEV-002", "E-DEV-003", "E-MEM-002"} <= set(CODES)
