"""The examples in small sizes train as torch does: the first 20 losses agree to 1e-5, first gradients to 1e-4.

Graphs run by their definition in numpy; gradients are reverse mode; updates are the program's own graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from small_programs import Arrays, example
from torch.nn import functional as F

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.program import Program
from paren.ir.rebuild import rebuild
from paren.lang.elaborate import elaborate
from paren.passes.gradient import differentiate

Torch = dict[str, torch.Tensor]
STEPS = 20


def loss_and_gradients(made: Program) -> Graph:
    """Outputs `mean` and the gradient of each parameter, by name."""
    builder = Builder("test")
    nodes = rebuild(made.loss, builder)
    loss, weight = (nodes[made.loss.outputs[name]] for name in ("loss", "weight"))
    axes = {"axes": tuple(range(len(loss.shape)))}
    weighted = builder.apply("mul", loss, weight)
    total = builder.emit("sum", (weighted,), axes, loss.span)
    mean = builder.apply("div", total, builder.emit("sum", (weight,), axes, loss.span))
    inputs = {str(node.attrs["name"]): nodes[node] for node in made.loss.inputs if node.attrs["role"] == "state"}
    gradients = differentiate(builder, mean, list(inputs.values()))
    return builder.graph({"mean": mean, **dict(zip(inputs, gradients, strict=True))})


def update(made: Program, state: dict[str, Arrays], gradients: Arrays, number: int) -> None:
    """One step of every group, in place."""
    for group in made.updates:
        for names in [group.parameters] if group.flat else [(name,) for name in group.parameters]:
            graph = group.graphs["" if group.flat else names[0]]
            inputs = {
                key: np.concatenate([values[name].ravel() for name in names]) if group.flat else values[names[0]]
                for key, values in {
                    **{k: state[k] for k in ("parameter", *group.moments)},
                    "gradient": gradients,
                }.items()
            }
            outputs = evaluate(graph, {**inputs, "update": np.float32(number).reshape(())})
            for key in ("parameter", *group.moments):
                ends = np.cumsum([state[key][name].size for name in names])[:-1]
                for name, part in zip(names, np.split(outputs[key].ravel(), ends), strict=True):
                    state[key][name] = part.reshape(state[key][name].shape)


def compare(
    made: Program,
    batches: list[Arrays],
    reference: Callable[[Torch, Torch], torch.Tensor],
    optimizer: Callable[[list[dict[str, object]]], torch.optim.Optimizer],
) -> None:
    """`reference(parameters, batch)` is the mean loss; the optimizer gets matrices and vectors as two groups."""
    seed = np.uint32(1).reshape(())
    values = evaluate(made.initialize, {"$seed": seed})
    state = {"parameter": values}
    for slot in made.moments:
        parameter, _, moment = slot.name.rpartition("/")
        state.setdefault(moment, {})[parameter] = np.zeros(slot.type.shape, np.float32)
    twins = {name: torch.nn.Parameter(torch.from_numpy(value.copy())) for name, value in values.items()}
    groups = [
        {"params": [t for t in twins.values() if t.ndim >= 2]},
        {"params": [t for t in twins.values() if t.ndim < 2], "weight_decay": 0.0},
    ]
    stepper = optimizer([group for group in groups if group["params"]])
    graph = loss_and_gradients(made)
    rows = np.arange(made.rows, dtype=np.uint32)
    for number, batch in enumerate(batches, start=1):
        given = {"$seed": seed, "$step": seed, "$rows": rows, "$valid": np.ones(made.rows, np.float32)}
        outputs = evaluate(graph, {**given, **batch, **state["parameter"]})
        stepper.zero_grad()
        wanted = reference(twins, {name: torch.from_numpy(value) for name, value in batch.items()})
        wanted.backward()
        np.testing.assert_allclose(outputs["mean"], wanted.item(), rtol=1e-5, err_msg=f"loss {number}")
        if number == 1:
            whole = np.sqrt(sum(float(t.grad.square().sum()) for t in twins.values() if t.grad is not None))
            for name, twin in twins.items():
                assert twin.grad is not None
                difference = float(np.linalg.norm(outputs[name] - twin.grad.numpy()))
                assert difference <= 1e-4 * max(float(twin.grad.norm()), 1e-6 * whole), name
        stepper.step()
        update(made, state, outputs, number)


def test_gpt() -> None:
    settings = ["layers=2", "heads=4", "width=32", "seq=16", "vocab=256", "batch=4", "microbatches=1", "warmup=5"]
    made = elaborate(example("gpt.paren"), overrides=[*settings, "steps=40", "rate=3e-3"])
    generator = np.random.default_rng(0)

    def draw() -> Arrays:
        tokens = generator.integers(0, 256, (4, 17)).astype(np.int32)
        return {"tokens": np.ascontiguousarray(tokens[:, :-1]), "targets": np.ascontiguousarray(tokens[:, 1:])}

    def reference(p: Torch, batch: Torch) -> torch.Tensor:
        x = p["embedding"][batch["tokens"].long()] + p["position"]
        for i in range(2):
            a, m = f"block.{i}.attention", f"block.{i}.mlp"
            h = F.layer_norm(x, (32,), p[f"{a}.layer-norm.weight"], p[f"{a}.layer-norm.bias"])
            qkv = h @ p[f"{a}.qkv.weight"] + p[f"{a}.qkv.bias"]
            q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in qkv.chunk(3, -1))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + mixed @ p[f"{a}.projection.weight"] + p[f"{a}.projection.bias"]
            h = F.layer_norm(x, (32,), p[f"{m}.layer-norm.weight"], p[f"{m}.layer-norm.bias"])
            h = F.gelu(h @ p[f"{m}.linear.weight"] + p[f"{m}.linear.bias"])
            x = x + h @ p[f"{m}.linear-1.weight"] + p[f"{m}.linear-1.bias"]
        logits = F.layer_norm(x, (32,), p["layer-norm.weight"], p["layer-norm.bias"]) @ p["embedding"].T
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten())

    def optimizer(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return Scheduled(torch.optim.AdamW(groups, 1.0, (0.9, 0.95), weight_decay=0.1), warmup_cosine)

    def warmup_cosine(number: int) -> float:
        if number < 5:
            return 3e-3 * number / 5
        return 3e-3 * 0.5 * (1 + np.cos(np.pi * (number - 5) / 35))

    compare(made, [draw() for _ in range(STEPS)], reference, optimizer)


class Scheduled(torch.optim.Optimizer):
    """An optimizer whose rate is a function of the number of the update, 1 at first."""

    def __init__(self, inner: torch.optim.Optimizer, rate: Callable[[int], float]) -> None:
        self.inner = inner
        self.rate = rate
        self.number = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.number += 1
        for group in self.inner.param_groups:
            group["lr"] = self.rate(self.number)
        self.inner.step()


def test_digits() -> None:
    made = elaborate(example("digits.paren"), variant="smoke", overrides=["dropped=0.0", "batch=8"])
    generator = np.random.default_rng(0)

    def draw() -> Arrays:
        image = (generator.integers(0, 17, (8, 1, 8, 8)) / 16).astype(np.float32)
        return {"image": image, "label": generator.integers(0, 10, 8).astype(np.int32)}

    def reference(p: Torch, batch: Torch) -> torch.Tensor:
        x = batch["image"]
        for name in ("conv2d", "conv2d-1"):
            x = F.max_pool2d(F.relu(F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], padding=1)), 2)
        x = F.relu(x.flatten(1) @ p["linear.weight"] + p["linear.bias"])
        return F.cross_entropy(x @ p["linear-1.weight"] + p["linear-1.bias"], batch["label"].long())

    def optimizer(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, 2e-3, weight_decay=0.01)

    compare(made, [draw() for _ in range(STEPS)], reference, optimizer)


def test_regression() -> None:
    made = elaborate(example("regression.paren"), variant="smoke")
    generator = np.random.default_rng(0)

    def draw() -> Arrays:
        x = generator.uniform(-2, 2, (64, 2)).astype(np.float32)
        return {"x": x, "y": np.sin(x[:, 0]) * np.cos(x[:, 1])}

    def reference(p: Torch, batch: Torch) -> torch.Tensor:
        h = torch.tanh(batch["x"] @ p["mlp.linear.weight"] + p["mlp.linear.bias"])
        return F.mse_loss((h @ p["mlp.linear-1.weight"] + p["mlp.linear-1.bias"])[:, 0], batch["y"])

    def warmup_cosine(number: int) -> float:
        if number < 20:
            return 3e-3 * number / 20
        return 3e-3 * 0.5 * (1 + np.cos(np.pi * (number - 20) / 580))

    def optimizer(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return Scheduled(torch.optim.Adam(groups, 1.0), warmup_cosine)

    compare(made, [draw() for _ in range(STEPS)], reference, optimizer)
