"""paren's side of the workloads is the peers': the same sizes, weights and batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import paren
from bench.paren_contestant import FILES, Stamps, settings_of, write_weights
from bench.recorder import Recorder
from bench.workloads.content import token_batches
from bench.workloads.sizes import WORKLOADS, LanguageModel
from paren.data.open import open_data
from paren.data.order import permuted


@pytest.mark.parametrize("name", ["W3", "W4", "W5"])
def test_weights_fit_the_program(name: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    write_weights(WORKLOADS[name], path)
    file, variant, settings = settings_of(WORKLOADS[name], 3, path)
    program = paren.load(file, variant=variant, set=settings).program
    expected = {slot.name: slot.type.shape for slot in program.parameters}
    assert {tensor: array.shape for tensor, array in load_file(path).items()} == expected


@pytest.mark.parametrize("name", [name for name, sizes in WORKLOADS.items() if isinstance(sizes, LanguageModel)])
def test_variants_have_the_sizes_of_the_peers(name: str) -> None:
    sizes = WORKLOADS[name]
    assert isinstance(sizes, LanguageModel)
    text = next(line for line in (FILES / "gpt.paren").read_text().split("(defvariant ") if line.startswith(name))
    for setting, value in (
        ("layers", sizes.layers),
        ("heads", sizes.heads),
        ("width", sizes.width),
        ("vocabulary", sizes.vocabulary),
        ("length", sizes.length),
        ("batch", sizes.batch),
    ):
        assert f"({setting} {value})" in text
    assert ('(precision "bfloat16")' in text) == sizes.bfloat16


def test_step_i_takes_batch_i_mod_4(tmp_path: Path) -> None:
    """Through paren's own order of samples, which the data function undoes."""
    sizes = WORKLOADS["W3"]
    assert isinstance(sizes, LanguageModel)
    file, variant, settings = settings_of(sizes, 10, tmp_path / "weights.safetensors")
    program = paren.load(file, variant=variant, set=settings).program
    split = open_data(
        program.data, root=FILES, cache=tmp_path, seed=program.run.seed, announce=lambda text: None
    ).splits["train"]
    assert split.count == 30 * sizes.batch
    tokens, targets = token_batches(sizes.vocabulary, sizes.length, sizes.batch, 4)
    for step in (0, 1, 6, 29):
        places = np.arange(step * sizes.batch, (step + 1) * sizes.batch, dtype=np.int64)
        batch = split.read(permuted(places, split.count, program.run.seed, 0))
        np.testing.assert_array_equal(batch["tokens"], tokens[step % 4])
        np.testing.assert_array_equal(batch["targets"], targets[step % 4])


def test_steps_of_one_call_share_its_time() -> None:
    stamps = Stamps(Recorder(6), 0)
    stamps.reports = [(0, 10.0), (1, 12.0), (2, 13.0), (3, 13.0001), (4, 13.0002), (5, 16.0), (6, 16.0002)]
    assert stamps.durations() == pytest.approx([2.0, 0.3334, 0.3334, 0.3334, 1.5, 1.5])
