"""The losses of the prelude are torch's, stay finite for extreme logits, and weigh what counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_programs import loss_of, program
from torch.nn import functional as F

from paren.text.errors import ParenError

generator = np.random.default_rng(3)
LOGITS = (40 * generator.normal(size=(3, 5, 7))).astype(np.float32)
TARGETS = generator.integers(0, 7, (3, 5)).astype(np.int32)
FIELDS = "(x float32 [5 7]) (y int32 [5])"
SCALED = "(* x (param scale [1] :init 1))"
ONE = {"scale": np.ones(1, np.float32)}


def token_losses(loss: str, logits: np.ndarray = LOGITS, targets: np.ndarray = TARGETS) -> dict[str, np.ndarray]:
    made = program(FIELDS, SCALED, loss=loss)
    return loss_of(made, {"x": logits, "y": targets}, ONE)


def test_cross_entropy() -> None:
    found = token_losses("(cross-entropy (m x y) y)")
    wanted = F.cross_entropy(torch.from_numpy(LOGITS).mT, torch.from_numpy(TARGETS).long(), reduction="none")
    np.testing.assert_allclose(found["loss"], wanted.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["weight"], np.ones((3, 5)))


def test_cross_entropy_with_smoothing() -> None:
    found = token_losses("(cross-entropy (m x y) y :smoothing 0.1)")
    wanted = F.cross_entropy(
        torch.from_numpy(LOGITS).mT, torch.from_numpy(TARGETS).long(), reduction="none", label_smoothing=0.1
    )
    np.testing.assert_allclose(found["loss"], wanted.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ignore", [-100, 2])
def test_ignored_targets_do_not_count(ignore: int) -> None:
    """The weighted mean is torch's mean over the targets that are not ignored."""
    targets = TARGETS.copy()
    targets[0] = ignore
    targets[2, 1] = ignore
    found = token_losses(f"(cross-entropy (m x y) y :ignore {ignore})", targets=targets)
    mean = (found["loss"] * found["weight"]).sum() / found["weight"].sum()
    wanted = F.cross_entropy(torch.from_numpy(LOGITS).mT, torch.from_numpy(targets).long(), ignore_index=ignore)
    np.testing.assert_allclose(mean, wanted.numpy(), rtol=1e-5)
    assert (found["loss"][targets == ignore] == 0).all()
    assert ((found["weight"] == 0) == (targets == ignore)).all()


def test_the_bound_of_targets_knows_what_is_ignored() -> None:
    made = program(FIELDS, SCALED, loss="(cross-entropy (m x y) y :ignore -1)")
    assert [(b.field, b.low, b.high, b.ignore) for b in made.bounds] == [("y", 0, 7, -1)]


def test_arithmetic_keeps_the_mask_and_a_reduction_refuses_it() -> None:
    made = program(FIELDS, SCALED, loss="(+ (* 2 (cross-entropy (m x y) y :ignore 3)) 1)")
    found = loss_of(made, {"x": LOGITS, "y": TARGETS}, ONE)
    assert ((found["weight"] == 0) == (TARGETS == 3)).all()
    with pytest.raises(ParenError, match="carries the mask of :ignore"):
        program(FIELDS, SCALED, loss="(mean (cross-entropy (m x y) y :ignore 3))")


@pytest.mark.parametrize("scale", [1e4, 1e30, 3e38])
def test_extreme_logits_stay_finite(scale: float) -> None:
    """Losses of right answers are 0 and those of wrong ones large, without NaN."""
    logits = np.full((3, 5, 7), -0.4, np.float32)
    np.put_along_axis(logits, TARGETS[..., None].astype(np.int64), 0.4, -1)
    right = token_losses("(cross-entropy (m x y) y)", (scale * logits).astype(np.float32))["loss"]
    np.testing.assert_array_equal(right, np.zeros((3, 5)))
    wrong = token_losses("(cross-entropy (m x y) y)", (-scale * logits).astype(np.float32))["loss"]
    assert np.isfinite(wrong).all()
    assert (wrong > 0.79 * scale).all()


def test_masked_logits_of_other_classes() -> None:
    """A class with logit minus infinity takes no part, and leaves no NaN."""
    logits = LOGITS.copy()
    logits[..., 0] = -np.inf
    targets = np.maximum(TARGETS, 1)
    found = token_losses("(cross-entropy (m x y) y)", logits, targets)["loss"]
    wanted = F.cross_entropy(torch.from_numpy(logits).mT, torch.from_numpy(targets).long(), reduction="none")
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-5)


PAIRS = {
    "sigmoid-cross-entropy": (lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none")),
    "mean-squared-error": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "mean-absolute-error": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("shapes", [("[4]", "[4]"), ("[1]", "[]"), ("[]", "[]"), ("[2 3]", "[2 3]")])
def test_losses_of_pairs(name: str, shapes: tuple[str, str]) -> None:
    """One value an example: the mean over its axes."""
    first, second = (tuple(map(int, shape.strip("[]").split())) for shape in shapes)
    x = (5 * generator.normal(size=(3, *first))).astype(np.float32)
    y = generator.random((3, *second)).astype(np.float32)
    made = program(
        f"(x float32 {shapes[0]}) (y float32 {shapes[1]})",
        "(* x (param scale [] :init 1))",
        loss=f"({name} (m x y) y)",
    )
    found = loss_of(made, {"x": x, "y": y}, {"scale": np.ones((), np.float32)})["loss"]
    wanted = PAIRS[name](torch.from_numpy(x), torch.from_numpy(y.reshape(x.shape))).reshape(3, -1).mean(1)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_integer_labels_of_the_sigmoid_loss() -> None:
    made = program("(x float32 [1]) (y int32 [])", SCALED, loss="(sigmoid-cross-entropy (m x y) y)")
    x = np.array([[100.0], [-100.0], [0.0]], np.float32)
    found = loss_of(made, {"x": x, "y": np.array([1, 1, 0], np.int32)}, ONE)["loss"]
    np.testing.assert_allclose(found, [0.0, 100.0, np.log(2)], rtol=1e-6, atol=1e-30)


def test_the_weight_of_a_run() -> None:
    """:weight multiplies what counts, for the loss and for metrics of its shape; padding counts nothing."""
    made = program(
        FIELDS,
        SCALED,
        loss="(cross-entropy (m x y) y)",
        more=" :weight (/= y 0) :metrics ((accuracy (= (argmax (m x y)) y))"
        " (all-right (every (= (argmax (m x y)) y))))",
    )
    assert made.metrics == ("accuracy", "all-right")
    valid = np.array([1, 1, 0], np.float32)
    found = loss_of(made, {"x": LOGITS, "y": TARGETS, "$valid": valid}, ONE)
    wanted = (TARGETS != 0) * valid[:, None]
    np.testing.assert_array_equal(found["weight"], wanted)
    np.testing.assert_array_equal(found["weight:accuracy"], wanted)
    np.testing.assert_array_equal(found["weight:all-right"], valid)
    np.testing.assert_array_equal(found["metric:accuracy"], LOGITS.argmax(-1) == TARGETS)
