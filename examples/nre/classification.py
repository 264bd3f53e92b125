"""How well the network tells joint pairs from others, against the best classifier on the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gaussian import Array, problem_of
from network import Network, logits
from priors import prior_of
from scipy.stats import rankdata


def predict_test(
    *, model: Network, data: Mapping[str, Mapping[str, Array]], problem: Sequence[object], prior: Sequence[object]
) -> dict[str, Array]:
    """Of the split test: `logits [n]`, `labels [n]`, and `optimal [n]`, log p(x | theta) - log p(x) in closed form."""
    rows = {name: np.asarray(values) for name, values in data["test"].items()}
    distribution = prior_of(problem_of(problem), prior)
    x, theta = (rows[name].astype(np.float64) for name in ("x", "theta"))
    learned = logits(model, rows["x"], rows["theta"])
    return {"logits": learned, "labels": rows["label"], "optimal": distribution.optimal_logit(x, theta)}


def measure_classification(*, test_predictions: Mapping[str, Array]) -> dict[str, float | None]:
    """`bce`, `accuracy` and `auc` of the network; `optimal_bce` of the best classifier; `excess`, the mean difference
    of the two losses on the same rows, with its `excess_error`, the standard deviation of that mean.

    A test set's own luck moves both losses alike: the difference tells networks apart that the loss cannot.
    """
    learned, labels, optimal = (np.asarray(test_predictions[name]) for name in ("logits", "labels", "optimal"))
    losses, least = cross_entropy(learned, labels), cross_entropy(optimal, labels)
    difference = losses - least
    return {
        "bce": float(losses.mean()),
        "accuracy": float(np.mean((learned > 0) == (labels > 0.5))),
        "auc": area_under_curve(learned, labels),
        "optimal_bce": float(least.mean()),
        "excess": float(difference.mean()),
        "excess_error": float(difference.std() / np.sqrt(len(difference))),
    }


def cross_entropy(values: Array, labels: Array) -> Array:
    """log(1 + exp(logit)) - label logit, for each row."""
    return np.logaddexp(0, values) - labels * values


def area_under_curve(values: Array, labels: Array) -> float | None:
    """The chance that a row of class 1 has the greater logit than one of class 0, ties counting half; None without
    rows of both."""
    positive = labels > 0.5
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        return None
    return float((rankdata(values)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def receiver_curve(values: Array, labels: Array) -> tuple[Array, Array]:
    """False and true positive rates at all thresholds, from none to all rows."""
    order = np.argsort(-values, kind="stable")
    positive = labels[order] > 0.5
    rates = [np.concatenate([[0], np.cumsum(kind) / max(1, kind.sum())]) for kind in (~positive, positive)]
    return rates[0], rates[1]
