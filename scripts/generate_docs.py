"""Writes the reference pages that follow from the code: error codes, keys of `defrun`, environment variables, commands,
cards (in docs/).

With `--check` nothing is written; the exit status is 1 if a page differs from what would be written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import typer
from typer.core import TyperGroup

from paren.cli.app import app
from paren.environment import VARIABLES
from paren.forecast.cards import CARDS, TOO_OLD
from paren.lang.run_keys import RUN_KEYS
from paren.text.codes import CODES, Code

DOCS = Path(__file__).resolve().parent.parent / "docs"

AREAS = {
    "E-TXT": "Text",
    "E-NAME": "Names",
    "E-FORM": "Forms and keywords",
    "E-TYPE": "Shapes and types",
    "E-CALL": "Calls",
    "E-IMP": "Imports",
    "E-PARAM": "Parameters",
    "E-MODEL": "Models",
    "E-LOSS": "Losses",
    "E-OPT": "Optimizers",
    "E-DEFRUN": "The form defrun",
    "E-STUDY": "Studies",
    "E-STORE": "Artifacts",
    "E-SET": "Settings",
    "E-DATA": "Data",
    "E-MEM": "Memory",
    "E-DEV": "Devices",
    "E-ENV": "Environment",
    "E-RUN": "Runs",
    "E-CKPT": "Checkpoints",
    "E-CLI": "Command line",
    "E-NUM": "Numbers that are not finite",
    "E-START": "First weights",
    "E-API": "Python interface",
}


def error_page() -> str:
    """Every code with its title, cause and fix, by area."""
    lines = [
        "# Error codes",
        "",
        "`paren help CODE` prints an entry. This page is written by `scripts/generate_docs.py`.",
    ]
    areas: dict[str, list[Code]] = {}
    for code in sorted(CODES.values(), key=lambda code: code.code):
        areas.setdefault(code.code.rpartition("-")[0], []).append(code)
    known = list(AREAS)
    for area in sorted(areas, key=lambda area: (known.index(area) if area in known else len(known), area)):
        lines += ["", f"## {AREAS.get(area, area)}"]
        for code in areas[area]:
            lines += ["", f"### {code.code}: {code.title}", "", code.cause, "", f"*What to do*: {code.fix}"]
    return "\n".join(lines) + "\n"


def environment_page() -> str:
    """Every environment variable with its values, default and meaning."""
    lines = [
        "# Environment variables",
        "",
        "paren reads these and no other; an unknown name that begins with `PAREN_` is an error (E-ENV-001), so that",
        "a misspelt one does not go unnoticed. An empty variable counts as unset. An option of the command line wins.",
        "This page is written by `scripts/generate_docs.py`.",
        "",
        "| variable | values | default | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{v.name}` | {v.values} | {v.default} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Commands",
        "",
        "Results go to stdout, progress and prose to stderr. `NO_COLOR` is respected, and colours are used on a",
        "terminal only. With `--json`, results and errors are JSON on stdout, an error a line: `code`, `message`,",
        "`place` (`path`, `line`, `column`), `notes`, `fix`. This page is written by `scripts/generate_docs.py`.",
        "",
        "| exit code | means |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | an error with a code (`paren help CODE`), or a fault of paren, which shows a traceback |",
        "| 2 | wrong use of the command line |",
        "| 130, 143 | stopped by Ctrl-C or SIGTERM; `paren run` saves a checkpoint first |",
        "| 141 | the reader of a pipe went away |",
    ]
    bar = "\\|"  # in a cell of a table
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        usage = " ".join(["paren", name, *(str(parameter.metavar) for parameter in arguments)])
        summary, _, more = (command.help or "").partition("\n")
        lines += ["", f"## `{usage}`", "", summary.strip(), *(["", more.strip()] if more.strip() else [])]
        told = [parameter for parameter in arguments if parameter.metavar != "FILE"]
        if told:
            lines += ["", "| argument | means |", "|---|---|"]
        lines += [f"| `{argument.metavar}` | {getattr(argument, 'help', None) or ''} |" for argument in told]
        if options:
            lines += ["", "| option | means |", "|---|---|"]
        for option in options:
            value = f" {option.metavar}" if option.metavar else ""
            cells = (f"`{option.opts[0]}{value}`", getattr(option, "help", None) or "")
            lines.append(f"| {' | '.join(cell.replace('|', bar) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def run_page() -> str:
    """Every key of `defrun` with its values, default and meaning."""
    lines = [
        "# Keys of defrun",
        "",
        "`(defrun :key value ...)` says how a file is trained. An unknown key is an error (E-FORM-004), and so is one",
        "that is given twice. This page is written by `scripts/generate_docs.py`.",
        "",
        "| key | value | without it | meaning |",
        "|---|---|---|---|",
    ]
    for key in RUN_KEYS:
        default = "must be there" if key.required else key.absent if key.default is None else f"`{key.default}`"
        lines.append(f"| `:{key.name}` | {key.values} | {default} | {key.meaning} |")
    return "\n".join(lines) + "\n"


def card_page() -> str:
    """Every card that a report can be about, and those that are refused."""
    lines = [
        "# Cards",
        "",
        "What `paren explain FILE --card NAME` knows: memory as the driver reports it, bandwidth, dense peak rates,",
        "which are without sparsity. This page is written by `scripts/generate_docs.py` from",
        "`paren/forecast/cards.py`, which names the sources.",
        "",
        "| name | architecture | memory MiB | GB/s | TFLOP/s float32 | tf32 | bfloat16 |",
        "|---|---|---|---|---|---|---|",
    ]
    for card in CARDS.values():
        rates = f"{card.float32:,g} | {card.tf32:,g} | {card.bfloat16:,g}"
        lines.append(f"| `{card.name}` | {card.arch} | {card.memory:,} | {card.bandwidth:,g} | {rates} |")
    old = ", ".join(f"`{name}` ({major}.{minor})" for name, (major, minor) in TOO_OLD.items())
    lines += ["", f"Refused, because paren needs compute capability 8.0 or newer (E-DEV-011): {old}."]
    return "\n".join(lines) + "\n"


PAGES = {
    "cards.md": card_page,
    "defrun.md": run_page,
    "errors.md": error_page,
    "environment.md": environment_page,
    "commands.md": command_page,
}


def main() -> int:
    """Writes or checks all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the pages are up to date")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path = DOCS / name
        text = page()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            DOCS.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/{name} is out of date; run scripts/generate_docs.py" if check else f"docs/{name} written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
