"""`paren verify` and `paren prune`: are the artifacts of a study whole, and which does nothing need any more."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paren.cli.options import Json
from paren.cli.output import print_json, print_result
from paren.text.errors import ParenErrors
from paren.text.size import count_of, show_bytes

Root = Annotated[Path, typer.Argument(metavar="OUT", help="The output folder of a study.")]
Keep = Annotated[
    int,
    typer.Option(
        "--keep",
        min=1,
        metavar="N",
        help="Keep the jobs of the last N different launches of each study; must be given.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")]


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command("verify")(verify)
    app.command("prune")(prune)


def verify(out: Root, json: Json = False) -> None:
    """Read every byte of a study's artifacts and compare it with what was published.

    Exit code 1 if one is damaged, or missing where a job refers to it.
    """
    from paren.experiment.store.verify import verify as verify_artifacts

    found = verify_artifacts(out)
    if found.faults:
        raise ParenErrors(found.faults)
    if json:
        print_json({"artifacts": found.artifacts, "bytes": found.size})
    else:
        what = count_of(found.artifacts, "artifact")
        print_result(f"{what} of {show_bytes(found.size)}: every byte is as it was published")


def prune(out: Root, keep: Keep, dry_run: DryRun = False, json: Json = False) -> None:
    """Delete jobs and artifacts that the last launches of a study do not need.

    What somebody works on or builds now stays, and so does what an unfinished job of these launches may have got so
    far. Nothing else deletes artifacts.
    """
    from paren.experiment.store.prune import prune as prune_artifacts

    removed = prune_artifacts(out, keep, dry=dry_run)
    size = sum(each.size for each in removed)
    if json:
        print_json({"deleted": not dry_run, "bytes": size, "removed": [asdict(each) for each in removed]})
        return
    for each in removed:
        print_result(f"{each.path}  {show_bytes(each.size)}, {each.why}")
    print_result(
        f"{show_bytes(size)} {'could be' if dry_run else 'were'} deleted in {count_of(len(removed), 'folder')}"
    )
