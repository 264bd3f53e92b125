"""The validation loss of a bigram model on a program's own tokens, beside the loss that a run reached.

    python -m scripts.bigram FILE [--variant NAME] [--run OUT]

The bigram model is fitted on the training tokens, with add-k smoothing whose k is the best of a grid on the validation
tokens, so it is as good as a bigram model can be there. Both losses are means over the same validation targets, in
nats. Exits 1 if the run's loss is not below the bigram model's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from paren import load
from paren.data.dataset import Split
from paren.data.open import open_data
from paren.environment import read_environment
from paren.train.read_run import read_metrics

SMOOTHING = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
CHUNK = 1024


def count_pairs(split: Split, vocabulary: int, limit: int | None = None) -> np.ndarray:
    """How often each token follows each: float64[vocabulary, vocabulary] over the first `limit` examples of a split."""
    counts = np.zeros(vocabulary * vocabulary)
    count = split.count if limit is None else min(limit, split.count)
    for start in range(0, count, CHUNK):
        fields = split.read(np.arange(start, min(start + CHUNK, count), dtype=np.int64))
        pairs = fields["tokens"].astype(np.int64) * vocabulary + fields["targets"]
        counts += np.bincount(pairs.ravel(), minlength=len(counts))
    return counts.reshape(vocabulary, vocabulary)


def bigram_loss(train: np.ndarray, validation: np.ndarray) -> float:
    """Mean negative log-likelihood of the validation pairs under the best smoothing of the training pairs."""
    losses = []
    for k in SMOOTHING:
        logarithms = np.log((train + k) / (train.sum(axis=1, keepdims=True) + k * len(train)))
        losses.append(-(validation * logarithms).sum() / validation.sum())
    return float(min(losses))


def main() -> int:
    """Prints both losses."""
    parser = argparse.ArgumentParser(description="the loss of a bigram model on the same tokens")
    parser.add_argument("file")
    parser.add_argument("--variant")
    parser.add_argument("--run", type=Path)
    arguments = parser.parse_args()
    program = load(arguments.file, variant=arguments.variant).program
    cache = read_environment().cache / "data"
    data = open_data(program.data, root=Path(program.path).parent, cache=cache, seed=program.run.seed)
    if data.vocabulary is None:
        sys.exit(f"{arguments.file} declares no text")
    limit = program.data.options.get("evaluation-count")
    train = count_pairs(data.splits["train"], data.vocabulary)
    validation = count_pairs(data.splits["validation"], data.vocabulary, limit if isinstance(limit, int) else None)
    bigram = bigram_loss(train, validation)
    print(f"bigram model, validation loss: {bigram:.4f}")
    if arguments.run is None:
        return 0
    series = read_metrics(arguments.run)["evaluation/loss"]
    reached = float(series[np.isfinite(series)][-1])
    verdict = "below" if reached < bigram else "NOT below"
    print(f"this run, validation loss:     {reached:.4f} ({verdict} the bigram model)")
    return 0 if reached < bigram else 1


if __name__ == "__main__":
    sys.exit(main())
