"""Data files that a form lists under `:files`: they count by their content, which has to stay while a function runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paren.data.digest import file_digest, reporting_cache_errors
from paren.environment import read_environment
from paren.experiment.store.recipe import Recipe
from paren.text.errors import ParenError
from paren.text.source import Span


def digest_of_content(path: Path) -> str:
    """32 hexadecimal digits that stand for a file's bytes. Raises OSError if it is not there, E-DATA-021 if the cache
    folder, where digests of large files are kept, cannot be used."""
    cache = read_environment().cache / "data"
    path.stat()  # whose error is not one of the cache
    with reporting_cache_errors(cache):
        return file_digest(path, cache)


def check_files(recipe: Recipe, files: Mapping[str, Path], span: Span) -> None:
    """Raises E-STORE-007 if a file, by its name in the form, is not what the recipe says any more."""
    stated = recipe.parts.get("files")
    for name, path in files.items():
        if isinstance(stated, dict) and (not path.is_file() or stated.get(name) != digest_of_content(path)):
            raise file_changed(name, span)


def file_changed(name: str, span: Span) -> ParenError:
    """E-STORE-007, for a data file that is not what it was: what was made of it would stand under the digest of another
    content."""
    return ParenError(
        "E-STORE-007",
        f"{name} changed while it was read",
        span,
        fix="start again when it is whole; a file that is replaced by a rename is never half old and half new",
    )
