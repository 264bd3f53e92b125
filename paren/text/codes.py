"""All error codes: `paren help CODE` prints an entry, `docs/errors.md` is generated from them.

The entries stand in one file for each area, `codes_*.py`; importing this module fills the registry.
"""

from __future__ import annotations

from paren.text import (
    codes_api,
    codes_data,
    codes_jobs,
    codes_lang,
    codes_machine,
    codes_parallel,
    codes_store,
    codes_text,
    codes_train,
)
from paren.text.code_registry import CODES, Code

__all__ = [
    "CODES",
    "Code",
    "codes_api",
    "codes_data",
    "codes_jobs",
    "codes_lang",
    "codes_machine",
    "codes_parallel",
    "codes_store",
    "codes_text",
    "codes_train",
]
