"""Text is read the same whatever its line ends, mark or locale, and wrong bytes are named with their place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from data_forms import SPAN
from hypothesis import given, settings
from hypothesis import strategies as st

import paren.data.text as text_module
from paren.data.text import read_text
from paren.text.errors import ParenError


def read(path: Path) -> str:
    return "".join(read_text(path, path.name, SPAN))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 3)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.usefixtures("small_blocks")
def test_line_ends_and_mark_do_not_matter(tmp_path: Path, ends: str, mark: bytes) -> None:
    path = tmp_path / "größe.txt"
    path.write_bytes(mark + ends.join(["één", "", "δύο ☃", "", ""]).encode())
    assert read(path) == "één\n\nδύο ☃\n\n"


@settings(max_examples=60)
@given(st.text(st.sampled_from("a\r\né☃𝄞"), max_size=30), st.integers(1, 7))
def test_pieces_of_any_size_give_the_same_text(tmp_path_factory: pytest.TempPathFactory, text: str, block: int) -> None:
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "BLOCK", block)
        assert read(path) == text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize(
    ("data", "place", "byte", "reason"),
    [
        (b"\xff", "1:1", "ff", "invalid start byte"),
        (b"ab\ncd\xe9", "2:3", "e9", "unexpected end of data"),
        (b"\xef\xbb\xbfab\xffx", "1:3", "ff", "invalid start byte"),
        ("é☃".encode() + b"\r\n\r\n\xc3(", "3:1", "c3", "invalid continuation byte"),
        (b"a\r" + b"b\r\x80", "3:1", "80", "invalid start byte"),
        (b"\xed\xa0\x80", "1:1", "ed", "invalid continuation byte"),
        (b"x" * 300_000 + b"\n" + "é".encode() * 7 + b"\xfe", "2:8", "fe", "invalid start byte"),
    ],
)
@pytest.mark.parametrize("block", [1, 4, 1 << 18])
def test_wrong_bytes_have_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, place: str, byte: str, reason: str, block: int
) -> None:
    if len(data) > 1000 and block < 1000:
        block = 4093
    monkeypatch.setattr(text_module, "BLOCK", block)
    path = tmp_path / "t.txt"
    path.write_bytes(data)
    with pytest.raises(ParenError) as caught:
        read(path)
    error = caught.value
    assert (error.code, error.message) == ("E-DATA-002", f"t.txt:{place}: the byte 0x{byte} is not UTF-8 ({reason})")
    assert error.fix == "save the file as UTF-8"


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from data_forms import data_form, read_all
from paren.data.open import open_data
dataset = open_data(data_form("text-files", "*.txt", length=2), root=Path(sys.argv[2]), cache=Path(sys.argv[3]))
print(dataset.identity, read_all(dataset)["tokens"].tolist())
"""


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    """Case D10: the same text and digest under LC_ALL=C, with a path and contents that are not ASCII."""
    folder = tmp_path / "données"
    folder.mkdir()
    (folder / "größe.txt").write_bytes("naïve ☃".encode())
    outputs = set()
    plain_c = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for name, changes in enumerate(({}, {"LC_ALL": "C"}, plain_c)):
        environment = {**os.environ, **changes}
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(folder), str(tmp_path / f"c{name}")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
