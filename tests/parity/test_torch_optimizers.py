"""Compiled updates are torch's from identical gradients, over ten updates, for matrices, wide and tall, and vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from compiled_training import Arrays, Trainer, program

UPDATES = 10
RATE = 0.02
MODEL = """
(defdata d (python "f.py" g :fields ((x float32 [4]))))
(defmodel m ((x float32 [4]))
  (let ((h (matmul x (param wide [4 7] :init (normal 0.5))))
        (h (matmul (+ h (param bias [7] :init (normal 0.5))) (param tall [7 3] :init (normal 0.5)))))
    (sum (* h (param gain [3] :init (normal 0.5))))))
(defrun :data d :loss (m x) :optimizer {optimizer} :batch 2 :steps 1)
"""

Groups = list[dict[str, object]]


class Lion(torch.optim.Optimizer):
    """The rule of the paper (Chen et al., 2023, algorithm 2), which torch does not have."""

    def __init__(self, groups: Groups, rate: float, beta1: float, beta2: float, decay: float) -> None:
        super().__init__(groups, {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": decay})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate, beta1, beta2 = group["lr"], group["beta1"], group["beta2"]
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                direction = torch.sign(beta1 * mean + (1 - beta1) * p.grad)
                p.sub_(rate * (direction + group["weight_decay"] * p))
                mean.mul_(beta2).add_((1 - beta2) * p.grad)


CASES: dict[str, tuple[str, Callable[[Groups], torch.optim.Optimizer]]] = {
    "adam": ("(adam :rate 0.02)", lambda g: torch.optim.Adam(g, RATE)),
    "adam with decay": (
        "(adam :rate 0.02 :betas [0.8 0.95] :epsilon 1e-6 :weight-decay 0.3)",
        lambda g: torch.optim.Adam(g, RATE, (0.8, 0.95), 1e-6, 0.3),
    ),
    "adamw": ("(adamw :rate 0.02)", lambda g: torch.optim.AdamW(g, RATE)),
    "adamw with decay": (
        "(adamw :rate 0.02 :betas [0.9 0.95] :weight-decay 0.3)",
        lambda g: torch.optim.AdamW(g, RATE, (0.9, 0.95), 1e-8, 0.3),
    ),
    "sgd": ("(sgd :rate 0.02)", lambda g: torch.optim.SGD(g, RATE)),
    "sgd with decay": ("(sgd :rate 0.02 :weight-decay 0.3)", lambda g: torch.optim.SGD(g, RATE, weight_decay=0.3)),
    "momentum": (
        "(sgd :rate 0.02 :momentum 0.9 :weight-decay 0.3)",
        lambda g: torch.optim.SGD(g, RATE, 0.9, weight_decay=0.3),
    ),
    "nesterov": (
        "(sgd :rate 0.02 :momentum 0.8 :nesterov true :weight-decay 0.3)",
        lambda g: torch.optim.SGD(g, RATE, 0.8, nesterov=True, weight_decay=0.3),
    ),
    "lion": ("(lion :rate 0.02)", lambda g: Lion(g, RATE, 0.9, 0.99, 0.0)),
    "lion with decay": (
        "(lion :rate 0.02 :betas [0.8 0.95] :weight-decay 0.3)",
        lambda g: Lion(g, RATE, 0.8, 0.95, 0.3),
    ),
}


def gradients_of(trainer: Trainer) -> list[Arrays]:
    generator = np.random.default_rng(0)
    shapes = {name: value.shape for name, value in trainer.parameters.items()}
    return [
        {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(UPDATES)
    ]


def assert_updates_agree(trainer: Trainer, wanted: Arrays, before: Arrays) -> None:
    """The change of every parameter since `before` to 1e-4 of its norm."""
    after = trainer.parameters
    for name, value in wanted.items():
        change = value - before[name]
        difference = float(np.linalg.norm(after[name] - value))
        assert difference <= 1e-4 * float(np.linalg.norm(change)), name


@pytest.mark.parametrize("case", CASES)
def test_elementwise_rules(case: str) -> None:
    text, make = CASES[case]
    trainer = Trainer(program(MODEL.format(optimizer=text)))
    twins = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in trainer.parameters.items()}
    optimizer = make(
        [
            {"params": [twins["wide"], twins["tall"]]},
            {"params": [twins["bias"], twins["gain"]], "weight_decay": 0.0},
        ]
    )
    for number, gradients in enumerate(gradients_of(trainer), start=1):
        before = {name: twin.detach().numpy().copy() for name, twin in twins.items()}
        for name, twin in twins.items():
            twin.grad = torch.from_numpy(gradients[name].copy())
        optimizer.step()
        trainer.set(before)
        trainer.update(gradients, number)
        assert_updates_agree(trainer, {name: twin.detach().numpy() for name, twin in twins.items()}, before)


@pytest.mark.parametrize("nesterov", ["true", "false"])
def test_muon(nesterov: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's Muon, made to iterate in float32, takes matrices as [outputs inputs]; vectors get adamw."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    trainer = Trainer(program(MODEL.format(optimizer=f"(muon :rate 0.02 :nesterov {nesterov} :weight-decay 0.2)")))
    matrices, vectors = ("wide", "tall"), ("bias", "gain")

    def turned(name: str, value: np.ndarray) -> np.ndarray:
        return np.array(value.T if name in matrices else value, order="C")

    start = trainer.parameters
    twins = {name: torch.nn.Parameter(torch.from_numpy(turned(name, value))) for name, value in start.items()}
    optimizers = [
        torch.optim.Muon(
            [twins[name] for name in matrices], RATE, 0.2, nesterov=nesterov == "true", adjust_lr_fn="original"
        ),
        torch.optim.AdamW([twins[name] for name in vectors], RATE, weight_decay=0.0),
    ]
    for number, gradients in enumerate(gradients_of(trainer), start=1):
        before = {name: turned(name, twin.detach().numpy()) for name, twin in twins.items()}
        for name, twin in twins.items():
            twin.grad = torch.from_numpy(turned(name, gradients[name]))
        for optimizer in optimizers:
            optimizer.step()
        trainer.set(before)
        trainer.update(gradients, number)
        assert_updates_agree(trainer, {n: turned(n, twin.detach().numpy()) for n, twin in twins.items()}, before)
