"""`paren run` and `paren sample`: training a file, and text from the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from paren.cli.options import (
    DataRoot,
    Device,
    File,
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
from paren.cli.output import end_with_folder
from paren.train.progress import view_for

Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, metavar="N", help="Stop at step N in total; schedules stay.", show_default=False),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="DIR|s3://BUCKET/PREFIX",
        help="Where checkpoints go; default: in the run folder.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="auto|latest|STEP|PATH",
        help="Go on from a checkpoint; auto starts afresh where there is none.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the run folder holds.")]
AllowNewLayout = Annotated[
    bool,
    typer.Option("--allow-new-layout", help="Resume although device or stacking differ, which changes the bits."),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Write report/trace.json, and say where the time of a step goes.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands of this file."""
    app.command("run")(run)
    app.command("sample")(sample)


def run(
    file: File,
    variant: Variant = None,
    settings: Settings = None,
    steps: Steps = None,
    device: Device = None,
    out: Out = None,
    checkpoints: Checkpoints = None,
    resume: Resume = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    data_root: DataRoot = None,
    allow_new_layout: AllowNewLayout = False,
    profile: Profile = False,
    stacking: Stacking = None,
    patterns: Patterns = OnOff.ON,
    tf32: Tf32 = False,
    workers: Workers = None,
    parallel: Parallel = None,
    single: Annotated[
        bool, typer.Option("--single", help="Train the file's own values alone, whatever study it declares.")
    ] = False,
) -> None:
    """Train the network of a file, or all jobs of the study that it declares, and analyse them.

    Progress goes to stderr, the name of the run folder to stdout.
    """
    from paren import api  # compiles and runs: torch and llvmlite
    from paren.experiment import progress  # loads the language; `paren --help` does without

    experiment = api.load(file, variant=variant, set=settings or ())
    trained = experiment.run(
        out=out,
        device=device,
        steps=steps,
        resume=resume,
        overwrite=overwrite,
        checkpoints=checkpoints,
        threads=threads,
        tensorboard=tensorboard,
        data_root=data_root,
        allow_new_layout=allow_new_layout,
        profile=profile,
        stacking=stacking,
        patterns=patterns is OnOff.ON,
        tf32=tf32,
        progress=progress.study_view(sys.stderr) if experiment.is_study and not single else view_for(sys.stderr),
        workers=workers,
        parallel=parallel.value if parallel is not None else None,
        single=single,
    )
    end_with_folder(str(trained.out), trained.exit_code)


def sample(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="The text to go on from; it is not written again.")
    ] = "",
    length: Annotated[int, typer.Option("--length", min=1, metavar="N", help="Tokens to write.")] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, metavar="T", help="0 takes the likeliest token.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Another seed, another text.")] = 0,
    checkpoints: Checkpoints = None,
) -> None:
    """Write text with a trained language model."""
    from paren import api  # see run

    for piece in api.sample(run_folder, prompt, length, temperature, seed, checkpoints=checkpoints):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
