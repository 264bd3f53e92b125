"""Files of NumPy's: what its readers raise for one that is damaged, or is none."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

# Of the header, which is Python text; of the archive; of its compression. An encrypted archive is a RuntimeError.
UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, AttributeError, KeyError, OverflowError, SyntaxError, RuntimeError),
    *(struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
