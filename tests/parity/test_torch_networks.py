"""The examples, compiled, train as torch does from the same weights on the same batches: 20 losses agree to 1e-5, the
first gradient of every parameter to 1e-4, and the norm of the gradient with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled_training import EXAMPLES, Arrays, Trainer, assert_gradients_agree
from torch.nn import functional as F

from paren.data.loader import Loader
from paren.data.open import open_data
from paren.ir.program import Program
from paren.lang.elaborate import elaborate

Torch = dict[str, torch.Tensor]
Reference = Callable[[Torch, Torch], torch.Tensor]
STEPS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two pools of threads that wait for each other's cores take many times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Twin:
    """The same parameters in torch: matrices decay and vectors do not, the rate is a function of the update."""

    def __init__(
        self,
        parameters: Arrays,
        loss: Reference,
        rate: Callable[[int], float],
        make: Callable[[list[dict[str, object]]], torch.optim.Optimizer],
        clip: float | None = None,
    ) -> None:
        self.parameters = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in parameters.items()}
        self.loss, self.rate, self.clip = loss, rate, clip
        matrices = [value for value in self.parameters.values() if value.ndim >= 2]
        vectors = [value for value in self.parameters.values() if value.ndim < 2]
        self.optimizer = make([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}])
        self.updates = 0

    def step(self, fields: Arrays) -> tuple[float, float]:
        """Loss and norm of the gradient, before the update that follows."""
        self.optimizer.zero_grad()
        loss = self.loss(dict(self.parameters), {name: torch.from_numpy(value) for name, value in fields.items()})
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.clip or math.inf)
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.updates)
        self.optimizer.step()
        return loss.item(), norm.item()

    def gradients(self, fields: Arrays) -> Arrays:
        loss = self.loss(dict(self.parameters), {name: torch.from_numpy(value) for name, value in fields.items()})
        found = torch.autograd.grad(loss, list(self.parameters.values()))
        return {name: value.numpy() for name, value in zip(self.parameters, found, strict=True)}


def compare(trainer: Trainer, twin: Twin, batches: list[Arrays]) -> None:
    wanted_gradients = twin.gradients(batches[0])
    for number, fields in enumerate(batches, start=1):
        record, (loss, norm) = trainer.step(fields), twin.step(fields)
        if number == 1:
            assert_gradients_agree(trainer.gradients, wanted_gradients)
        assert record["loss"] == pytest.approx(loss, rel=1e-5), f"loss {number}"
        assert record["gradient-norm"] == pytest.approx(norm, rel=1e-3), f"norm {number}"
        assert record.get("rate", twin.rate(number)) == pytest.approx(twin.rate(number), rel=1e-5, abs=1e-12)
    assert len(batches) == STEPS == trainer.state.updates


def warmup_cosine(peak: float, warmup: int, until: int) -> Callable[[int], float]:
    def rate(update: int) -> float:
        if update < warmup:
            return peak * update / warmup
        return peak * 0.5 * (1 + math.cos(math.pi * (update - warmup) / (until - warmup)))

    return rate


def training_batches(made: Program, cache: Path) -> list[Arrays]:
    """The examples of the first positions, as a run takes them from the program's data."""
    data = open_data(made.data, root=EXAMPLES, cache=cache, seed=made.run.seed, announce=lambda _text: None)
    split = data.splits["train"]
    with Loader(split, made.run, made.rows, 0, STEPS, seed=made.run.seed) as loader:
        return [split.read(batch.indices) for batch in islice(loader, STEPS)]


def gpt_loss(heads: int) -> Reference:
    def loss(p: Torch, batch: Torch) -> torch.Tensor:
        x = p["embedding"][batch["tokens"].long()] + p["position"]
        width = x.shape[-1]
        for i in range(2):
            a, m = f"block.{i}.attention", f"block.{i}.mlp"
            h = F.layer_norm(x, (width,), p[f"{a}.layer-norm.weight"], p[f"{a}.layer-norm.bias"])
            qkv = F.linear(h, p[f"{a}.qkv.weight"].T, p[f"{a}.qkv.bias"])
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + F.linear(mixed, p[f"{a}.projection.weight"].T, p[f"{a}.projection.bias"])
            h = F.layer_norm(x, (width,), p[f"{m}.layer-norm.weight"], p[f"{m}.layer-norm.bias"])
            h = F.gelu(F.linear(h, p[f"{m}.linear.weight"].T, p[f"{m}.linear.bias"]))
            x = x + F.linear(h, p[f"{m}.linear-1.weight"].T, p[f"{m}.linear-1.bias"])
        logits = F.linear(F.layer_norm(x, (width,), p["layer-norm.weight"], p["layer-norm.bias"]), p["embedding"])
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten())

    return loss


GPT_SETTINGS = (
    "layers=2", "heads=4", "width=64", "seq=48", "vocab=320", "batch=6", "warmup=5", "steps=40", "rate=3e-3",
)  # fmt: skip


def gpt_batches() -> list[Arrays]:
    """Random tokens for a GPT of these settings."""
    generator = np.random.default_rng(0)
    drawn = [generator.integers(0, 320, (6, 49)).astype(np.int32) for _ in range(STEPS)]
    return [{"tokens": np.ascontiguousarray(t[:, :-1]), "targets": np.ascontiguousarray(t[:, 1:])} for t in drawn]


def gpt_adamw(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    """The optimizer of the file; rates come from the schedule."""
    return torch.optim.AdamW(groups, 1.0, (0.9, 0.95), weight_decay=0.1)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_gpt(microbatches: int) -> None:
    """Two layers, with clipping, warm-up and decay as in the file; in microbatches the same losses come out."""
    made = elaborate(EXAMPLES / "gpt.paren", overrides=[*GPT_SETTINGS, f"microbatches={microbatches}"])
    trainer = Trainer(made)
    twin = Twin(trainer.parameters, gpt_loss(4), warmup_cosine(3e-3, 5, 40), gpt_adamw, made.run.clip)
    compare(trainer, twin, gpt_batches())


def test_digits(tmp_path: Path) -> None:
    """The whole network on the real images; dropout, which is random, is off."""
    made = elaborate(EXAMPLES / "digits.paren", overrides=["dropped=0.0"])
    trainer = Trainer(made)

    def loss(p: Torch, batch: Torch) -> torch.Tensor:
        x = batch["image"]
        for name in ("conv2d", "conv2d-1"):
            x = F.max_pool2d(F.relu(F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=1)), 2)
        x = F.relu(F.linear(x.flatten(1), p["linear.weight"].T, p["linear.bias"]))
        return F.cross_entropy(F.linear(x, p["linear-1.weight"].T, p["linear-1.bias"]), batch["label"].long())

    def adamw(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, weight_decay=0.01)

    twin = Twin(trainer.parameters, loss, lambda _update: 2e-3, adamw)
    compare(trainer, twin, training_batches(made, tmp_path))


def test_regression(tmp_path: Path) -> None:
    """The whole network on the points of its own function."""
    made = elaborate(EXAMPLES / "regression.paren")
    trainer = Trainer(made)

    def loss(p: Torch, batch: Torch) -> torch.Tensor:
        h = batch["x"]
        for name in ("mlp.linear", "mlp.linear-1"):
            h = torch.tanh(F.linear(h, p[f"{name}.weight"].T, p[f"{name}.bias"]))
        return F.mse_loss(F.linear(h, p["mlp.linear-2.weight"].T, p["mlp.linear-2.bias"])[:, 0], batch["y"])

    twin = Twin(trainer.parameters, loss, warmup_cosine(3e-3, 20, 600), torch.optim.Adam)
    compare(trainer, twin, training_batches(made, tmp_path))
