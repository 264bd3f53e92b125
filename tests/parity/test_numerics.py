"""Values at the edges of float32 stay finite where they can be, and are reported where they are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compiled_training import Arrays, Trainer, program
from torch.nn import functional as F

from paren.text.errors import ParenError

LOGITS = """
(defdata d (python "f.py" g :fields ((x float32 [5]) (label int32 []))))
(defmodel m ((x float32 [5])) (* x (param scale [5] :init 1)))
(defrun :data d :loss (cross-entropy (m x) label) :optimizer (sgd :rate 0.5) :batch 6 :steps 4)
"""
HUGE = [
    [1e4, -1e4, 0, 1, 2],
    [-1e4, -1e4, -1e4, -1e4, -1e4],
    [1e4, 1e4, 1e4, 1e4, 1e4],
    [3e38, -3e38, 0, 0, 0],
    [1e-38, -1e-38, 1e-45, 0, 88.8],
    [-103.0, 103.0, 0, 0, -0.0],
]


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 0, 0], [1, 4, 2, 0, 4, 0], [0, 1, 3, 0, 4, 1]])
def test_extreme_logits(labels: list[int]) -> None:
    """Losses and gradients are torch's, which are finite for all of these."""
    trainer = Trainer(program(LOGITS))
    fields = {"x": np.array(HUGE, np.float32), "label": np.array(labels, np.int32)}
    record = trainer.step(fields)
    scale = torch.ones(5, requires_grad=True)
    loss = F.cross_entropy(torch.from_numpy(fields["x"]) * scale, torch.tensor(labels))
    (gradient,) = torch.autograd.grad(loss, [scale])
    assert record["loss"] == pytest.approx(loss.item(), rel=1e-6)
    np.testing.assert_allclose(trainer.gradients["scale"], gradient.numpy(), rtol=1e-5, atol=1e-6)


ACTIVATIONS = """
(defdata d (python "f.py" g :fields ((x float32 [8]) (y float32 [8]))))
(defmodel m ((x float32 [8])) (let ((x (+ x (param bias [8] :init 0)))) {text}))
(defrun :data d :loss (mean (m x)) :optimizer (sgd :rate 1.0) :batch 2 :steps 1)
"""
SMOOTH = {
    "(sigmoid x)": torch.sigmoid,
    "(silu x)": F.silu,
    "(softplus x)": lambda x: torch.logaddexp(x, torch.zeros(())),
    "(log-sigmoid x)": F.logsigmoid,
    "(gelu x)": F.gelu,
    "(tanh x)": torch.tanh,
    "(softmax x)": lambda x: F.softmax(x, -1),
    "(log-softmax x)": lambda x: F.log_softmax(x, -1),
    "(relu x)": F.relu,
    "(abs x)": torch.abs,
    "(sigmoid-cross-entropy x y)": lambda x: F.binary_cross_entropy_with_logits(x, Y, reduction="none"),
}
X = np.array([[1e4, -1e4, 0, 88, -88, 1e-30, 17, -17], [-1e4, -1e4, -1e4, 1e4, 5, -5, 0, -0.0]], np.float32)
Y = torch.tensor([[0.0, 1, 1, 0, 1, 0, 1, 0], [1, 0, 1, 1, 0, 0, 1, 0]])


@pytest.mark.parametrize("text", SMOOTH)
def test_extreme_activations(text: str) -> None:
    """Value and gradient at 10,000, at 0 and between, as torch gives them."""
    source = ACTIVATIONS.format(text=text)
    if " y)" in text:
        source = source.replace(text, "x").replace("(mean (m x))", "(sigmoid-cross-entropy (m x) y)")
    trainer = Trainer(program(source))
    record = trainer.step({"x": X, "y": Y.numpy()})
    bias = torch.zeros(8, requires_grad=True)
    loss = SMOOTH[text](torch.from_numpy(X) + bias).mean()
    (gradient,) = torch.autograd.grad(loss, [bias])
    assert record["loss"] == pytest.approx(loss.item(), rel=2e-6)
    np.testing.assert_allclose(trainer.gradients["bias"], gradient.numpy(), rtol=2e-5, atol=1e-7)


MASKED = """
(defdata d (python "f.py" g :fields ((x float32 [3 4]) (seen bool [3 3]))))
(defmodel m ((x float32 [3 4]) (seen bool [3 3]))
  (let ((h (reshape (linear x 4) [1 3 4])))
    (sum {attention} :axis all)))
(defrun :data d :loss (m x seen) :optimizer (sgd :rate 0.1) :batch 2 :steps 1)
"""
MASKS = np.array(
    [[[1, 0, 0], [1, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0], [0, 0, 1]]], bool
)  # also queries that may see nothing


@pytest.mark.parametrize(
    "attention",
    [
        "(attention h h h :mask seen)",
        "(attention h h h :mask seen :causal true)",
        "(matmul (softmax (where seen (matmul h (transpose h)) (- infinity))) (reshape h [3 4]))",
        "(matmul (softmax (+ (matmul h (transpose h)) (where seen 0.0 (- infinity)))) (reshape h [3 4]))",
        "(where seen (log-softmax (where seen (matmul h (transpose h)) (- infinity))) 0)",
        "(where seen (exp (- (where seen (matmul h (transpose h)) (- infinity)) 1)) 0)",
    ],
)
def test_masks_never_give_nan(attention: str) -> None:
    """Rows with at least one visible key are right with a mask of -inf; a query that sees nothing is 0 or uniform."""
    text = MASKED.format(attention=attention)
    if not attention.startswith("(attention"):
        text = text.replace("(reshape (linear x 4) [1 3 4])", "(linear x 4)")
    trainer = Trainer(program(text))
    mask = MASKS.copy()
    if "infinity" in attention:
        mask[:, :, 0] = True  # as in torch, softmax of -inf alone has no value
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    record = trainer.step({"x": x, "seen": mask})
    assert np.isfinite(record["loss"])
    assert np.isfinite(record["gradient-norm"])
    assert all(np.isfinite(value).all() for value in trainer.parameters.values())


DIES = """\
(defdata d (python "f.py" g :fields ((x float32 [2]) (y float32 []))))
(defmodel m ((x float32 [2]))
  (sum (log (* x
               (param w [2] :init 1)))))
(defrun :data d :loss (mean-squared-error (m x) y) :optimizer (sgd :rate 0.001) :batch 2 :steps 9{more})
"""


def good(seed: int = 0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {"x": generator.uniform(1, 2, (2, 2)).astype(np.float32), "y": np.ones(2, np.float32)}


def bad(value: float = -1.0) -> Arrays:
    fields = good()
    fields["x"][1, 1] = value
    return fields


@pytest.mark.parametrize(("value", "kind"), [(-1.0, "nan"), (0.0, "inf")])
def test_a_loss_that_is_not_finite_stops(value: float, kind: str) -> None:
    """The message names step, operation and the place in the user's file; the state is that of the step before."""
    trainer = Trainer(program(DIES.format(more="")))
    trainer.step(good())
    trainer.step(good(1))
    before = {name: array.tobytes() for name, array in trainer.engine.slots().items()}
    with pytest.raises(ParenError) as caught:
        trainer.step(bad(value))
    assert caught.value.code == "E-NUM-001"
    assert caught.value.message == f"the loss of step 3 is {kind}, first produced by 'log'"
    span = caught.value.span
    assert span is not None
    assert str(span).startswith("test.paren:3:8")
    assert trainer.lines[-1]["loss"] != trainer.lines[-1]["loss"] or np.isinf(trainer.lines[-1]["loss"])
    assert {name: array.tobytes() for name, array in trainer.engine.slots().items()} == before


def test_a_gradient_that_is_not_finite_stops() -> None:
    """The loss is finite and its gradient is not: sqrt at 0."""
    text = DIES.replace("log", "sqrt").replace("(mean-squared-error (m x) y)", "(m x)")
    trainer = Trainer(program(text.format(more="")))
    trainer.step(good())
    with pytest.raises(ParenError) as caught:
        trainer.step(bad(0.0))
    assert caught.value.code == "E-NUM-001"
    assert caught.value.message.startswith("the gradient norm of step 2 is ")
    assert str(caught.value.span).startswith("test.paren:3:")


def test_skipping_counts_and_ends_at_its_limit() -> None:
    """Skipped steps consume the batch, leave the state and the schedule, and are counted; good ones end a row."""
    trainer = Trainer(program(DIES.format(more=" :on-nonfinite skip :skip-limit 2")))
    trainer.step(good())
    before = {name: array.tobytes() for name, array in trainer.engine.slots().items()}
    for number in (2, 3):
        record = trainer.step(bad())
        assert np.isnan(record["loss"])
        assert trainer.lines[-1]["annotation"] == "skipped"
        assert (trainer.lines[-1]["step"], trainer.lines[-1]["skipped"]) == (number, number - 1)
    assert str(trainer.lines[0]["place"]).startswith("test.paren:3:8")
    assert {name: array.tobytes() for name, array in trainer.engine.slots().items()} == before
    assert (trainer.state.step, trainer.state.updates, trainer.state.skipped) == (3, 1, 2)
    trainer.step(good(1))
    assert (trainer.state.step, trainer.state.updates, trainer.state.skipped_in_row) == (4, 2, 0)
    trainer.step(bad())
    trainer.step(bad())
    with pytest.raises(ParenError) as caught:
        trainer.step(bad())
    assert caught.value.code == "E-NUM-002"
    assert caught.value.message == (
        "3 steps in a row were skipped and :skip-limit is 2: the loss of step 7 is nan, first produced by 'log'"
    )
    assert (trainer.state.step, trainer.state.updates, trainer.state.skipped) == (7, 2, 5)


def test_losses_of_padding_need_not_be_finite() -> None:
    """In an evaluation an element of weight 0 does not count, whatever its loss is."""
    trainer = Trainer(program(DIES.format(more=" :weight y").replace("(mean-squared-error (m x) y)", "(m x)")))
    fields = bad(0.0)
    fields["y"][1] = 0
    (microbatch,) = trainer.batch(fields).microbatches
    total, weight = trainer.engine.evaluate(microbatch)["loss"]
    assert (total / weight, weight) == (pytest.approx(float(np.log(fields["x"][0]).sum()), rel=1e-5), 1)


def test_an_infinity_of_the_program_is_not_blamed() -> None:
    """What is named is the operation that made NaN of finite numbers, not the mask that stands before it."""
    text = """\
(defdata d (python "f.py" g :fields ((x float32 [4]))))
(defmodel m ((x float32 [4]))
  (let ((x (* x (param w [4] :init 1)))
        (p (softmax (where (> x 0)
                           x
                           (- infinity)))))
    (sum (+ p
            (sqrt (- x 1))))))
(defrun :data d :loss (m x) :optimizer (sgd :rate 0.001) :batch 2 :steps 9)
"""
    trainer = Trainer(program(text))
    x = np.array([[2, -1, 3, 2], [-1, 2, 2, 2]], np.float32)
    with pytest.raises(ParenError) as caught:
        trainer.step({"x": x})
    assert caught.value.message == "the loss of step 1 is nan, first produced by 'sqrt'"
    assert str(caught.value.span).startswith("test.paren:8:13")
    with pytest.raises(ParenError) as caught:
        trainer.step({"x": -np.abs(x)})
    assert caught.value.message == "the loss of step 2 is nan, first produced by 'sub'"
    assert str(caught.value.span).startswith("test.paren:4:12")
