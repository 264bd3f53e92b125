"""Cards that are not there: the table, its names, what is refused, and the memory that a plan may use."""

from __future__ import annotations

import pytest

from paren.forecast.cards import CARDS, MIB, check_arch, find_card
from paren.forecast.target import absent_target
from paren.runtime.cuda.requirements import RESERVE
from paren.text.errors import ParenError

NAMES = "a100-40g, a100-80g, h100-80g, h200, b200, l4, l40s, a10, a40, rtx-3090, rtx-4090, rtx-5090"
ARCHES = "sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, sm_103, sm_120, sm_121"
NEWER = "use a card of the architecture Ampere (A100, A10, RTX 30) or a later one"


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_figures_of_a_card_are_plausible(card) -> None:
    assert find_card(card.name.upper()) is card
    assert card.capability >= (8, 0)
    assert check_arch(card.arch) == card.arch
    # Tensor cores multiply bfloat16 at twice the rate of TF32, which is no slower than float32 without them.
    assert card.bfloat16 == pytest.approx(2 * card.tf32, rel=0.05)
    assert card.tf32 >= card.float32
    # What a driver reports is a little less than the nominal number of GiB, or more than that of GB.
    assert 16_000 < card.memory < 200_000
    limits = card.limits()
    assert 0 < limits.traffic < 1e9 * card.bandwidth
    assert 0 < limits.products["float32"] < 1e12 * card.float32
    assert limits.products["float32"] < limits.products["bfloat16"] < 1e12 * card.bfloat16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100", "unknown card h100 (did you mean h100-80g?)"),
        ("A100", "unknown card A100 (did you mean a100-40g?)"),
        ("rtx4090", "unknown card rtx4090 (did you mean rtx-4090?)"),
        ("l40", "unknown card l40 (did you mean l40s?)"),
        ("mi300x", "unknown card mi300x"),
        ("rtx", "unknown card rtx (did you mean rtx-3090?)"),
        ("", "unknown card "),
    ],
)
def test_an_unknown_card(name: str, message: str) -> None:
    with pytest.raises(ParenError) as caught:
        find_card(name)
    assert str(caught.value) == f"E-DEV-010: {message}\n  fix: use one of {NAMES}, or give --memory SIZE"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100-PCIE-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        (" H200 ", "h200"),
    ],
)
def test_a_card_as_its_driver_writes_it(written: str, name: str) -> None:
    assert find_card(written).name == name


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("t4", "7.5"),
        ("v100", "7.0"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("V100-16G", "7.0"),
        ("v100-32g", "7.0"),
        ("p100", "6.0"),
        ("Tesla P100-PCIE-16GB", "6.0"),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5"),
    ],
)
def test_a_card_that_is_too_old(name: str, has: str) -> None:
    with pytest.raises(ParenError) as caught:
        absent_target(None, name, None, None)
    text = f"{name.lower()} has compute capability {has}, and paren needs 8.0 or newer"
    assert str(caught.value) == f"E-DEV-011: {text}\n  fix: {NEWER}"


@pytest.mark.parametrize(
    ("arch", "text"),
    [
        ("sm_75", f"E-DEV-011: sm_75 has compute capability 7.5, and paren needs 8.0 or newer\n  fix: {NEWER}"),
        ("sm_91", f"E-DEV-013: unknown architecture sm_91 (did you mean sm_90?)\n  fix: use one of {ARCHES}"),
        ("gfx90a", f"E-DEV-013: unknown architecture gfx90a\n  fix: use one of {ARCHES}"),
    ],
)
def test_a_wrong_architecture(arch: str, text: str) -> None:
    with pytest.raises(ParenError) as caught:
        absent_target(None, None, "24GiB", arch)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("device", "card", "memory", "arch", "text"),
    [
        ("cpu", "h200", None, None, "--card and --device cpu contradict each other\n  fix: give one of them"),
        ("cuda", "h200", "24GiB", None, "--card and --memory contradict each other\n  fix: give one of them"),
        (None, "h200", "24GiB", None, "--card and --memory contradict each other\n  fix: give one of them"),
        (None, "h200", None, "sm_90", "--card and --arch contradict each other\n  fix: give one of them"),
        ("cpu", None, "24GiB", "sm_90", "--arch and --device cpu contradict each other\n  fix: give one of them"),
        (None, None, None, "sm_90", "--arch says nothing about memory\n  fix: give --memory SIZE too, or --card NAME"),
    ],
)
def test_options_that_contradict_each_other(
    device: str | None, card: str | None, memory: str | None, arch: str | None, text: str
) -> None:
    with pytest.raises(ParenError) as caught:
        absent_target(device, card, memory, arch)
    assert str(caught.value) == f"E-DEV-012: {text}"


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_card_that_is_named_as_the_device_too(device: str) -> None:
    assert absent_target(device, "h200", None, None) == absent_target(None, "h200", None, None)
    assert absent_target(device, None, "24GiB", "sm_90") == absent_target(None, None, "24GiB", "sm_90")


def test_a_wrong_size() -> None:
    with pytest.raises(ParenError) as caught:
        absent_target(None, None, "24 gigs", None)
    assert str(caught.value) == (
        "E-ENV-002: --memory is `24 gigs`, which is not a size in bytes\n"
        "  fix: write a number with a unit, 24GiB or 512MiB"
    )


def test_a_card_has_to_have_more_than_its_reserve() -> None:
    for memory in ("300MiB", "1GiB"):
        with pytest.raises(ParenError) as caught:
            absent_target(None, None, memory, "sm_90")
        assert str(caught.value) == (
            f"E-ENV-002: --memory is `{memory}`, and 1 GiB of a card stays free for CUDA's libraries, "
            "so nothing is left\n"
            "  fix: give the whole memory of the card, such as 24GiB"
        )


def test_a_card_keeps_memory_for_its_libraries() -> None:
    assert RESERVE == 1 << 30
    card = absent_target(None, "h100-80g", None, None)
    assert (card.name, card.memory, card.there) == ("h100-80g (sm_90)", 81559 * MIB - RESERVE, False)
    assert card.reserve == RESERVE
    assert card.limits == CARDS["h100-80g"].limits()
    rounded = absent_target(None, "h100-80g", None, None, tf32=True).limits
    assert rounded is not None
    assert rounded.products["float32"] == pytest.approx(0.5 * rounded.products["bfloat16"])
    size = absent_target(None, None, "24GiB", "sm_90")
    assert (size.name, size.memory, size.limits) == ("a card of 24GiB (sm_90)", 23 << 30, None)
