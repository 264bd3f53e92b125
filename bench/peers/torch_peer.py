"""PyTorch as a contestant: `python -m bench.peers.torch_peer W3 VARIANT [--timed N] [--threads N]
[--device cuda]`.

Variants: `eager`; `compile` (forward and backward through inductor, the fused optimizer); `compile-all` (the optimizer
compiled too); for W4 also `slice` (eager, batches are slices of shuffled arrays) and `loader` (a DataLoader and the
default optimizer, what a newcomer writes).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.recorder import Recorder, time_epochs, time_steps
from bench.workloads.content import labelled_pairs, language_model_weights, network_weights, token_batches
from bench.workloads.sizes import (
    BETAS,
    DECAY,
    DIFFERENT_BATCHES,
    EPSILON,
    RATE,
    WORKLOADS,
    LanguageModel,
    Network,
)

# The optimizer of each variant: the fused kernel, one that the compiler fuses, or the default loop.
OPTIMIZER: dict[str, dict[str, bool]] = {
    "eager": {"fused": True},
    "slice": {"fused": True},
    "compile": {"fused": True},
    "compile-all": {"foreach": True},
    "loader": {},
}


class LanguageModelModule(nn.Module):
    """The loss of a GPT-2 on a batch."""

    def __init__(self, sizes: LanguageModel) -> None:
        super().__init__()
        self.sizes = sizes
        weights = language_model_weights(sizes.layers, sizes.width, sizes.vocabulary, sizes.length)
        self.weights = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(torch.from_numpy(array)) for name, array in weights.items()}
        )

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        sizes, weights = self.sizes, self.weights
        width, heads = sizes.width, sizes.heads
        batch, length = tokens.shape

        def linear(x: Tensor, name: str) -> Tensor:
            return F.linear(x, weights[f"{name}_weight"], weights[f"{name}_bias"])

        def norm(x: Tensor, name: str) -> Tensor:
            return F.layer_norm(x, (width,), weights[f"{name}_weight"], weights[f"{name}_bias"])

        def split_heads(x: Tensor) -> Tensor:
            return x.view(batch, length, heads, width // heads).transpose(1, 2)

        x = F.embedding(tokens, weights["embedding"]) + weights["position"]
        for layer in range(sizes.layers):
            query, key, value = linear(norm(x, f"{layer}_norm1"), f"{layer}_qkv").split(width, 2)
            mixed = F.scaled_dot_product_attention(
                split_heads(query), split_heads(key), split_heads(value), is_causal=True
            )
            x = x + linear(mixed.transpose(1, 2).reshape(batch, length, width), f"{layer}_projection")
            hidden = F.gelu(linear(norm(x, f"{layer}_norm2"), f"{layer}_up"), approximate="tanh")
            x = x + linear(hidden, f"{layer}_down")
        logits = F.linear(norm(x, "norm"), weights["embedding"])
        return F.cross_entropy(logits.view(batch * length, -1), targets.view(-1))


def language_model_step(sizes: LanguageModel, variant: str, device: str) -> Callable[[int], float]:
    """A function that runs the optimizer step of a number and gives its loss."""
    model = LanguageModelModule(sizes).to(device)
    batches = token_batches(sizes.vocabulary, sizes.length, sizes.batch, DIFFERENT_BATCHES)
    tokens, targets = (torch.from_numpy(array).long().to(device) for array in batches)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON, **OPTIMIZER[variant])
    compute = torch.compile(model) if variant.startswith("compile") else model
    update = torch.compile(optimizer.step) if variant == "compile-all" else optimizer.step

    def step(number: int) -> float:
        with torch.autocast(device, torch.bfloat16, enabled=sizes.bfloat16):
            loss = compute(tokens[number % DIFFERENT_BATCHES], targets[number % DIFFERENT_BATCHES])
        loss.backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def network_epochs(
    sizes: Network, variant: str, device: str
) -> tuple[Callable[[], Iterator[tuple[Tensor, Tensor]]], Callable]:
    """The batches of an epoch, and a function that runs a step on one and gives its loss."""
    layers: list[nn.Module] = []
    for weight, bias in network_weights(sizes.layers):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)
        layers += [linear, nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).to(device)
    x, label = (torch.from_numpy(array).to(device) for array in labelled_pairs(sizes.rows))
    optimizer = torch.optim.Adam(model.parameters(), lr=sizes.rate, **OPTIMIZER[variant])

    def plain(x: Tensor, label: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), label)

    compute = torch.compile(plain) if variant.startswith("compile") else plain
    update = torch.compile(optimizer.step) if variant == "compile-all" else optimizer.step
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, label), batch_size=sizes.batch, shuffle=True, drop_last=True
    )

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        if variant == "loader":
            yield from loader
            return
        order = torch.randperm(len(x), device=device)
        shuffled, labels = x[order], label[order]
        for begin in range(0, sizes.steps * sizes.batch, sizes.batch):
            yield shuffled[begin : begin + sizes.batch], labels[begin : begin + sizes.batch]

    def step(x: Tensor, label: Tensor) -> float:
        loss = compute(x, label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        update()
        return float(loss.item())

    return batches, step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("variant", choices=OPTIMIZER)
    parser.add_argument("--timed", type=int)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sizes = WORKLOADS[given.workload]
    recorder = Recorder(given.timed or sizes.timed)
    if isinstance(sizes, Network):
        batches, train = network_epochs(sizes, given.variant, given.device)
        recorder.begin()
        train(*next(batches()))  # a step more than the others have: it compiles
        recorder.first()
        time_epochs(recorder, lambda _: sum(train(*batch) for batch in batches()) / sizes.steps)
    else:
        time_steps(recorder, language_model_step(sizes, given.variant, given.device), sizes.untimed)
    more = {"card_peak": torch.cuda.max_memory_allocated()} if given.device == "cuda" else {}
    recorder.finish({"torch": torch.__version__}, **more)


if __name__ == "__main__":
    main()
