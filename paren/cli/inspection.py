"""`paren check`, `paren show`, `paren explain`: what a file means, before anything is trained."""

from __future__ import annotations

from typing import Annotated

import typer

from paren.cli.options import File, Json, Settings, Variant
from paren.cli.output import print_json, print_painted, print_result, print_table
from paren.cli.summary import SUMMARY_STYLES, write_summary
from paren.text.errors import did_you_mean

STAGES = ("forms", "program", "graph", "fused", "plan", "code")


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command("check")(check)
    app.command("show")(show)
    app.command("explain")(explain)


def check(file: File, variant: Variant = None, settings: Settings = None, json: Json = False) -> None:
    """Report every mistake of a file.

    Reads and evaluates it and infers all shapes; reads no data and computes nothing.
    """
    from paren import api  # loads the language and its prelude; `format` and `help` do without

    summary = api.load(file, variant=variant, set=settings or ()).check()
    if json:
        print_json({"file": str(file), **summary})
    else:
        print_painted(write_summary(str(file), summary), SUMMARY_STYLES)


def show(
    stage: Annotated[str, typer.Argument(metavar="STAGE", help=f"One of {', '.join(STAGES)}.", show_default=False)],
    file: File,
    variant: Variant = None,
    settings: Settings = None,
) -> None:
    """Print a file after one stage of compiling."""
    if stage not in STAGES:
        raise typer.BadParameter(f"no stage `{stage}`{did_you_mean(stage, STAGES)}; the stages are {', '.join(STAGES)}")
    from paren import api  # see check

    print_result(api.load(file, variant=variant, set=settings or ()).show(stage))


def explain(file: File, variant: Variant = None, settings: Settings = None, json: Json = False) -> None:
    """Report kernels, fusion and memory of a file."""
    from paren import api  # see check

    explanation = api.load(file, variant=variant, set=settings or ()).explain()
    if json:
        print_json(explanation.data)
    else:
        print_table(explanation.table())
