"""The sizes of the workloads and how much arithmetic they need. Nothing but the standard library is needed here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

RATE, BETAS, EPSILON, DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1  # AdamW of all but W4; matrices decay, vectors do not
DIFFERENT_BATCHES = 4  # step i takes batch i % 4


@dataclass(frozen=True)
class LanguageModel:
    """A GPT-2 with tied embeddings and causal attention, trained without dropout and without clipping.

    A timed unit is one optimizer step; `untimed` steps come first. `agreement`: how far the first losses of two
    contestants may be apart.
    """

    name: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    length: int
    batch: int
    untimed: int
    timed: int
    bfloat16: bool = False
    agreement: float = 1e-4

    @property
    def title(self) -> str:
        """The sizes in words."""
        kind = "bfloat16" if self.bfloat16 else "float32"
        return (
            f"{self.layers} layers, {self.heads} heads, width {self.width}, vocabulary {self.vocabulary:,}, "
            f"{self.batch} x {self.length:,} tokens, {kind}"
        )

    @property
    def unit(self) -> str:
        """What one timing is about."""
        return "step"

    @property
    def flops(self) -> float:
        """Operations of products in one step: three times the forward ones; attention causal, half of the square."""
        tokens, width = self.batch * self.length, self.width
        matrices = 12 * width * width * self.layers + width * self.vocabulary
        return 3.0 * tokens * (2 * matrices + 2 * self.length * width * self.layers)


@dataclass(frozen=True)
class Network:
    """W4: a network of linear layers and ReLU with one logit, binary cross-entropy, Adam.

    A timed unit is an epoch over rows that are shuffled anew; a last batch that is not full is dropped. `final`: the
    mean loss of the last epoch, which contestants meet to `agreement`, as each shuffles in its own way.
    """

    name: str
    rows: int = 70_000
    features: int = 4
    width: int = 64
    hidden: int = 4
    batch: int = 128
    epochs: int = 5
    rate: float = 1e-3
    final: float = 0.2075
    agreement: float = 1e-3

    @property
    def title(self) -> str:
        """The sizes in words."""
        return f"{self.features} inputs, {self.hidden} x {self.width}, {self.rows:,} rows in batches of {self.batch}"

    @property
    def unit(self) -> str:
        """What one timing is about."""
        return "epoch"

    @property
    def timed(self) -> int:
        """How many units are timed."""
        return self.epochs

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each linear layer."""
        return tuple(pairwise([self.features, *[self.width] * self.hidden, 1]))

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch."""
        return self.rows // self.batch

    @property
    def flops(self) -> float:
        """Operations of products in one epoch: three times the forward ones."""
        return 6.0 * sum(inputs * outputs for inputs, outputs in self.layers) * self.steps * self.batch


Workload = LanguageModel | Network

WORKLOADS: dict[str, Workload] = {  # W6 is for cards: a step of it takes a minute of two cores
    workload.name: workload
    for workload in (
        LanguageModel("W1", 12, 12, 768, 50_257, 1_024, 1, untimed=1, timed=5),
        LanguageModel("W2", 12, 12, 768, 50_257, 1_024, 1, untimed=1, timed=5, bfloat16=True, agreement=1e-3),
        LanguageModel("W3", 2, 4, 128, 256, 64, 8, untimed=20, timed=400),
        Network("W4"),
        LanguageModel("W5", 6, 6, 384, 65, 256, 16, untimed=2, timed=12),
        LanguageModel("W6", 12, 12, 768, 50_257, 1_024, 32, untimed=3, timed=12, bfloat16=True, agreement=2e-3),
    )
}
