"""README.md and docs/ show what paren does: their programs are read, their Python runs, their commands exist."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from paren.cli.app import app
from paren.lang.elaborate import elaborate
from paren.text.format import format_source
from paren.text.forms import List, Symbol
from paren.text.reader import read
from paren.text.source import Source

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: where its first line stands, its language, its text."""

    place: str
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    """All fenced blocks in these languages, by page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            found.append(Block(f"{page.name}:{line}", match[1], match[2]))
    return [block for block in found if block.language in languages]


def heads(block: Block) -> list[str]:
    """The first symbol of each form."""
    forms = read(Source(block.place, block.text))
    return [
        form.items[0].name
        for form in forms
        if isinstance(form, List) and form.items and isinstance(form.items[0], Symbol)
    ]


def commands() -> list[tuple[str, list[str]]]:
    """What stands behind `paren` on each command line of the pages, comments left out, with its place."""
    found = []
    for block in blocks("console", "sh", "shell", "bash"):
        page, line = block.place.split(":")
        for number, text in enumerate(block.text.splitlines()):
            for part in _parts(shlex.split(text.removeprefix("$ "), comments=True)):
                if part[:1] == ["paren"]:
                    found.append((f"{page}:{int(line) + number}", part[1:]))
    return found


def _parts(words: list[str]) -> Iterator[list[str]]:
    """The commands of one line."""
    part: list[str] = []
    for word in words:
        if word in ("&&", "||", ";", "|"):
            yield part
            part = []
        else:
            part.append(word)
    yield part


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a copy of the examples, which is the current one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def named(block: Block) -> str:
    return block.place


@pytest.mark.parametrize("block", blocks("paren"), ids=named)
def test_programs_are_read(block: Block) -> None:
    assert read(Source(block.place, block.text))


EXAMPLES = [
    Block(path.relative_to(ROOT).as_posix(), "paren", path.read_text()) for path in ROOT.glob("examples/**/*.paren")
]


@pytest.mark.parametrize("block", [*blocks("paren"), *EXAMPLES], ids=named)
def test_programs_are_laid_out_as_paren_format_does(block: Block) -> None:
    assert format_source(Source(block.place, block.text)) == block.text


@pytest.mark.parametrize("block", [block for block in blocks("paren") if "defrun" in heads(block)], ids=named)
def test_whole_programs_elaborate(block: Block, workplace: Path) -> None:
    path = workplace / "program.paren"
    path.write_text(block.text)
    assert elaborate(path).parameters


@pytest.mark.parametrize("block", blocks("python"), ids=named)
def test_python_runs(block: Block, workplace: Path) -> None:
    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})


def take(words: list[str]) -> None:
    """Lets the command that `words` name take its arguments and options, without running it."""
    group = typer.main.get_command(app)
    with group.make_context("paren", list(words), resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, list(words))
        command.make_context(name, rest, parent=context).close()


@pytest.mark.parametrize(("place", "words"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_commands_exist(place: str, words: list[str]) -> None:
    """With these options; files of examples that it names are there."""
    take(words)
    assert [word for word in words if word.startswith("examples/") and not (ROOT / word).exists()] == []


@pytest.mark.parametrize("words", ["chekc x.paren", "run x.paren --varient a", "run", "run x.paren --steps many"])
def test_wrong_commands_would_be_found(words: str) -> None:
    with pytest.raises(typer.BadParameter.__mro__[1]):
        take(words.split())


def test_links_lead_somewhere() -> None:
    """Links between the pages and to files of the repository."""
    missing = []
    for page in [*PAGES, ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                missing.append(f"{page.name} links to {target}")
    assert missing == []


def test_there_is_something_to_check() -> None:
    """The pages are found and their blocks are recognised."""
    assert blocks("paren")
    assert blocks("python")
    assert commands()
    assert any("defrun" in heads(block) for block in blocks("paren"))
