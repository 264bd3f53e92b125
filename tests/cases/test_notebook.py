"""Python as in a notebook: what objects show of themselves, repeated and concurrent runs, models that refuse."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from paren_command import write_small

import paren

TOKENS = """(defdata text (text-files "*.txt" :tokenizer bytes :length 8 :split ((train 0.8) (validation 0.2))))
(defmodel net ((tokens int32 [8])) (linear (take (param e [256 4] :init (normal 0.1)) tokens) 256))
(defrun :data text :loss (cross-entropy (net tokens) targets) :optimizer (sgd :rate 0.1) :batch 4 :steps 2)
"""


@pytest.fixture(scope="module")
def language_run(tmp_path_factory: pytest.TempPathFactory) -> paren.Run:
    folder = tmp_path_factory.mktemp("language")
    (folder / "a.txt").write_text("a text of some words\n" * 20)
    (folder / "f.paren").write_text(TOKENS)
    return paren.load(folder / "f.paren").run(out=folder / "out")


def test_objects_show_themselves_in_a_line_and_reports_as_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_small(tmp_path).parent)  # a long path would break the report's first line
    path = "f.paren"
    experiment = paren.load(path, variant="smoke", set={"rate": 0.5})
    assert repr(experiment) == f"<Experiment {path}, variant smoke: 16 parameters>"
    report = experiment.explain()
    first = f"{path} (smoke): 16 parameters, batch 4, float32, on"
    assert str(report).startswith(first)
    assert str(report) == repr(report)
    assert report._repr_html_().startswith(f"<pre>{first}")
    run = experiment.run(out=tmp_path / "out")
    assert repr(run.restore()) == f"RestoredModel(out={tmp_path / 'out'!r}, step=4)"
    assert {"step", "loss", "evaluation/loss", "rate"} <= run.metrics().keys()


def test_an_error_reads_as_on_the_command_line(tmp_path: Path) -> None:
    path = write_small(tmp_path)
    with pytest.raises(paren.ParenError) as caught:
        paren.load(path, set={"bach": 4})
    assert str(caught.value) == (
        "<command line>:1:1: E-SET-001: --set sets bach, which the file does not define (did you mean batch?)\n"
        "  bach=4\n"
        "  ^^^^\n"
        "  fix: the names that can be set are batch, rate"
    )
    with pytest.raises(paren.ParenError, match="is set to nothing"):
        paren.load(path, set="batch=")
    with pytest.raises(TypeError, match="not NoneType"):
        paren.load(path, set={"batch": None})


def test_two_runs_in_a_process_in_a_thread_and_under_a_loop_have_the_same_bits(tmp_path: Path) -> None:
    path = write_small(tmp_path)
    experiment = paren.load(path)
    runs = [experiment.run(out=tmp_path / "first"), experiment.run(out=tmp_path / "second")]
    thread = threading.Thread(target=lambda: runs.append(experiment.run(out=tmp_path / "thread")))
    thread.start()
    thread.join()

    async def under_a_loop() -> paren.Run:
        return experiment.run(out=tmp_path / "loop")

    runs.append(asyncio.run(under_a_loop()))
    assert len(runs) == 4
    first = runs[0].restore().parameters()
    for run in runs[1:]:
        for name, value in run.restore().parameters().items():
            assert value.tobytes() == first[name].tobytes()


def test_arrays_come_back_as_they_went_in(tmp_path: Path) -> None:
    model = paren.load(write_small(tmp_path)).run(out=tmp_path / "out").restore()
    x = np.ones((2, 3), np.float32)
    expected = model(x)
    assert isinstance(expected, np.ndarray)
    np.testing.assert_array_equal(model(x.tolist()), expected)
    np.testing.assert_array_equal(model(x.astype(np.float64)), expected)
    tensor = model(torch.ones(2, 3, requires_grad=True))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((1, 8), 256), "input tokens holds 256, the model takes 0 .. 255"),
        (np.full((1, 8), -1), "input tokens holds -1, the model takes 0 .. 255"),
        (np.full((1, 8), 2**32), "input tokens holds 4294967296, the model takes 0 .. 255"),
        (np.zeros((1, 8)), "input tokens holds float64, the model takes int32"),
        (np.zeros((1, 9), np.int32), "input tokens has shape [1, 9], the model takes [n 8]"),
        (np.zeros((0, 8), np.int32), "input tokens has shape [0, 8], the model takes [n 8]"),
    ],
)
def test_a_model_refuses_what_it_would_misread(language_run: paren.Run, array: np.ndarray, message: str) -> None:
    model = language_run.restore()
    with pytest.raises(paren.ParenError) as caught:
        model(array)
    assert (caught.value.code, caught.value.message) == ("E-DATA-023", message)
    if message.endswith(".. 255"):
        assert caught.value.fix == "give values in that range, as the data had that the model was trained with"
    assert model(np.zeros((1, 8), np.uint8)).shape == (1, 8, 256)


NO_LANGUAGE_MODEL = "holds no language model: a model of one row of tokens, and a tokenizer, are needed"


def test_a_sample_of_a_run_that_is_none_or_of_a_prompt_that_would_vanish(
    language_run: paren.Run, tmp_path: Path
) -> None:
    text = "".join(paren.sample(language_run.out, "größe 日本 🎉", 20, seed=3))
    assert text == "".join(paren.sample(language_run.out, "größe 日本 🎉", 20, seed=3))
    regression = paren.load(write_small(tmp_path)).run(out=tmp_path / "out")
    for out, prompt, temperature, said in (
        (regression.out, "", 1.0, f"{regression.out} {NO_LANGUAGE_MODEL}"),
        (tmp_path / "nothing", "", 1.0, "holds no run"),
        (tmp_path / "f.paren", "", 1.0, "is a file, not the directory of a run"),
        (language_run.out, "a\udce6", 1.0, "the prompt is not Unicode text: it has the code 0xdce6"),
        (language_run.out, "", -1.0, "the temperature is -1.0, a number of at least 0 is needed"),
        (language_run.out, "", float("nan"), "the temperature is nan, a number of at least 0 is needed"),
    ):
        with pytest.raises(paren.ParenError) as caught:
            list(paren.sample(out, prompt, 3, temperature))
        assert said in caught.value.message


def test_characters_without_a_token_are_named(language_run: paren.Run, tmp_path: Path) -> None:
    """A tokenizer of words of its own: what it lacks is not left out of the prompt without a word."""
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    words.save(str(tmp_path / "words.json"))
    (tmp_path / "a.txt").write_text("abba" * 100)
    (tmp_path / "f.paren").write_text(TOKENS.replace(":tokenizer bytes", ':tokenizer "words.json"'))
    run = paren.load(tmp_path / "f.paren").run(out=tmp_path / "out")
    with pytest.raises(paren.ParenError) as caught:
        list(paren.sample(run.out, "abc dab"))
    assert (caught.value.code, caught.value.message) == (
        "E-API-003",
        "the tokenizer of the run has no token for c d",
    )
    assert "".join(paren.sample(run.out, "", 4))


def test_weights_go_where_they_can_be_written(language_run: paren.Run, tmp_path: Path) -> None:
    model = language_run.restore()
    model.save(tmp_path / "weights.safetensors")
    assert (tmp_path / "weights.safetensors").stat().st_size > 0
    with pytest.raises(paren.ParenError) as caught:
        model.save(tmp_path / "nowhere" / "weights.safetensors")
    assert caught.value.code == "E-RUN-005"


def test_public_names_are_all_there() -> None:
    for name in paren.__all__:
        assert getattr(paren, name) is not None
    assert dir(paren) == sorted(paren.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'netwerk'"):
        paren.netwerk  # noqa: B018  # the access is what is tested
