"""`paren doctor` and `paren help`: is this machine fit, and what does a code mean."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer
from typer.core import TyperGroup

from paren.cli.options import Json
from paren.cli.output import print_json, print_result, print_table
from paren.text.codes import CODES, Code
from paren.text.errors import ParenError, did_you_mean

_WIDTH = 88

Topic = Annotated[str | None, typer.Argument(metavar="[CODE]", help="An error code or a command.", show_default=False)]


Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Look at this place for checkpoints too.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command("doctor")(doctor)
    app.command("help")(help_topic)


def doctor(json: Json = False, checkpoints: Checkpoints = None) -> None:
    """Check this machine.

    Exit code 1 if it cannot train on the CPU, or not write to the place that is given.
    """
    from paren.inspect.doctor import examine  # runs llvmlite and torch

    examination = examine(checkpoints)
    if json:
        print_json(examination.data)
    else:
        print_table(examination.table())
    if not examination.usable:
        raise typer.Exit(1)


def help_topic(context: typer.Context, topic: Topic = None, json: Json = False) -> None:
    """Explain an error code, or show a command's options."""
    parent = context.find_root()
    if topic is None:
        _print_help(parent.get_help(), None, json)
        return
    code = CODES.get(topic.upper().rstrip(":"))
    if code is not None:
        if json:
            print_json({"code": code.code, "title": code.title, "cause": code.cause, "fix": code.fix})
        else:
            print_result(_explain(code))
        return
    group = parent.command
    commands = group.list_commands(parent) if isinstance(group, TyperGroup) else []
    if not isinstance(group, TyperGroup) or topic not in commands:
        suggestion = did_you_mean(topic.upper(), CODES) or did_you_mean(topic, commands)
        raise ParenError(
            "E-CLI-004",
            f"no error code or command `{topic}`{suggestion}",
            fix="docs/errors.md lists all codes, paren --help the commands",
        )
    command = group.get_command(parent, topic)
    if command is not None:
        with command.make_context(topic, [], parent=parent, resilient_parsing=True) as described:
            _print_help(command.get_help(described), topic, json)


def _print_help(text: str, command: str | None, as_json: bool) -> None:
    if as_json:
        print_json({"command": command, "help": text})
    else:
        print_result(text)


def _explain(code: Code) -> str:
    paragraphs = (f"{code.code}: {code.title}", code.cause, f"What to do: {code.fix}")
    return "\n\n".join(textwrap.fill(paragraph, _WIDTH) for paragraph in paragraphs)
