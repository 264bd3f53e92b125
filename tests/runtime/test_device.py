"""Devices by name, and the exact words of the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from activated import gelu, network, on_cards
from fake_probes import FakeProbes

from paren.plan.epilogue import epilogues_of
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device, open_device
from paren.text.codes import CODES
from paren.text.errors import InternalError, ParenError


def test_the_cpu(tmp_path: Path) -> None:
    device: Device = open_device("cpu", 1, tmp_path)
    assert isinstance(device, CpuDevice)
    assert (device.name, device.threads, device.reason) == ("cpu", 1, "")
    assert device.compiler.cache.folder == tmp_path


def test_the_number_of_threads_has_a_default() -> None:
    assert open_device("cpu").threads >= 1


def test_the_reference() -> None:
    device: Device = open_device("reference")
    assert (device.name, device.threads) == ("reference", 1)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_only_cuda_joins_products_with_their_kernels(name: str) -> None:
    device = open_device(name)
    epilogue = next(iter(epilogues_of(on_cards(network(gelu))).values()))
    assert not device.joins(epilogue)
    for verb in (device.join, device.compare_joined):
        with pytest.raises(InternalError) as caught:
            verb(epilogue, {})
        node = epilogue.product.nodes[0]
        assert str(caught.value) == f"internal error in runtime: {node} is not joined on this device"


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_only_cuda_rounds_to_tf32(name: str) -> None:
    with pytest.raises(ParenError) as caught:
        open_device(name, tf32=True)
    assert str(caught.value) == (
        f"E-DEV-014: --tf32 is for CUDA, and the device is {name}\n  fix: leave out --tf32, or use the device cuda"
    )


def test_auto_says_that_the_cpu_does_not_round_to_tf32() -> None:
    device = open_device("auto", 1, tf32=True, probes=FakeProbes(driver=None))
    assert device.reason == "auto: the CPU, because no NVIDIA driver was found; --tf32 has no effect"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpus", "unknown device cpus (did you mean cpu?)"),
        ("tpu", "unknown device tpu"),
        ("", "unknown device "),
        ("gpu", "unknown device gpu (did you mean cuda?)"),
        ("GPU:1", "unknown device GPU:1 (did you mean cuda:1?)"),
        ("CPU", "unknown device CPU (did you mean cpu?)"),
    ],
)
def test_unknown_devices(name: str, message: str) -> None:
    with pytest.raises(ParenError) as caught:
        open_device(name)
    assert caught.value.code == "E-DEV-002"
    assert caught.value.message.startswith(message)
    assert caught.value.fix == "use one of cpu, cuda, auto, reference, or cuda:N"


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
