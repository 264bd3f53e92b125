"""metrics.jsonl, what reads it, and what shows it."""

from __future__ import annotations

import io
import json
import math
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_fakes import Trial, run_form

from paren.runtime.memory import resident_bytes
from paren.text.errors import ParenError
from paren.text.size import show_bytes
from paren.train.metrics import MetricsWriter, encode, encode_all
from paren.train.progress import Bar, PlainLines, Silent, view_for
from paren.train.read_run import read_annotations, read_metrics

NUMBERS = st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans())


@given(st.dictionaries(st.text(), st.one_of(NUMBERS, st.lists(NUMBERS), st.dictionaries(st.text(), NUMBERS))))
def test_a_line_is_valid_json_and_nothing_is_filtered(record):
    def refuse(text: str) -> None:
        raise AssertionError(text)

    line = encode(record)
    assert line.count(b"\n") == 1
    read = json.loads(line, parse_constant=refuse)
    assert read.keys() == record.keys()


@given(
    st.lists(st.dictionaries(st.sampled_from(["step", "loss", "\N{SNOWMAN} \udc80"]), st.integers(0, 4)), max_size=8)
)
def test_lines_that_are_written_together_are_those_that_are_written_alone(chosen):
    values = [1, 1.0, -0.0, 0.1, True]  # each the same object in all lines
    records = [{name: values[number] for name, number in each.items()} for each in chosen]
    assert encode_all(records) == b"".join(map(encode, records))


@given(st.lists(st.dictionaries(st.text(max_size=3), NUMBERS), max_size=4))
def test_lines_of_anything_are_written_together(records):
    assert encode_all(records * 2) == b"".join(map(encode, records * 2))


def test_numbers_that_are_not_finite_are_written_as_words():
    line = encode({"a": math.nan, "b": math.inf, "c": -math.inf, "d": [math.nan, 1.5]})
    assert line == b'{"a": "nan", "b": "inf", "c": "-inf", "d": ["nan", 1.5]}\n'


def write(out: Path, *lines: str) -> None:
    (out / "metrics.jsonl").write_text("".join(lines))


def test_columns_have_nan_where_a_line_lacks_the_series(tmp_path):
    write(
        tmp_path,
        '{"step": 0, "annotation": "memory", "planned": 4}\n',
        '{"step": 1, "loss": 2.5}\n',
        '{"step": 2, "loss": "nan", "evaluation/loss": "-inf"}\n',
        '{"step": 2, "evaluation/error": 3}\n',
        '{"step": 3, "lo',
    )
    columns = read_metrics(tmp_path)
    assert list(columns) == ["step", "loss", "evaluation/loss", "evaluation/error"]
    np.testing.assert_array_equal(columns["step"], [1, 2])
    np.testing.assert_array_equal(columns["loss"], [2.5, np.nan])
    np.testing.assert_array_equal(columns["evaluation/loss"], [np.nan, -np.inf])
    np.testing.assert_array_equal(columns["evaluation/error"], [np.nan, 3])
    assert all(column.dtype == np.float64 for column in columns.values())
    assert read_annotations(tmp_path) == [{"step": 0, "annotation": "memory", "planned": 4}]


def test_metrics_that_cannot_be_read(tmp_path):
    with pytest.raises(ParenError) as caught:
        read_metrics(tmp_path)
    path = tmp_path / "metrics.jsonl"
    assert (caught.value.code, caught.value.message) == (
        "E-RUN-014",
        f"{path} cannot be read (no such file or directory)",
    )
    for line in ("{\n", "[]\n", "{}\n"):
        write(tmp_path, '{"step": 1, "loss": 2.5}\n', line)
        with pytest.raises(ParenError) as caught:
            read_metrics(tmp_path)
        assert (caught.value.code, caught.value.message) == ("E-RUN-014", f"line 2 of {path} is damaged")


def test_a_disk_that_refuses_a_line(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, 0) as writer, Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(writer, "_file", full)
        with pytest.raises(ParenError) as caught:
            writer.write({"step": 1})
        monkeypatch.undo()
    assert caught.value.code == "E-RUN-012"
    assert caught.value.message == f"{path} could not be written (no space left on device)"


# ---- progress ------------------------------------------------------------------------------------------------------


def test_plain_lines_come_at_a_sensible_rhythm(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("paren.train.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    view = PlainLines(stream)
    view.begin(0, 1000)
    for step in range(1, 1001):
        now[0] += 0.5
        record = {"step": step, "loss": 2.5, "rate": 6e-4, "tokens-per-second": 12345.6}
        if step == 400:
            record["evaluation/loss"] = 2.25
        view.step(step, record)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 1/1000  loss 2.5  rate 0.0006  tokens-per-second 12,346"
    assert "step 400/1000  loss 2.5  evaluation/loss 2.25  rate 0.0006  tokens-per-second 12,346" in lines
    assert lines[-1].startswith("step 1000/1000")
    assert 15 < len(lines) < 30


def test_where_a_loss_has_one_value_an_example_the_speed_is_in_examples():
    for tokens, shown in ((12345.6, "examples-per-second 12,346"), (98765.4, "tokens-per-second 98,765")):
        stream = io.StringIO()
        PlainLines(stream).step(1, {"loss": 2.5, "tokens-per-second": tokens, "examples-per-second": 12345.6})
        assert stream.getvalue() == f"step 1/0  loss 2.5  {shown}\n"


def test_every_metric_of_an_evaluation_is_shown():
    stream = io.StringIO()
    view = PlainLines(stream)
    view.begin(0, 9)
    view.step(9, {"step": 9, "loss": 2.5, "rate": 0.1, "evaluation/loss": 2.25, "evaluation/accuracy": 0.5})
    assert stream.getvalue() == "step 9/9  loss 2.5  evaluation/loss 2.25  evaluation/accuracy 0.5  rate 0.1\n"


def test_plain_lines_say_where_a_resume_goes_on():
    stream = io.StringIO()
    view = PlainLines(stream)
    view.begin(5, 9)
    view.phase("saving")
    view.notice("not bit-exact")
    view.end()
    assert stream.getvalue() == "going on at step 5 of 9\nnot bit-exact\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines():
    assert isinstance(view_for(io.StringIO()), PlainLines)
    stream = Terminal()
    view = view_for(stream)
    assert isinstance(view, Bar)
    view.begin(0, 4)
    view.phase("evaluating")
    view.step(2, {"step": 2, "loss": 1.5, "evaluation/loss": 1.25})
    view.step(3, {"step": 3, "loss": math.nan})
    view.phase("")
    view.notice("[not] markup")
    view.end()
    assert "3/4" in stream.getvalue()
    assert "[not] markup" in stream.getvalue()
    assert "evaluation/loss 1.25" in stream.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_bar_keeps_its_counter_and_the_time_left_on_a_narrow_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    view = Bar(stream)
    view.begin(0, 2000)
    view.phase("evaluating")
    record = {"loss": 5.2626, "evaluation/loss": 4.589, "rate": 0.0015, "tokens-per-second": 17823.4}
    view.step(1234, {"step": 1234, **record})
    view.end()
    last = stream.getvalue().rpartition("evaluating")[2]
    assert "1234/2000 loss 5.2626" in last
    assert "…" not in last
    assert ("evaluation/loss 4.589" in last) == (columns >= 80)
    assert ("tokens-per-second 17,823" in last) == (columns >= 120)


def test_silence_is_silent(capsys):
    view = Silent()
    view.begin(0, 1), view.step(1, {}), view.phase("x"), view.notice("y"), view.end()
    assert capsys.readouterr() == ("", "")


# ---- TensorBoard ---------------------------------------------------------------------------------------------------


def events(out: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(out / "tensorboard"))
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


@pytest.mark.filterwarnings("default")
def test_event_files_hold_the_series_and_a_resume_drops_what_it_repeats(tmp_path):
    trial = Trial(tmp_path / "run", run_form(checkpoint_every=4))
    trial.before = lambda name, number: (_ for _ in ()).throw(KeyError) if (name, number) == ("update", 7) else None
    with pytest.raises(KeyError):
        trial.start(tensorboard=True)
    trial.before = lambda name, number: None
    trial.start(tensorboard=True, resume="latest")
    columns, series = read_metrics(trial.out), events(trial.out)
    assert series.keys() == columns.keys() - {"step"}
    for name in ("loss", "evaluation/loss", "runtime/step-ms"):
        there = ~np.isnan(columns[name])
        assert [step for step, _ in series[name]] == columns["step"][there].tolist()
        np.testing.assert_allclose([value for _, value in series[name]], columns[name][there], rtol=1e-6)


def test_event_files_need_no_torch():
    code = (
        "import sys; from pathlib import Path; from paren.train.event_files import EventFiles; import tempfile\n"
        "with EventFiles(Path(tempfile.mkdtemp()), 0): pass\n"
        "print('torch' in sys.modules, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr


def test_a_missing_tensorboard_is_an_error_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ParenError) as caught:
        Trial(tmp_path / "run").start(tensorboard=True)
    assert caught.value.code == "E-RUN-011"
    assert caught.value.message == "--tensorboard needs the package tensorboard, which is not installed"
    assert caught.value.fix == "pip install 'paren[tensorboard]'"


# ---- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (5 << 30, "5 GiB"),
        (10**18, "909495 TiB"),
    ],
)
def test_sizes_are_shown_in_three_digits(count, text):
    assert show_bytes(count) == text


def test_resident_memory_grows_with_what_is_touched():
    """Numpy's own memory may have been touched by what ran before, so this is memory of its own."""
    size = 1 << 23
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        before = resident_bytes()
        for page in range(0, size, mmap.PAGESIZE):
            fresh[page] = 1
        assert resident_bytes() - before > size // 2
