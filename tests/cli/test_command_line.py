"""The command line on its own: exit codes, streams, wrong use, errors for people and as JSON."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paren.cli import formatting, machine
from paren.cli.app import main
from paren.text.errors import InternalError, Note, ParenError, ParenErrors
from paren.text.source import Source, Span

REGRESSION = Path(__file__).parents[2] / "examples" / "regression.paren"
Outcome = tuple[int, str, str]
Run = Callable[..., Outcome]


@pytest.fixture
def paren(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in list(os.environ):
        if name.startswith("PAREN_"):
            monkeypatch.delenv(name)

    def run(*arguments: str) -> Outcome:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def wrong_use(message: str, command: str = "paren") -> Outcome:
    return 2, "", f"E-CLI-001: {message}\n  fix: {command} --help\n"


def test_wrong_use_is_exit_code_2_and_says_what_may_be_meant(paren: Run, tmp_path: Path) -> None:
    file = tmp_path / "network"
    file.touch()
    assert paren("chekc", "x.paren") == wrong_use("no command `chekc` (did you mean check?)")
    assert paren("xyzzy") == wrong_use("no command `xyzzy`")
    assert paren("gpt.paren") == wrong_use("no command `gpt.paren` (did you mean paren run gpt.paren?)")
    assert paren(str(file)) == wrong_use(f"no command `{file}` (did you mean paren run {file}?)")
    assert paren("run", "x.paren", "--varient", "a") == wrong_use(
        "no option `--varient` (did you mean --variant?)", "paren run"
    )
    assert paren("format", "--xyzzy") == wrong_use("no option `--xyzzy`", "paren format")
    assert paren("show", "grap", "x.paren") == wrong_use(
        "no stage `grap` (did you mean graph?); the stages are forms, program, graph, fused, plan, code", "paren show"
    )
    assert paren("check")[0] == 2
    assert paren("run", "x.paren", "--steps", "0")[0] == 2
    assert paren("run", "x.paren", "--steps", "many")[0] == 2
    assert paren("format", "--check")[0] == 2


def test_no_command_shows_help_on_stderr(paren: Run) -> None:
    code, out, err = paren()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: paren")


def test_help_is_a_result(paren: Run) -> None:
    for arguments in (("--help",), ("help",), ("run", "--help"), ("help", "run")):
        code, out, err = paren(*arguments)
        assert (code, err) == (0, "")
        assert out.startswith("Usage: paren")


def test_the_version(paren: Run) -> None:
    code, out, err = paren("--version")
    assert (code, err) == (0, "")
    assert out.startswith("paren 0.")


def test_help_explains_a_code_in_any_case(paren: Run) -> None:
    expected = (
        "E-TXT-011: a wrong keyword\n\n"
        "A keyword is one colon and a name without a space between them, such as :rate.\n\n"
        "What to do: Write the name right after the colon.\n"
    )
    assert paren("help", "E-TXT-011") == (0, expected, "")
    assert paren("help", "e-txt-011") == (0, expected, "")
    code, out, _ = paren("help", "E-TXT-011", "--json")
    assert code == 0
    assert json.loads(out) == {
        "code": "E-TXT-011",
        "title": "a wrong keyword",
        "cause": "A keyword is one colon and a name without a space between them, such as :rate.",
        "fix": "Write the name right after the colon.",
    }


def test_help_on_nothing_known(paren: Run) -> None:
    fix = "  fix: docs/errors.md lists all codes, paren --help the commands\n"
    assert paren("help", "frmat") == (
        1,
        "",
        f"E-CLI-004: no error code or command `frmat` (did you mean format?)\n{fix}",
    )
    assert paren("help", "zz") == (1, "", f"E-CLI-004: no error code or command `zz`\n{fix}")
    assert "(did you mean E-TXT-011?)" in paren("help", "E-TXT11")[2]


def test_an_unknown_variable_stops_every_command_but_help_and_doctor(
    paren: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAREN_MEMROY", "1GiB")
    code, out, err = paren("format", "x.paren")
    assert (code, out) == (1, "")
    assert err.startswith("E-ENV-001: unknown environment variable PAREN_MEMROY (did you mean PAREN_MEMORY?)\n")
    assert paren("help", "E-ENV-001")[0] == 0


def _mistakes() -> ParenErrors:
    source = Source("gpt.paren", "(def a 1)\n(def θ b)\n")
    first = ParenError("E-TXT-001", "first", fix="do this")
    second = ParenError(
        "E-TXT-002", "second [red]", Span(source, 17, 18), notes=[Note("see", Span(source, 5, 6)), Note("so")]
    )
    return ParenErrors([first, second])


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(path: Path, *, write: bool) -> bool:
        raise error

    monkeypatch.setattr(formatting, "_format_file", fail)


def test_all_mistakes_are_shown_with_their_places(paren: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, _mistakes())
    assert paren("format", "x") == (
        1,
        "",
        "E-TXT-001: first\n"
        "  fix: do this\n"
        "\n"
        "gpt.paren:2:8: E-TXT-002: second [red]\n"
        "  (def θ b)\n"
        "         ^\n"
        "  note: see (gpt.paren:1:6)\n"
        "  note: so\n"
        "\n"
        "2 mistakes\n",
    )


def test_mistakes_as_json_are_one_object_a_line(paren: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(checkpoints: str | None) -> None:
        raise _mistakes()

    monkeypatch.setattr("paren.inspect.doctor.examine", fail)
    code, out, err = paren("doctor", "--json")
    assert (code, err) == (1, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"code": "E-TXT-001", "message": "first", "place": None, "notes": [], "fix": "do this"},
        {
            "code": "E-TXT-002",
            "message": "second [red]",
            "place": {"path": "gpt.paren", "line": 2, "column": 8},
            "notes": [
                {"message": "see", "place": {"path": "gpt.paren", "line": 1, "column": 6}},
                {"message": "so", "place": None},
            ],
            "fix": None,
        },
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InternalError("fuse", "a node is lost"), "internal error in fuse: a node is lost"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (KeyError("name"), "KeyError: 'name'"),
        (OSError(errno.EINVAL, "Invalid argument"), "OSError: [Errno 22] Invalid argument"),
    ],
)
def test_a_fault_of_paren_shows_its_traceback(
    paren: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    _raising(monkeypatch, error)
    code, out, err = paren("format", "x")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith(
        f"\n{text}\nThis is a fault of paren, not of your file. Please report it with the lines above.\n"
    )


def test_a_refusal_of_the_system_has_a_code_and_no_traceback(paren: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, OSError(errno.ELOOP, "Too many levels of symbolic links", "outputs/x"))
    message = "E-CLI-002: the system refused a file operation: too many levels of symbolic links (outputs/x)\n"
    assert paren("format", "x") == (1, "", message)
    _raising(monkeypatch, OSError(errno.ENOSPC, "No space left on device", "outputs/x"))
    assert paren("format", "x") == (
        1,
        "",
        "E-CLI-002: the system refused a file operation: no space left on device (outputs/x)\n",
    )


def test_memory_that_ran_out_has_a_code(paren: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, MemoryError("Unable to allocate 3 TiB"))
    assert paren("format", "x") == (1, "", "E-CLI-005: memory ran out: Unable to allocate 3 TiB\n")


def test_an_interruption_is_exit_code_130(paren: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, KeyboardInterrupt())
    assert paren("format", "x") == (130, "", "interrupted\n")


DESTROYED = """\
import signal, sys
import paren.__main__
import paren.cli.app

class Library:
    def __del__(self):
        signal.raise_signal(signal.{signal})
        {more}

def main():
    library = Library()
    del library
    print("went on")
    return 0

paren.cli.app.main = main
sys.exit(paren.__main__.main())
"""


def test_an_interrupt_ends_the_process_even_while_objects_are_destroyed() -> None:
    """What Python would only show as `Exception ignored in`, traceback and all."""
    code = DESTROYED.format(signal="SIGINT", more="")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_other_errors_while_objects_are_destroyed_are_shown() -> None:
    code = DESTROYED.format(signal="SIGCHLD", more="raise ValueError('lost')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert "ValueError: lost" in done.stderr


def run_process(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PAREN_", "NO_COLOR"))}
    return subprocess.run(
        [sys.executable, "-m", "paren", *arguments],
        env=environment | changes,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_with_a_mistake_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "wrong.paren"
    file.write_text("(def a 1.2.3)\n(def b “x”)")
    done = run_process("format", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{file}:1:8: E-TXT-009: `1.2.3` is not a number\n"
        "  (def a 1.2.3)\n"
        "         ^^^^^\n"
        "  fix: numbers are written 12, -3, 0.5, 6e-4 or 0x10; a name does not begin with a digit\n"
        "\n"
        f"{file}:2:8: E-TXT-010: `“` (U+201C, left double quotation mark) does not quote a string\n"
        "  (def b “x”)\n"
        "         ^^^\n"
        '  fix: write strings with the straight quote `"`; word processors and web pages change it\n'
        "\n"
        "2 mistakes\n"
    )


def test_colours_are_used_on_request_only(tmp_path: Path) -> None:
    file = tmp_path / "wrong.paren"
    file.write_text("(")
    assert "\x1b[" in run_process("format", str(file), FORCE_COLOR="1").stderr
    assert "\x1b[" not in run_process("format", str(file)).stderr
    assert "\x1b[3" not in run_process("format", str(file), FORCE_COLOR="1", NO_COLOR="1").stderr


def test_an_encoding_without_the_characters_is_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "wrong.paren"
    file.write_bytes("“x”".encode())
    done = run_process("format", str(file), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 1
    assert "\\u201c" in done.stderr


def test_streams_that_are_closed_take_no_file() -> None:
    """What is written to stderr would go into the file that got its number."""
    show = "import os, sys; print(*(os.path.basename(os.readlink(f'/proc/self/fd/{n}')) for n in (0, 2)))"
    code = f"import sys; from paren.__main__ import main; sys.argv = ['paren', '--version']; main(); {show}"
    line = f'exec "{sys.executable}" -c "{code}" <&- 2>&-'
    said = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "null null"


def test_a_pipe_that_is_closed_is_quiet() -> None:
    script = f"{sys.executable} -m paren help E-TXT-010; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({script}) | true"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert done.stderr in ("141\n", "0\n")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "2>&1 >/dev/null | true"])
def test_closed_streams_are_quiet(redirection: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m paren help nothing {redirection}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception" not in done.stdout + done.stderr


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&1 >/dev/null | true", "2>&-"])
def test_a_training_whose_messages_cannot_be_shown_goes_on(redirection: str, tmp_path: Path) -> None:
    run = f"{sys.executable} -m paren run {REGRESSION} --variant smoke --out {tmp_path}/out {redirection}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", run], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "out" / "status.json").read_text())["state"] == "complete"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])  # what data functions print goes to stderr
def test_user_code_that_closes_its_stream_silences_nobody(stream: str, tmp_path: Path) -> None:
    shutil.copy(REGRESSION, tmp_path)
    text = REGRESSION.with_suffix(".py").read_text()
    (tmp_path / "regression.py").write_text(text + f"\n\nimport sys\n\nprint('loaded')\nsys.{stream}.close()\n")
    file = str(tmp_path / "regression.paren")
    done = run_process("run", file, "--variant", "smoke", "--steps", "1", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n")
    said = done.stderr.splitlines()
    assert "loaded" in said
    assert said[-1] == "saved at step 1 of 600: --resume latest goes on from there"


def test_a_result_that_cannot_be_written_is_an_error_of_a_run_that_stands(tmp_path: Path) -> None:
    run = f"{sys.executable} -m paren run {REGRESSION} --variant smoke --out {tmp_path}/out >/dev/full"
    done = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "E-CLI-002: the system refused a file operation: no space left on device (stdout)"
    )
    assert json.loads((tmp_path / "out" / "status.json").read_text())["state"] == "complete"


def test_checking_loads_no_heavy_module() -> None:
    heavy = {"torch", "llvmlite", "rich.console", "matplotlib", "sklearn", "pyarrow"}
    code = f"import sys, paren.cli.app; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert machine.__doc__
