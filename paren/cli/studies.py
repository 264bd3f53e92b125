"""`paren plan`, `paren train`, `paren analyze`: the jobs of a study."""

from __future__ import annotations

import sys

import typer

from paren.cli.options import (
    DataRoot,
    Device,
    File,
    Json,
    OnOff,
    Out,
    Parallel,
    Patterns,
    Settings,
    Stacking,
    Tensorboard,
    Tf32,
    Threads,
    Variant,
    Workers,
)
from paren.cli.output import end_with_folder, print_json, print_result


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command("plan")(plan)
    app.command("train")(train)
    app.command("analyze")(analyze)


def plan(
    file: File,
    variant: Variant = None,
    settings: Settings = None,
    out: Out = None,
    device: Device = None,
    threads: Threads = None,
    data_root: DataRoot = None,
    stacking: Stacking = None,
    patterns: Patterns = OnOff.ON,
    tf32: Tf32 = False,
    json: Json = False,
) -> None:
    """List the jobs of a study: what is there already, what would be made and why, memory and costs.

    Computes nothing and writes nothing.
    """
    from paren import api  # loads the language and its prelude; `format` and `help` do without

    planned = api.load(file, variant=variant, set=settings or ()).plan(
        out=out,
        device=device,
        threads=threads,
        data_root=data_root,
        stacking=stacking,
        patterns=patterns is OnOff.ON,
        tf32=tf32,
    )
    if json:
        print_json(planned.data)
    else:
        print_result(str(planned))


def train(
    file: File,
    variant: Variant = None,
    settings: Settings = None,
    out: Out = None,
    device: Device = None,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    data_root: DataRoot = None,
    stacking: Stacking = None,
    patterns: Patterns = OnOff.ON,
    tf32: Tf32 = False,
    workers: Workers = None,
    parallel: Parallel = None,
) -> None:
    """Train the model of each job of a study that has none yet; interrupted trainings go on.

    Progress goes to stderr, the name of the output folder to stdout.
    """
    from paren import api  # compiles and runs: torch and llvmlite
    from paren.experiment import progress  # loads the language; `paren --help` does without

    ended = api.load(file, variant=variant, set=settings or ()).train(
        out=out,
        device=device,
        threads=threads,
        tensorboard=tensorboard,
        data_root=data_root,
        stacking=stacking,
        patterns=patterns is OnOff.ON,
        tf32=tf32,
        progress=progress.study_view(sys.stderr),
        workers=workers,
        parallel=parallel.value if parallel is not None else None,
    )
    end_with_folder(str(ended.out), ended.exit_code)


def analyze(
    file: File,
    variant: Variant = None,
    settings: Settings = None,
    out: Out = None,
    device: Device = None,
    threads: Threads = None,
    data_root: DataRoot = None,
    workers: Workers = None,
    parallel: Parallel = None,
) -> None:
    """Compute what is missing of the products, metrics and plots of a study. Trains nothing.

    Models count that are there, whatever device trained them.
    """
    from paren import api  # see train
    from paren.experiment import progress  # see train

    ended = api.load(file, variant=variant, set=settings or ()).analyze(
        out=out,
        device=device,
        threads=threads,
        data_root=data_root,
        progress=progress.study_view(sys.stderr),
        workers=workers,
        parallel=parallel.value if parallel is not None else None,
    )
    end_with_folder(str(ended.out), ended.exit_code)
