"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="A paren file.", show_default=False)]
Variant = Annotated[
    str | None,
    typer.Option("--variant", metavar="NAME", help="Use the settings of this defvariant.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Replace the value of a def, written as in the file; may be given several times.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Write results and errors as JSON to stdout.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:N, auto or reference; default: PAREN_DEVICE, then cpu.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, metavar="N", help="Threads for kernels; default: one a physical core.", show_default=False
    ),
]
Stacking = Annotated[
    int | None,
    typer.Option(
        "--stacking",
        min=1,
        metavar="N",
        help="Microbatches in one call of the training graph; default: the fastest that fits.",
        show_default=False,
    ),
]


Tf32 = Annotated[
    bool,
    typer.Option(
        "--tf32",
        help="CUDA only: round operands of float32 products of matrices to TF32 (10 bits), several times faster.",
    ),
]


class OnOff(StrEnum):
    """A switch with a word for each side."""

    ON = "on"
    OFF = "off"


Patterns = Annotated[
    OnOff,
    typer.Option(
        "--patterns",
        metavar="on|off",
        help="off: keep large values whole, make none again, run products of matrices apart from what follows; "
        "results agree to rounding.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Run folder; default: outputs/FILE[-VARIANT].", show_default=False),
]
Tensorboard = Annotated[bool, typer.Option("--tensorboard", help="Write event files for TensorBoard too.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="What relative data paths start from; default: PAREN_DATA, then the file's folder.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="Processes that take the jobs of a study side by side, and share memory and threads; "
        "without it jobs run in this one.",
        show_default=False,
    ),
]


class Sharing(StrEnum):
    """What several devices or processes do: train each model together, or take whole jobs."""

    DDP = "ddp"
    JOBS = "jobs"


Parallel = Annotated[
    Sharing | None,
    typer.Option(
        "--parallel",
        metavar="ddp|jobs",
        help="Several devices train each model together, or each takes whole jobs of a study; default: ddp.",
        show_default=False,
    ),
]
