"""From a `defdata` to data: the one place that knows which kind is opened by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from paren.data.arrays import open_arrays
from paren.data.corpus import open_corpus
from paren.data.dataset import Dataset, Split
from paren.data.digest import digest_of, reporting_cache_errors
from paren.data.digits import open_digits
from paren.data.function import call_data_function
from paren.data.stream import open_token_file
from paren.ir.program import DataForm
from paren.text.errors import InternalError

CORPORA = ("text-files", "python-docs", "python-stdlib")


def open_data(
    form: DataForm, *, root: Path, cache: Path, seed: int = 0, announce: Callable[[str], None] = lambda _: None
) -> Dataset:
    """Opens a `defdata`.

    `root` is the folder that relative paths start from: that of the paren file, or the data root that was asked for.
    `cache` is a folder for what is costly to make again (encoded tokens, trained tokenizers, digests of large files);
    it is made if it does not exist, and may be deleted at any time while nothing runs. `seed` is handed to a Python
    data function that takes one. `announce` is told in a sentence before work that takes seconds.

    Raises `ParenError` with a code E-DATA-... for whatever is wrong with the data.
    """
    with reporting_cache_errors(cache, form.span):
        return _open(form, root.absolute(), cache, seed, announce)


def _open(form: DataForm, root: Path, cache: Path, seed: int, announce: Callable[[str], None]) -> Dataset:
    if form.kind in CORPORA:
        return open_corpus(form, root, cache, announce)
    splits: dict[str, Split]
    match form.kind:
        case "token-file":
            splits = dict(open_token_file(form, root, cache))
        case "arrays":
            splits = dict(open_arrays(form, root, cache))
        case "digits":
            splits = dict(open_digits(form))
        case "python":
            splits = dict(call_data_function(form, root, seed))
        case _:
            raise InternalError("data", f"there is no kind of data called {form.kind}")
    return dataset_of(form, splits)


def dataset_of(form: DataForm, splits: Mapping[str, Split]) -> Dataset:
    """A data set of declared fields with these splits."""
    fields = [(field.name, str(field.type)) for field in form.fields]
    parts = [(name, split.count, split.digest) for name, split in splits.items()]
    return Dataset(form.fields, splits, None, None, digest_of(form.kind, fields, parts), ())
