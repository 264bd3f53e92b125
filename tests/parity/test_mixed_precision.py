"""With `:precision bfloat16` the examples train as torch does that rounds at the same places, and nearly as in float32.

torch computes in float32 on rounded values, so that the two differ by the order of sums alone; where that moves a value
over the middle between two bfloat16, by one unit of its last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compiled_training import EXAMPLES, Arrays, Trainer
from test_torch_networks import (
    GPT_SETTINGS,
    Reference,
    Torch,
    Twin,
    gpt_adamw,
    gpt_batches,
    training_batches,
    warmup_cosine,
)
from torch.nn import functional as F

from paren.ir.program import Program
from paren.lang.elaborate import elaborate

STEPS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def r(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


class Kept(torch.autograd.Function):
    """A value rounded for all uses; its gradient passes as it is."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return r(x)

    @staticmethod
    def backward(_ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return g


class Linear(torch.autograd.Function):
    """Rounded operands and result, then the bias; the gradient that comes in is rounded for all that is made of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return r(r(x) @ r(w)) + b

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        x, w = (r(saved) for saved in ctx.saved_tensors)
        g = r(g)
        flat_x, flat_g = x.flatten(0, -2), g.flatten(0, -2)
        return r(g @ w.T), flat_x.T @ flat_g, flat_g.sum(0)


class Product(torch.autograd.Function):
    """A batched product of values, and its two gradients, all rounded."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return r(r(a) @ r(b))

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        a, b = (r(saved) for saved in ctx.saved_tensors)
        g = r(g)
        return r(g @ b.mT), r(a.mT @ g)


class Softmax(torch.autograd.Function):
    """Its rounded result is what its gradient is made of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        p = r(torch.softmax(x, -1))
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (p,) = ctx.saved_tensors
        return p * (g - (p * g).sum(-1, keepdim=True))


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = r(torch.tanh(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


def linear(p: Torch, name: str, x: torch.Tensor) -> torch.Tensor:
    return Linear.apply(x, p[f"{name}.weight"], p[f"{name}.bias"])  # type: ignore[no-any-return]


def norm(p: Torch, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])


def gpt_loss(heads: int) -> Reference:
    def loss(p: Torch, batch: Torch) -> torch.Tensor:
        x = p["embedding"][batch["tokens"].long()] + p["position"]
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        for i in range(2):
            a, m = f"block.{i}.attention", f"block.{i}.mlp"
            qkv = linear(p, f"{a}.qkv", norm(p, f"{a}.layer-norm", x))
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
            scores = Product.apply(q, k.mT) * (1 / (q.shape[-1] ** 0.5))
            mixed = Product.apply(Softmax.apply(scores.masked_fill(hidden, -1e30)), v)
            x = x + linear(p, f"{a}.projection", mixed.transpose(1, 2).flatten(2))
            x = x + linear(p, f"{m}.linear-1", F.gelu(linear(p, f"{m}.linear", norm(p, f"{m}.layer-norm", x))))
        final = norm(p, "layer-norm", x)
        logits = Linear.apply(final, p["embedding"].T, torch.zeros(()))
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten(), reduction="none")

    return loss


class Sums(Twin):
    """Gradients of the sum of losses, which are divided afterwards: what is rounded is not yet divided."""

    def step(self, fields: Arrays) -> tuple[float, float]:
        for parameter, gradient in zip(self.parameters.values(), self.gradients(fields).values(), strict=True):
            parameter.grad = torch.from_numpy(gradient)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.clip or math.inf)
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.updates)
        self.optimizer.step()
        return self.last, norm.item()

    def gradients(self, fields: Arrays) -> Arrays:
        losses = self.loss(dict(self.parameters), {name: torch.from_numpy(value) for name, value in fields.items()})
        found = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        self.last = losses.mean().item()
        return {name: (value / losses.numel()).numpy() for name, value in zip(self.parameters, found, strict=True)}


def compare(trainer: Trainer, twin: Sums, batches: list[Arrays], exact: Trainer) -> None:
    """Losses against torch's and float32's; the first gradients against torch's."""
    wanted = twin.gradients(batches[0])
    far = []
    for number, fields in enumerate(batches, start=1):
        record, (loss, _), plain = trainer.step(fields), twin.step(fields), exact.step(fields)
        if number == 1:
            for name, value in wanted.items():
                difference = np.linalg.norm((trainer.gradients[name] - value).ravel())
                assert difference <= 4e-3 * np.linalg.norm(value.ravel()), name
        assert record["loss"] == pytest.approx(loss, rel=2e-3), f"loss {number}"
        far.append(abs(record["loss"] - plain["loss"]) / plain["loss"])
    assert max(far) < 2e-2, far
    assert np.mean(far) < 1e-2, far


def trainers(path: Path, *overrides: str) -> tuple[Program, Trainer, Trainer]:
    """A program of the examples in bfloat16, and it in both precisions."""
    text = path.read_text()
    if "precision" not in text:
        text = text.replace("(defrun", '(def precision "off")\n(defrun :precision precision', 1)

    def made(precision: str) -> Program:
        given = [*overrides, f'precision="{precision}"']
        return elaborate(path, read_file=lambda _path: text.encode(), overrides=given)

    assert (made("bfloat16").run.precision, made("off").run.precision) == ("bfloat16", "off")
    return made("bfloat16"), Trainer(made("bfloat16")), Trainer(made("off"))


@pytest.mark.parametrize("microbatches", [1, 3])
def test_gpt(microbatches: int) -> None:
    made, trainer, exact = trainers(EXAMPLES / "gpt.paren", *GPT_SETTINGS, f"microbatches={microbatches}")
    twin = Sums(trainer.parameters, gpt_loss(4), warmup_cosine(3e-3, 5, 40), gpt_adamw, made.run.clip)
    compare(trainer, twin, gpt_batches(), exact)


def test_digits(tmp_path: Path) -> None:
    made, trainer, exact = trainers(EXAMPLES / "digits.paren", "dropped=0.0")

    def convolution(p: Torch, name: str, x: torch.Tensor) -> torch.Tensor:
        """As a product of patches, which is what the layer is."""
        weight = p[f"{name}.weight"]
        columns = F.unfold(x, weight.shape[2:], padding=1).transpose(1, 2)
        y = Linear.apply(columns, weight.flatten(1).T, p[f"{name}.bias"])
        return y.transpose(1, 2).unflatten(2, x.shape[2:])  # type: ignore[no-any-return]

    def pooled(x: torch.Tensor) -> torch.Tensor:
        """Rounded values are often equal: `amax` shares the gradient among them, as paren does."""
        return x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))

    def loss(p: Torch, batch: Torch) -> torch.Tensor:
        x = batch["image"]
        for name in ("conv2d", "conv2d-1"):
            x = pooled(F.relu(convolution(p, name, x)))
        x = Kept.apply(F.relu(linear(p, "linear", x.flatten(1))))
        return F.cross_entropy(linear(p, "linear-1", x), batch["label"].long(), reduction="none")

    def adamw(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, weight_decay=0.01)

    twin = Sums(trainer.parameters, loss, lambda _update: 2e-3, adamw)
    compare(trainer, twin, training_batches(made, tmp_path), exact)


def test_regression(tmp_path: Path) -> None:
    made, trainer, exact = trainers(EXAMPLES / "regression.paren")

    def loss(p: Torch, batch: Torch) -> torch.Tensor:
        h = batch["x"]
        for name in ("mlp.linear", "mlp.linear-1"):
            h = Tanh.apply(linear(p, name, h))
        return F.mse_loss(linear(p, "mlp.linear-2", h)[:, 0], batch["y"], reduction="none")

    twin = Sums(trainer.parameters, loss, warmup_cosine(3e-3, 20, 600), torch.optim.Adam)
    compare(trainer, twin, training_batches(made, tmp_path), exact)
