"""`paren format`: files are laid out as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from paren.cli.app import main

UNLIKE = "(def a\r\n  (f  1))  ; why\r\n"
LAID_OUT = "(def a\n  (f 1))  ; why\n"


def test_a_file_is_laid_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.paren"
    file.write_bytes(b"\xef\xbb\xbf" + UNLIKE.encode())
    file.chmod(0o640)
    assert main(["format", str(file)]) == 0
    assert file.read_bytes() == LAID_OUT.encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert capsys.readouterr() == ("", f"{file}: laid out\n")
    assert main(["format", str(file)]) == 0
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == [file]


def test_the_examples_are_laid_out() -> None:
    examples = Path(__file__).parents[2] / "examples"
    assert main(["format", "--check", *map(str, sorted(examples.glob("*.paren")))]) == 0


def test_checking_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unlike, same = tmp_path / "a.paren", tmp_path / "b.paren"
    unlike.write_bytes(UNLIKE.encode())
    same.write_bytes(LAID_OUT.encode())
    assert main(["format", "--check", str(unlike), str(same)]) == 1
    assert unlike.read_bytes() == UNLIKE.encode()
    assert capsys.readouterr() == (
        f"{unlike}\n",
        "E-CLI-003: 1 file is not laid out\n  fix: paren format FILE... does it\n",
    )
    assert main(["format", "--check", str(same)]) == 0


def test_a_wrong_file_is_not_touched_and_the_others_are_laid_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, unlike = tmp_path / "a.paren", tmp_path / "b.paren"
    wrong.write_text("(def")
    unlike.write_text(UNLIKE)
    assert main(["format", str(wrong), str(unlike), str(tmp_path / "none.paren")]) == 1
    assert wrong.read_text() == "(def"
    assert unlike.read_text() == LAID_OUT
    err = capsys.readouterr().err
    assert f"{wrong}:1:1: E-TXT-003: `(` is not closed" in err
    assert f"E-TXT-001: {tmp_path / 'none.paren'} does not exist" in err


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "a.paren", tmp_path / "link.paren"
    file.write_text(UNLIKE)
    link.symlink_to(file)
    assert main(["format", str(link)]) == 0
    assert link.is_symlink()
    assert file.read_text() == LAID_OUT
