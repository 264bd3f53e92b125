"""The generated pages are those that the code gives, and the registry is complete and well formed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from paren.text.codes import CODES

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_code_that_is_raised_is_registered_and_the_other_way_round() -> None:
    raised = set()
    for path in (ROOT / "paren").rglob("*.py"):
        if not path.name.startswith("codes"):
            raised |= set(re.findall(r"\bE-[A-Z][A-Z0-9]*-\d{3}\b", path.read_text(encoding="utf-8")))
    assert sorted(raised - set(CODES)) == []
    assert sorted(set(CODES) - raised) == []


def test_entries_are_sentences() -> None:
    for code in CODES.values():
        assert re.fullmatch(r"E-[A-Z][A-Z0-9]*-\d{3}", code.code)
        assert code.title, code.code
        assert not code.title.endswith("."), code.code
        assert code.cause.endswith("."), code.code
        assert code.fix.endswith("."), code.code
