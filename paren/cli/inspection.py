"""`paren check`, `paren show`, `paren explain`: what a file means, before anything is trained."""

from __future__ import annotations

from typing import Annotated

import typer

from paren.cli.options import Device, File, Json, OnOff, Patterns, Settings, Stacking, Tf32, Threads, Variant
from paren.cli.output import print_json, print_painted, print_result
from paren.cli.summary import REPORT_STYLES, SUMMARY_STYLES, write_summary
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


def explain(
    file: File,
    variant: Variant = None,
    settings: Settings = None,
    device: Device = None,
    card: Annotated[
        str | None,
        typer.Option(
            "--card", metavar="NAME", help="A card that need not be there: h100-80g, l4, ...", show_default=False
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="A card of so much memory, 24GiB; with --device cpu, the CPU with only so much.",
            show_default=False,
        ),
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option("--arch", metavar="ARCH", help="The architecture of that card: sm_90, ...", show_default=False),
    ] = None,
    threads: Threads = None,
    stacking: Stacking = None,
    patterns: Patterns = OnOff.ON,
    tf32: Tf32 = False,
    json: Json = False,
) -> None:
    """Report what a run would do: memory, predicted time, what runs, and which patterns apply.

    Compiles the kernels of a device that is there; trains nothing and reads no data.
    """
    from paren import api  # see check

    experiment = api.load(file, variant=variant, set=settings or ())
    explanation = experiment.explain(
        device=device,
        card=card,
        memory=memory,
        arch=arch,
        threads=threads,
        stacking=stacking,
        patterns=patterns is OnOff.ON,
        tf32=tf32,
    )
    if json:
        print_json(explanation.data)
    else:
        print_painted(str(explanation), REPORT_STYLES)
