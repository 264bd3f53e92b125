"""The data of the paren files here. paren imports this file from its own folder."""

from __future__ import annotations

import numpy as np
from content import Floats, Integers, labelled_pairs, token_batches

from paren.data.order import permuted


def random_tokens(
    vocabulary: int, length: int, batch: int, different: int, steps: int, held_out: int, seed: int
) -> dict[str, dict[str, Integers]]:
    """An epoch of `steps` batches, in which step i takes batch i % different; `held_out` examples for evaluations.

    paren takes sample `permuted(i)` as the i-th of an epoch, so that is where the i-th example is put.
    """
    tokens, targets = token_batches(vocabulary, length, batch, different)
    order = np.arange(steps) % different
    count = steps * batch
    places = permuted(np.arange(count, dtype=np.int64), count, seed, 0)
    split = {}
    for name, array in (("tokens", tokens), ("targets", targets)):
        split[name] = np.empty((count, length), np.int32)
        split[name][places] = array[order].reshape(count, length)
    if not held_out:
        return {"train": split}
    return {"train": split, "validation": {name: array[:held_out] for name, array in split.items()}}


def pairs(rows: int, batch: int) -> dict[str, Floats]:
    """The rows that fill whole batches."""
    x, label = labelled_pairs(rows)
    kept = rows // batch * batch
    return {"x": x[:kept], "label": label[:kept]}
