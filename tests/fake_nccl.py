"""A library in place of NCCL, built from `fake_nccl.c`: cards that are host memory send each other what they hold."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nccl.c")


def fake_library() -> str:
    """The path of the library."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"paren-fakes-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    library = folder / f"nccl-{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "nccl.so"
            subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(SOURCE), "-o", str(made)], check=True)
            made.replace(library)
    return str(library)
