"""`(digits)`: the 1,797 images of handwritten digits that come with scikit-learn."""

from __future__ import annotations

import importlib

import numpy as np

from paren.data.digest import array_digest, digest_of
from paren.data.fields import ArraySplit, Column, cut_into_splits
from paren.ir.program import DataForm
from paren.text.errors import ParenError

BRIGHTEST = 16


def open_digits(form: DataForm) -> dict[str, ArraySplit]:
    """`image` float32[1 8 8] in 0 .. 1 and `label` int32[] in 0 .. 9, cut by `:split`.

    Raises E-DATA-014 where scikit-learn is missing, and what `cut_into_splits` raises.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")  # an extra, and slow to import
    except ImportError:
        raise ParenError(
            "E-DATA-014",
            "the digits need the library scikit-learn, which is not installed",
            form.span,
            fix="pip install 'paren[digits]'",
        ) from None
    digits = datasets.load_digits()
    image = (digits.images[:, None] / BRIGHTEST).astype(np.float32)
    label = digits.target.astype(np.int32)
    columns = {
        "image": Column(image, "image of digits", array_digest(image)),
        "label": Column(label, "label of digits", array_digest(label)),
    }
    digest = digest_of(*((name, column.digest) for name, column in sorted(columns.items())))
    return cut_into_splits(form, columns, digest)
