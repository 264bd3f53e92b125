"""The environment variables: names and values are checked, unknown names are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from paren.environment import VARIABLES, Environment, parse_size, read_environment
from paren.text.errors import ParenError


def failure(variables: dict[str, str]) -> tuple[str, str, str | None]:
    with pytest.raises(ParenError) as caught:
        read_environment(variables)
    return caught.value.code, caught.value.message, caught.value.fix


def test_defaults() -> None:
    environment = read_environment({"HOME": "/home/someone", "PAREN_DEVICE": "", "PAREN_MEMORY": " "})
    assert (environment.device, environment.memory, environment.data) == ("cpu", None, None)
    assert environment.cache.name == "paren"


def test_every_variable_is_read(tmp_path: Path) -> None:
    variables = {
        "PAREN_DEVICE": "auto",
        "PAREN_MEMORY": "1.5GiB",
        "PAREN_CACHE": str(tmp_path / "cache"),
        "PAREN_DATA": str(tmp_path),
        "PAREN_CARD_GRADIENTS": "hosts",
    }
    ranks = {
        "PAREN_DEVICES": "0",
        "PAREN_NODES": "2",
        "PAREN_NODE_RANK": "1",
        "PAREN_RENDEZVOUS": "here:29500",
        "PAREN_RENDEZVOUS_TIMEOUT": "10",
        "PAREN_NODE_GRADIENTS": "f32",
        "PAREN_STEP_TIMEOUT": "20",
        "PAREN_WORK_TIMEOUT": "30",
        "PAREN_LAUNCHER": "here:1",
    }
    assert variables.keys() | ranks.keys() == {variable.name for variable in VARIABLES}
    wanted = Environment("auto", 3 * 2**29, tmp_path / "cache", tmp_path, ranks, by_hosts=True)
    assert read_environment(variables | ranks) == wanted


def test_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_DEVICE", "reference")
    assert read_environment().device == "reference"


def test_wrong_names() -> None:
    names = f"unset it; paren reads {', '.join(variable.name for variable in VARIABLES)}"
    assert failure({"PAREN_DEVCE": "cpu"}) == (
        "E-ENV-001",
        "unknown environment variable PAREN_DEVCE (did you mean PAREN_DEVICE?)",
        names,
    )
    assert failure({"PAREN_XYZZY": ""}) == ("E-ENV-001", "unknown environment variable PAREN_XYZZY", names)


def test_what_says_which_ranks_there_are_is_kept_as_it_is_written() -> None:
    given = {
        "PAREN_NODES": "2",
        "PAREN_DEVICES": " 0,1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "HOME": "/",
        "PAREN_NODE_RANK": " ",
    }
    assert read_environment(given).ranks == {
        "PAREN_DEVICES": " 0,1",
        "PAREN_NODES": "2",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }


def test_wrong_values(tmp_path: Path) -> None:
    for text in ("much", "-1GiB", "0", "1e9", "12 apples", "nan", "GiB"):
        assert failure({"PAREN_MEMORY": text}) == (
            "E-ENV-002",
            f"PAREN_MEMORY is `{text}`, which is not a size in bytes",
            "write a number with a unit, 24GiB or 512MiB",
        )
    for text, size in (("24", "24 bytes"), ("1", "1 byte")):
        assert failure({"PAREN_MEMORY": text}) == (
            "E-ENV-002",
            f"PAREN_MEMORY is `{text}`, which without a unit is {size}",
            "write a number with a unit, 24GiB or 512MiB",
        )
    missing = tmp_path / "none"
    assert failure({"PAREN_DATA": str(missing)}) == (
        "E-ENV-002",
        f"PAREN_DATA is `{missing}`, which is not a folder",
        "name an existing folder",
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("24GiB", 24 * 2**30), ("24 gib", 24 * 2**30), ("2GB", 2 * 10**9), ("0.5KiB", 512), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


def test_the_way_of_gradients() -> None:
    assert [read_environment({"PAREN_CARD_GRADIENTS": value}).by_hosts for value in ("", "nccl", " hosts ")] == [
        False,
        False,
        True,
    ]
    assert failure({"PAREN_CARD_GRADIENTS": "gloo"}) == (
        "E-ENV-002",
        "PAREN_CARD_GRADIENTS is `gloo`, which is no way of gradients",
        "set it to nccl or hosts",
    )
