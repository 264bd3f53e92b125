"""JAX on XLA's CPU back end as a contestant: `python -m bench.peers.jax_peer W3 VARIANT [--timed N]`.

Variants: `step`, one compiled train step a call, its state donated; for W4 also `scan`, a whole epoch with its shuffle
in one call, whose losses are read at its end. XLA takes the cores that the process may use as its threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

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

Tree = dict[str, Array] | list[tuple[Array, Array]]
State = tuple[Tree, Tree, Array]


def adam(
    weights: Tree, gradients: Tree, state: State, rate: float, betas: tuple[float, float], decay: float
) -> tuple[Tree, State]:
    """An update of Adam, with decoupled decay of matrices."""
    first, second = betas
    means, squares, number = state
    number = number + 1
    means = jax.tree.map(lambda mean, gradient: first * mean + (1 - first) * gradient, means, gradients)
    squares = jax.tree.map(
        lambda square, gradient: second * square + (1 - second) * gradient * gradient, squares, gradients
    )

    def update(weight: Array, mean: Array, square: Array) -> Array:
        direction = (mean / (1 - first**number)) / (jnp.sqrt(square / (1 - second**number)) + EPSILON)
        return weight - rate * (direction + (decay * weight if weight.ndim > 1 else 0.0))

    return jax.tree.map(update, weights, means, squares), (means, squares, number)


def first_state(weights: Tree) -> State:
    """Moments of 0 and no updates."""
    return jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.float32(0)


def language_model_loss(sizes: LanguageModel, weights: dict[str, Array], tokens: Array, targets: Array) -> Array:
    """The mean loss of a GPT-2 on a batch."""
    width, heads, length = sizes.width, sizes.heads, sizes.length
    dtype = jnp.bfloat16 if sizes.bfloat16 else jnp.float32

    def norm(x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        scale = lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x.astype(dtype) @ weights[f"{name}.weight"].astype(dtype) + weights[f"{name}.bias"].astype(dtype)

    def split_heads(x: Array) -> Array:
        return x.reshape(sizes.batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    x = weights["embedding"][tokens] + weights["position"]
    seen = jnp.tril(jnp.ones((length, length), bool))
    for layer in range(sizes.layers):
        query, key, value = map(split_heads, jnp.split(linear(norm(x, f"{layer}.norm1"), f"{layer}.qkv"), 3, axis=-1))
        scores = (query * (width // heads) ** -0.5) @ key.transpose(0, 1, 3, 2)
        shares = jax.nn.softmax(jnp.where(seen, scores.astype(jnp.float32), -jnp.inf), -1)
        mixed = (shares.astype(dtype) @ value).transpose(0, 2, 1, 3).reshape(sizes.batch, length, width)
        x = x + linear(mixed, f"{layer}.projection")
        hidden = jax.nn.gelu(linear(norm(x, f"{layer}.norm2"), f"{layer}.up"), approximate=True)
        x = x + linear(hidden, f"{layer}.down")
    logits = (norm(x, "norm").astype(dtype) @ weights["embedding"].astype(dtype).T).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def language_model_step(sizes: LanguageModel) -> Callable[[int], float]:
    """A function that runs the optimizer step of a number and gives its loss."""
    given = language_model_weights(sizes.layers, sizes.width, sizes.vocabulary, sizes.length)
    weights: Tree = {}
    for name in list(given):
        array = given.pop(name)
        turned = array.ndim > 1 and name not in ("embedding", "position")  # matrices as [inputs outputs]
        weights[name] = jnp.asarray(array.T if turned else array)
    batches = token_batches(sizes.vocabulary, sizes.length, sizes.batch, DIFFERENT_BATCHES)
    tokens, targets = map(jnp.asarray, batches)

    def train(weights: Tree, state: State, tokens: Array, targets: Array) -> tuple[Tree, State, Array]:
        loss, gradients = jax.value_and_grad(lambda weights: language_model_loss(sizes, weights, tokens, targets))(
            weights
        )
        return *adam(weights, gradients, state, RATE, BETAS, DECAY), loss

    compiled = jax.jit(train, donate_argnums=(0, 1))
    held = [weights, first_state(weights)]

    def step(number: int) -> float:
        *held[:], loss = compiled(*held, tokens[number % DIFFERENT_BATCHES], targets[number % DIFFERENT_BATCHES])
        jax.block_until_ready(held)
        return float(loss)

    return step


def network_epoch(sizes: Network, variant: str, recorder: Recorder) -> Callable[[int], float]:
    """A function that runs the epoch of a number and gives its mean loss; it is compiled and tried once before."""
    weights: Tree = [(jnp.asarray(weight.T), jnp.asarray(bias)) for weight, bias in network_weights(sizes.layers)]
    rows = labelled_pairs(sizes.rows)
    kept = sizes.steps * sizes.batch

    def mean_loss(weights: list[tuple[Array, Array]], x: Array, label: Array) -> Array:
        for weight, bias in weights[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        logit = x @ weights[-1][0] + weights[-1][1]
        return (jnp.maximum(logit, 0) - logit * label + jnp.log1p(jnp.exp(-jnp.abs(logit)))).mean()

    def train(held: tuple[Tree, State], batch: tuple[Array, Array]) -> tuple[tuple[Tree, State], Array]:
        weights, state = held
        loss, gradients = jax.value_and_grad(mean_loss)(weights, *batch)
        return adam(weights, gradients, state, sizes.rate, (0.9, 0.999), 0.0), loss

    held = [(weights, first_state(weights))]
    recorder.begin()
    if variant == "scan":
        x, label = map(jnp.asarray, rows)

        def scan(held: tuple[Tree, State], key: Array) -> tuple[tuple[Tree, State], Array]:
            order = jax.random.permutation(key, sizes.rows)[:kept]
            shape = (sizes.steps, sizes.batch, -1)
            held, losses = lax.scan(train, held, (x[order].reshape(shape), label[order].reshape(shape)))
            return held, losses.mean()

        whole = jax.jit(scan).lower(held[0], jax.random.key(0)).compile()
        recorder.first()

        def scanned_epoch(number: int) -> float:
            held[0], loss = whole(held[0], jax.random.key(number))
            jax.block_until_ready(held[0])
            return float(loss)

        return scanned_epoch

    step = jax.jit(train, donate_argnums=0)
    random = np.random.default_rng(2)
    first = tuple(array[: sizes.batch] for array in rows)
    jax.block_until_ready(step(jax.tree.map(jnp.copy, held[0]), first))
    recorder.first()

    def epoch(number: int) -> float:
        order = random.permutation(sizes.rows)
        x, label = (array[order] for array in rows)
        losses = []
        for begin in range(0, kept, sizes.batch):
            held[0], loss = step(held[0], (x[begin : begin + sizes.batch], label[begin : begin + sizes.batch]))
            losses.append(loss)
        return float(np.mean([float(loss) for loss in losses]))

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("variant", choices=("step", "scan"))
    parser.add_argument("--timed", type=int)
    given = parser.parse_args()
    sizes = WORKLOADS[given.workload]
    recorder = Recorder(given.timed or sizes.timed)
    if isinstance(sizes, Network):
        time_epochs(recorder, network_epoch(sizes, given.variant, recorder))
    else:
        time_steps(recorder, language_model_step(sizes), sizes.untimed)
    recorder.finish({"jax": jax.__version__})


if __name__ == "__main__":
    main()
