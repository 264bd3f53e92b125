"""docs/language.md: its table of functions is the code's, and its programs elaborate.

`python tests/lang/test_language_page.py` writes the table anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from small_programs import load

from paren.lang.reference import describe_functions
from paren.lang.special import SPECIALS

PAGE = Path(__file__).parents[2] / "docs" / "language.md"
BEGIN, END = "<!-- functions -->\n", "<!-- end -->"


def table() -> str:
    """One table for each group."""
    lines: list[str] = []
    group = None
    for entry in describe_functions():
        if entry.group != group:
            group = entry.group
            lines += ["", f"### {group}", "", "| call | value |", "|---|---|"]
        lines.append(f"| `{entry.call}` | {entry.documentation} |")
    return "\n".join(lines) + "\n\n"


def test_the_table_of_functions_is_the_codes() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == table()


def test_every_core_form_has_its_line() -> None:
    text = PAGE.read_text()
    assert [name for name in SPECIALS if f"`({name} " not in text] == []


def test_the_pages_programs_elaborate() -> None:
    blocks = re.findall(r"```paren\n(.*?)```", PAGE.read_text(), re.DOTALL)
    made = load(
        "\n".join(blocks)
        + """
        (defdata d (python "f.py" g :fields ((x float32 [4]))))
        (defmodel m ((x float32 [4])) (linear x 1))
        (defrun :data d :loss (sum (m x)) :optimizer (signs :rate (halving 0.1)) :batch 2 :steps 1)
        """
    )
    assert [(group.flat, group.moments) for group in made.updates] == [(True, ("mean",))]


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + table() + page[page.index(END) :])
