"""`check`, `show`, `explain`, `run`, `sample`: what they ask of the Python interface, and print of its answers."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import paren
from paren.cli.app import main
from paren.cli.summary import write_summary
from paren.text.errors import ParenError

SUMMARY: dict[str, object] = {
    "parameters": 12345,
    "shapes": {f"block.{number}.weight": [number, 64] for number in range(14)},
    "settings": {"rate": 0.001, "smoke": True},
    "steps": 2000,
    "variant": None,
    "notes": ["the last batch of an epoch is short"],
}


@dataclass(frozen=True)
class Explanation:
    data: dict[str, object]

    def __str__(self) -> str:
        return "memory     1 MiB planned"


@dataclass
class Interface:
    """Stands for the Python interface; notes what it is asked."""

    asked: list[object] = field(default_factory=list)
    exit_code: int = 0
    error: ParenError | None = None

    def load(self, path: Path, variant: str | None = None, set: Mapping[str, object] | Sequence[str] = ()) -> Interface:
        self.asked.append((path, variant, tuple(set)))
        if self.error is not None:
            raise self.error
        return self

    def check(self) -> dict[str, object]:
        return SUMMARY

    def show(self, stage: str) -> str:
        return f"stage {stage}"

    def explain(self, **options: object) -> Explanation:
        self.asked.append({name: value for name, value in options.items() if value})
        return Explanation({"kernels": 3})

    is_study = False

    def run(self, **options: object) -> Interface:
        options.pop("progress")
        self.asked.append({name: value for name, value in options.items() if value})
        return self

    @property
    def out(self) -> Path:
        return Path("outputs/gpt")

    def sample(
        self, run: Path, prompt: str, length: int, temperature: float, seed: int, checkpoints: Path | None
    ) -> Iterator[str]:
        assert checkpoints is None
        self.asked.append((run, prompt, length, temperature, seed))
        yield "to "
        yield "be"


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> Interface:
    fake = Interface()
    module = types.ModuleType("paren.api")
    module.load, module.sample = fake.load, fake.sample  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "paren.api", module)
    monkeypatch.setattr(paren, "api", module, raising=False)
    return fake


Read = Callable[[], tuple[str, str]]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Read:
    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def test_check_prints_a_summary(interface: Interface, written: Read) -> None:
    assert main(["check", "gpt.paren", "--variant", "smoke", "--set", "rate=1e-3", "--set", "hidden=[32 32]"]) == 0
    assert interface.asked == [(Path("gpt.paren"), "smoke", ("rate=1e-3", "hidden=[32 32]"))]
    out, err = written()
    assert err == ""
    assert out == (
        "gpt.paren: ok\n"
        "  parameters: 12,345\n"
        "  shapes:\n"
        + "".join(f"    block.{number}.weight   [{number} 64]\n" for number in range(6))
        + "    ... 2 more ...\n"
        + "".join(f"    {f'block.{number}.weight':<17}[{number} 64]\n" for number in range(8, 14))
        + "  settings:\n"
        "    rate   0.001\n"
        "    smoke  true\n"
        "  steps:      2,000\n"
        "  notes:\n"
        "    the last batch of an epoch is short\n"
    )


def test_no_line_of_a_summary_stands_for_one_line() -> None:
    for count, lines in ((12, 12), (13, 13), (14, 13)):
        table = {f"name-{number}": [number] for number in range(count)}
        written = write_summary("f.paren", {"shapes": table}).splitlines()[2:]
        assert len(written) == lines
        assert ("    ... 2 more ..." in written) == (count == 14)


def test_check_as_json_has_everything(interface: Interface, written: Read) -> None:
    assert main(["check", "gpt.paren", "--json"]) == 0
    assert json.loads(written()[0]) == {"file": "gpt.paren", **SUMMARY}


def test_check_as_json_of_a_wrong_file(interface: Interface, written: Read) -> None:
    interface.error = ParenError("E-TXT-001", "gpt.paren does not exist")
    assert main(["check", "gpt.paren", "--json"]) == 1
    out, err = written()
    assert err == ""
    assert json.loads(out)["code"] == "E-TXT-001"


@pytest.mark.parametrize("stage", ["forms", "program", "graph", "fused", "plan", "code"])
def test_show_prints_each_stage(interface: Interface, written: Read, stage: str) -> None:
    assert main(["show", stage, "gpt.paren"]) == 0
    assert written() == (f"stage {stage}\n", "")


def test_explain_prints_a_screen_or_json(interface: Interface, written: Read) -> None:
    assert main(["explain", "gpt.paren", "--device", "cpu", "--threads", "2"]) == 0
    assert written() == ("memory     1 MiB planned\n", "")
    assert main(["explain", "gpt.paren", "--card", "h100-80g", "--json"]) == 0
    assert json.loads(written()[0]) == {"kernels": 3}
    assert main(["explain", "gpt.paren", "--memory", "24GiB", "--arch", "sm_90", "--patterns", "off", "--tf32"]) == 0
    assert [asked for asked in interface.asked if isinstance(asked, dict)] == [
        {"device": "cpu", "threads": 2, "patterns": True},
        {"card": "h100-80g", "patterns": True},
        {"memory": "24GiB", "arch": "sm_90", "tf32": True},
    ]


def test_run_passes_its_options_on_and_prints_the_folder(interface: Interface, written: Read) -> None:
    assert main(["run", "gpt.paren"]) == 0
    assert interface.asked == [(Path("gpt.paren"), None, ()), {"patterns": True}]
    assert written() == ("outputs/gpt\n", "")
    options = "--steps 5 --device reference --out o --checkpoints c --resume auto --threads 2 --data-root d"
    options += " --patterns on --tf32"
    assert main(["run", "gpt.paren", *options.split(), "--tensorboard", "--profile", "--overwrite"]) == 0
    assert interface.asked[-1] == {
        "steps": 5,
        "device": "reference",
        "out": Path("o"),
        "checkpoints": "c",
        "resume": "auto",
        "threads": 2,
        "patterns": True,
        "tf32": True,
        "tensorboard": True,
        "profile": True,
        "data_root": Path("d"),
        "overwrite": True,
    }


@pytest.mark.parametrize("code", [130, 143])
def test_a_run_that_was_stopped_has_its_exit_code(interface: Interface, written: Read, code: int) -> None:
    interface.exit_code = code
    assert main(["run", "gpt.paren"]) == code
    assert written() == ("outputs/gpt\n", "")


def test_sample_writes_the_text_as_it_comes(interface: Interface, written: Read) -> None:
    assert (
        main(["sample", "outputs/gpt", "--prompt", "or not ", "--length", "2", "--temperature", "0", "--seed", "7"])
        == 0
    )
    assert interface.asked == [(Path("outputs/gpt"), "or not ", 2, 0.0, 7)]
    assert written() == ("to be\n", "")
    assert main(["sample", "outputs/gpt", "--length", "0"]) == 2
    assert main(["sample", "outputs/gpt", "--temperature", "-1"]) == 2
