"""The command line as a user meets it: wrong keys, names and variables, streams, pipes, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paren_command import EXAMPLES, SMALL, paren, write_small

from paren.cli.app import main
from paren.inspect.stages import SHOWN
from paren.text.codes import CODES


def small_with(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (small_with(":batch batch", ":batchs 8"), "E-FORM-004: defrun has no option :batchs (did you mean batch?)"),
        (small_with(":steps 4", ":step 4"), "E-FORM-004: defrun has no option :step (did you mean steps?)"),
        (small_with(":fields", ":feilds"), "has no option :feilds (did you mean fields?)"),
        (small_with(":steps 4", ":steps 4 :split ((train 1))"), "E-FORM-004: defrun has no option :split"),
        (small_with(":batch batch", ":batch 8 :batch 9"), "E-CALL-005: :batch is given twice"),
        (small_with("(sgd :rate rate)", "(sgd :rat rate)"), "(did you mean rate?)"),
        (small_with("(linear x 4)", "(linaer x 4)"), "E-NAME-001: unknown name linaer (did you mean linear?)"),
        (small_with("smoke (batch 4)", "smoke (bacth 4)"), "(did you mean batch?)"),
        (small_with(":data table", ":data tabel"), "E-NAME-005: unknown data tabel (did you mean table?)"),
    ],
)
def test_a_misspelt_or_misplaced_key_is_no_default(tmp_path: Path, text: str, said: str) -> None:
    write_small(tmp_path, text)
    ended = paren(tmp_path, "run", "f.paren", "--out", "out")
    assert (ended.code, ended.out) == (1, "")
    assert said in ended.err
    assert ended.err.startswith("f.paren:")
    assert not (tmp_path / "out").exists()


def test_all_mistakes_of_a_file_come_in_one_run(tmp_path: Path) -> None:
    text = small_with(":batch batch", ":batchs 8 :losss 3").replace("(linear x 4)", "(linaer x 4)")
    write_small(tmp_path, text)
    ended = paren(tmp_path, "check", "f.paren", "--json")
    errors = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, ended.err) == (1, "")
    assert [error["code"] for error in errors] == ["E-NAME-001", "E-FORM-005", "E-FORM-004", "E-FORM-004"]
    assert all(error["place"]["path"] == "f.paren" for error in errors)


@pytest.mark.parametrize("form", ["defdata", "defmodel", "defrun"])
def test_a_form_that_is_missing(tmp_path: Path, form: str) -> None:
    begin = SMALL.index(f"({form}")
    end = SMALL.find("\n(", begin)
    write_small(tmp_path, SMALL[:begin] + (SMALL[end:] if end > 0 else ""))
    ended = paren(tmp_path, "check", "f.paren")
    assert ended.code == 1
    assert f"E-FORM-011: the file declares no {form.removeprefix('def')}: ({form} ...) is missing" in ended.err


@pytest.mark.parametrize("key", ["data", "loss", "optimizer", "batch", "steps", "evaluate-every"])
@pytest.mark.parametrize("value", ["foo", '"words"', "-1", "1.5", "[1 2]", "none", "(fn (a) a)", "auto"])
def test_a_value_of_the_wrong_kind_has_a_code_and_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    parts = {
        "data": ":data table",
        "loss": ":loss (cross-entropy (net x) label)",
        "optimizer": ":optimizer (sgd :rate rate)",
        "batch": ":batch batch",
        "steps": ":steps 4",
        "evaluate-every": ":evaluate-every 2",
    }
    path = write_small(tmp_path, small_with(parts[key], f":{key} {value}"))
    assert main(["check", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    for line in captured.out.splitlines():
        error = json.loads(line)
        assert error["code"] in CODES
        assert error["place"]["line"] >= 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("bath=4", "E-SET-001"),
        ("batch", "E-SET-003"),
        ("batch=", "E-SET-003"),
        ("=4", "E-SET-003"),
        ("batch=four", "E-SET-004"),
        ("batch=4.5", "E-SET-002"),
        ('batch="4"', "E-SET-002"),
        ("batch=(", "E-TXT-003"),
        ("batch=0", "E-FORM-006"),
    ],
)
def test_overrides_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str, code: str) -> None:
    path = write_small(tmp_path)
    assert main(["check", str(path), "--json", "--set", given]) == 1
    assert json.loads(capsys.readouterr().out)["code"] == code
    assert main(["check", str(path), "--json", "--set", "batch=2", "--set", "batch=4"]) == 1
    assert json.loads(capsys.readouterr().out)["message"] == "batch is set twice"


@pytest.mark.parametrize("name", ["PAREN_DEVIC", "PAREN_FOO", "PAREN_RANKS"])
def test_a_variable_that_paren_does_not_read(tmp_path: Path, name: str) -> None:
    write_small(tmp_path)
    ended = paren(tmp_path, "check", "f.paren", **{name: "1"})
    assert (ended.code, ended.out) == (1, "")
    assert name in ended.err


def test_cuda_is_refused_and_auto_says_why_it_is_the_cpu(tmp_path: Path) -> None:
    write_small(tmp_path)
    refused = paren(tmp_path, "run", "f.paren", "--device", "cuda")
    assert (refused.code, refused.out) == (1, "")
    assert re.match(r"E-DEV-02[0-9]: device cuda cannot be used: ", refused.err)  # which, depends on what is installed
    assert paren(tmp_path, "run", "f.paren", "--device", "cuda:x").err.startswith("E-DEV-002: unknown device cuda:x")
    chosen = paren(tmp_path, "run", "f.paren", "--device", "auto")
    assert (chosen.code, chosen.out) == (0, "outputs/f\n")
    assert chosen.err.splitlines()[0].startswith("device cpu: auto: the CPU, because ")


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(capsys: pytest.CaptureFixture[str], code: str) -> None:
    assert main(["help", code]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{code}: ")
    assert "What to do: " in text


@pytest.mark.parametrize("example", ["digits", "gpt", "regression"])
def test_every_stage_of_every_example_is_shown(capsys: pytest.CaptureFixture[str], example: str) -> None:
    for stage in SHOWN:
        assert main(["show", stage, str(EXAMPLES / f"{example}.paren"), "--variant", "smoke"]) == 0
        assert capsys.readouterr().out.strip()


def test_the_report_is_a_screen_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "regression.paren")
    assert main(["explain", file]) == 0
    table = capsys.readouterr().out
    assert table.startswith(f"{file}: 4,417 parameters, batch 64, float32, on cpu")
    assert main(["explain", file, "--json"]) == 0
    assert {graph["name"] for graph in json.loads(capsys.readouterr().out)["graphs"]} >= {"accumulate", "evaluate"}
    for arguments in (["help", "--json"], ["help", "check", "--json"], ["help", "E-DATA-001", "--json"]):
        assert main(arguments) == 0
        json.loads(capsys.readouterr().out)


def test_results_are_on_stdout_and_progress_on_stderr_without_colours(tmp_path: Path) -> None:
    write_small(tmp_path)
    ended = paren(tmp_path, "run", "f.paren", "--out", "a place", FORCE_COLOR="")
    assert (ended.code, ended.out) == (0, "a place\n")
    assert "step 4/4" in ended.err
    assert "\x1b" not in ended.out + ended.err


@pytest.mark.parametrize(("variables", "painted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_is_painted_unless_it_asks_not_to_be(
    tmp_path: Path, variables: dict[str, str], painted: bool
) -> None:
    (tmp_path / "f.paren").write_text("(def")
    reader, writer = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", **variables}
    command = [sys.executable, "-m", "paren", "check", "f.paren"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=writer, stderr=writer, env=environment)
    os.close(writer)
    shown = b""
    try:
        while piece := os.read(reader, 65536):
            shown += piece
    except OSError:  # the other end of the terminal was closed
        pass
    os.close(reader)
    assert process.wait() == 1
    assert b"E-TXT-003" in shown
    assert (b"\x1b" in shown) == painted


@pytest.mark.parametrize("arguments", [("show", "code"), ("show", "graph"), ("explain",)])
def test_a_reader_that_goes_away_is_no_fault(arguments: tuple[str, ...]) -> None:
    file = str(EXAMPLES / "gpt.paren")
    command = [sys.executable, "-m", "paren", *arguments, file, "--variant", "smoke"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_library_that_is_missing_has_a_code(tmp_path: Path) -> None:
    """Started with an import hook that hides one library."""
    write_small(tmp_path)
    for hidden, arguments, said in (
        ("llvmlite", ["run", "f.paren"], "E-CLI-006: the library llvmlite, which paren needs, is not installed"),
        (
            "tokenizers",
            ["run", str(EXAMPLES / "gpt.paren")],
            "E-CLI-006: the library tokenizers, which paren needs, is not installed",
        ),
        ("sklearn", ["run", str(EXAMPLES / "digits.paren")], "E-DATA-014: the digits need the library scikit-learn"),
        ("tensorboard", ["run", "f.paren", "--tensorboard"], "E-RUN-011: --tensorboard needs the package tensorboard"),
    ):
        program = f"""import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
from paren.cli.app import main
sys.exit(main({arguments!r}))
"""
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_format_and_help_load_no_compiler() -> None:
    """What starts quickly stays so: neither the language nor numpy is loaded."""
    program = """import sys
import paren
from paren.cli.app import main
main(["help", "E-DATA-001"])
loaded = {"numpy", "torch", "llvmlite", "paren.api", "paren.lang", "rich"} & set(sys.modules)
sys.exit(f"loaded {loaded}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("given", ["width=999999999996", "vocab=99999999999", "layers=99999999999"])
def test_sizes_beyond_all_bounds_are_mistakes_of_the_file(capsys: pytest.CaptureFixture[str], given: str) -> None:
    file = str(EXAMPLES / "gpt.paren")
    assert main(["check", file, "--json", "--set", given]) == 1
    captured = capsys.readouterr()
    errors = [json.loads(line) for line in captured.out.splitlines()]
    assert captured.err == ""
    assert all(error["place"]["path"] == file for error in errors)
    assert {error["code"] for error in errors} <= {"E-TYPE-006", "E-CALL-007"}


def test_a_run_whose_checkpoints_are_elsewhere_is_sampled(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words\n" * 40)
    (tmp_path / "f.paren").write_text(
        """(defdata text (text-files "*.txt" :tokenizer bytes :length 8 :split ((train 1))))
(defmodel net ((tokens int32 [8])) (linear (take (param e [256 4] :init (normal 0.1)) tokens) 256))
(defrun :data text :loss (cross-entropy (net tokens) targets) :optimizer (sgd :rate 0.1) :batch 4 :steps 2)
"""
    )
    assert paren(tmp_path, "run", "f.paren", "--out", "out", "--checkpoints", "else where").code == 0
    assert paren(tmp_path, "sample", "out", "--length", "5").err.startswith("E-CKPT-001: ")
    sampled = paren(tmp_path, "sample", "out", "--length", "5", "--checkpoints", "else where")
    assert (sampled.code, sampled.err) == (0, "")


def test_another_number_of_threads_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    write_small(tmp_path)
    for out, threads in (("one", ("1", "1")), ("both", ("1", "3"))):
        given = ("run", "f.paren", "--out", out)
        assert paren(tmp_path, *given, "--steps", "2", "--threads", threads[0]).code == 0
        resumed = paren(tmp_path, *given, "--resume", "latest", "--threads", threads[1])
        assert resumed.code == 0
        assert "bit-exact" not in resumed.err
    one, both = (sorted((tmp_path / out).rglob("*.safetensors")) for out in ("one", "both"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in both]
    assert one
