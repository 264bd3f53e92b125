"""What paren's own files hold, so that what one version of them made is not taken for what another makes."""

from __future__ import annotations

import hashlib
import sys
import time
from functools import cache
from pathlib import Path

BEGUN = time.time()  # before the rest of paren is loaded, as `paren/__init__.py` sees to
COARSE = 2  # seconds by which the times of a file system may be off
FOLDER = Path(__file__).parent
SUFFIXES = (".py", ".paren")


@cache
def own_digest(*parts: str) -> str | None:
    """The SHA-256 of Python's version and of the files in some of paren's folders, or of single ones, in hexadecimal.
    None where they may be others than those that this process loaded: one changed since it began, or none are there."""
    digest = hashlib.sha256(sys.version.encode())
    for part in parts:
        whole = FOLDER / part
        paths = [whole] if whole.is_file() else sorted(path for path in whole.rglob("*.*") if path.suffix in SUFFIXES)
        for path in paths:
            try:
                content, status = path.read_bytes(), path.stat()
            except OSError:  # another version is being put in its place
                return None
            if max(status.st_mtime, status.st_ctime) > BEGUN - COARSE:
                return None
            digest.update(f"{path.relative_to(FOLDER)} {len(content)} ".encode() + content)
        if not paths:
            return None
    return digest.hexdigest()
