"""What streams of a card do has an order where they touch the same memory; that one is missing is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_nccl import fake_library
from ordered_card import NotOrderedError, ordered_device

from paren.runtime.array import DeviceArray
from paren.runtime.cuda import nccl
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.link import CardLink
from paren.runtime.task import Cell


def vector(device: CudaDevice) -> DeviceArray:
    return device.allocate(64).view(np.float32)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """With a second stream, whose library connects it with nobody."""
    monkeypatch.setattr(nccl, "find_nccl", fake_library)
    made, _ = ordered_device()
    made.link.connect(made.link.invite(), 1, 0)
    return made


def said(call: Callable[[], object]) -> str:
    with pytest.raises(NotOrderedError) as caught:
        call()
    return str(caught.value)


def add(link: CardLink, own: DeviceArray, others: DeviceArray) -> None:
    link.add(own, others, 0, tree=False)


def test_the_second_stream_follows_the_first(device: CudaDevice) -> None:
    link = device.link
    own, others = vector(device), vector(device)
    expected = "paren_sum_add on the second stream and zeros of new memory on the first stream are not ordered"
    assert said(lambda: add(link, own, others)) == expected
    link.follow(link.mark())
    add(link, own, others)
    late = vector(device)
    assert said(lambda: add(link, own, late)) == expected


def test_the_first_stream_comes_after_a_host_that_waited(device: CudaDevice) -> None:
    link = device.link
    own, others, target = (vector(device) for _ in range(3))
    link.follow(link.mark())
    add(link, own, others)
    copies = device.copy(Cell(own), Cell(target), 64)
    expected = "a copy on the first stream and paren_sum_add on the second stream are not ordered"
    assert said(copies.run) == expected
    device.copy(Cell(others), Cell(target), 64).run()  # both only read these
    link.wait()
    copies.run()


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_graph_does_is_done_when_it_is_started(device: CudaDevice, waits: bool) -> None:
    link = device.link
    own, others, target = (vector(device) for _ in range(3))
    copies = [device.copy(Cell(own), Cell(array), 64) for array in (others, target)]
    run = device.sequence(copies)
    for _ in range(3):
        link.follow(link.mark())
        if not waits:
            run()
            assert said(lambda: add(link, own, others)).startswith("paren_sum_add on the second stream and a copy on ")
            return
        run()
        device.synchronise()
        add(link, own, others)
        link.wait()
