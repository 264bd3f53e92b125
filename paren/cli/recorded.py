"""`paren results` and `paren report`: what a study or a run has come to, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paren.cli.options import Json
from paren.cli.output import print_json, print_result, print_table, say
from paren.text.size import count_of

Recorded = Annotated[Path, typer.Argument(metavar="OUT", help="The folder of a study or of a run.", show_default=False)]

_WIDEST = 16  # columns of a table for which none were asked


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command("results")(results)
    app.command("report")(report)


def results(
    out: Recorded,
    columns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLUMN]...",
            help="A setting, a series (its last value; with .min or .max), or a metric with dots into nested results.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV to stdout, with every digit.")] = False,
    json: Json = False,
) -> None:
    """Show what the jobs of a study, or a run, came to.

    Without COLUMN: what varies, the state, losses, and every number of the metrics. Reads the folder only.
    """
    if csv and json:
        raise typer.BadParameter("--csv and --json exclude each other")
    from paren.experiment.results.table import results as read_results  # numpy

    found = read_results(out, columns or ())
    if csv:
        print_result(found.csv())
    elif json:
        print_json(found.records())
    else:
        left_out = 0 if columns else max(0, len(found.columns) - _WIDEST)
        print_table(found.part(len(found.columns) - left_out).table())
        if left_out:
            say(f"{count_of(left_out, 'more column')}: name them, or see all with --csv or --json")


def report(out: Recorded) -> None:
    """Write OUT/report.html: everything on one page.

    It needs no network and no other file. The name of the page goes to stdout.
    """
    from paren.experiment.report.page import report as write_report  # numpy

    print_result(str(write_report(out)))
