"""Every wrong program beside this file gives exactly the text that stands beside it (`NAME.txt`).

A first line `; arguments: --variant v --set k=v` gives what the command line would. After a change of messages
`python tests/errors/test_wrong_programs.py` writes the texts anew; read the difference before you keep it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

import pytest

from paren.lang.elaborate import elaborate
from paren.text.codes import CODES
from paren.text.errors import ParenError

FOLDER = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.paren"))


def message(name: str) -> str:
    """What the program gives, with paths as seen from its folder."""
    first, _, _ = (FOLDER / f"{name}.paren").read_text().partition("\n")
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant")
    parser.add_argument("--set", action="append", default=[])
    words = shlex.split(first.removeprefix("; arguments:")) if first.startswith("; arguments:") else []
    arguments = parser.parse_args(words)
    before = Path.cwd()
    os.chdir(FOLDER)
    try:
        elaborate(f"{name}.paren", variant=arguments.variant, overrides=arguments.set)
    except ParenError as error:
        return str(error) + "\n"
    finally:
        os.chdir(before)
    return "no mistake was found\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_message(name: str) -> None:
    assert message(name) == (FOLDER / f"{name}.txt").read_text()


def test_every_code_is_explained() -> None:
    codes = {code for path in FOLDER.glob("*.txt") for code in re.findall(r"E-[A-Z]+-[0-9]+", path.read_text())}
    assert codes <= set(CODES)
    assert len(codes) >= 50


def test_there_are_many_and_no_text_is_left_over() -> None:
    assert len(PROGRAMS) >= 80
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == PROGRAMS


if __name__ == "__main__":
    for program in PROGRAMS:
        (FOLDER / f"{program}.txt").write_text(message(program))
