"""The doctor: its rows on this machine, and each finding with its code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paren.cli.app import main
from paren.inspect import doctor, installation, machine
from paren.inspect.examination import FAIL, NOTE, PASS, Examination, Row
from paren.runtime.memory import Available
from paren.text.codes import CODES


@pytest.fixture(scope="module")
def examination() -> Examination:
    return doctor.examine()


def test_a_machine_that_runs_the_tests_is_usable(examination: Examination) -> None:
    assert examination.usable
    names = [row.name for row in examination.rows]
    assert names[:2] == ["python", "numpy"]
    assert {"torch", "machine code", "matrix products", "threads", "free memory", "cache folder", "cuda: torch"} <= set(
        names
    )
    (speed,) = [row for row in examination.rows if row.name == "speed"]
    assert re.fullmatch(r"float32 products \d+ GFLOP/s, .*memory \d+ GB/s", speed.detail)


def test_every_row_that_did_not_pass_has_a_registered_code(examination: Examination) -> None:
    for row in examination.rows:
        assert (row.code is None) == (row.state == PASS)
        assert row.code is None or row.code in CODES


def test_python_and_torch_versions() -> None:
    assert installation.check_python((3, 10, 4)).code == "E-DEV-101"
    assert installation.check_python((3, 10, 4)).detail.endswith("; at least 3.11 is needed")
    assert installation.check_python((3, 14, 0)).state == PASS
    assert installation.judge_torch("2.9.1+cpu", None) == Row(
        "torch", FAIL, "2.9.1+cpu; at least 2.10 is needed", "E-DEV-103"
    )
    assert installation.judge_torch("2.10.0", None).state == PASS
    assert installation.judge_torch("2.11.0", "6.4") == Row(
        "torch", FAIL, "2.11.0 is built for ROCm 6.4, which is not supported yet", "E-DEV-103"
    )


def test_packages_that_are_missing() -> None:
    assert installation.check_package("no_such_package") == Row(
        "no_such_package", FAIL, "not installed; pip install no_such_package", "E-DEV-102"
    )
    assert installation.check_optional("no_such_module", "its-package", "parquet", "Parquet files") == Row(
        "its-package", NOTE, "not installed, needed for Parquet files; pip install 'paren[parquet]'", "E-DEV-109"
    )


def test_an_incomplete_installation_is_all_that_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PACKAGES", ("numpy", "no_such_package"))
    examination = doctor.examine()
    assert not examination.usable
    assert [row.name for row in examination.rows] == ["python", "numpy", "no_such_package", "torch"]


def test_fall_backs_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_openmp", lambda: None)
    assert machine.check_threads().code == "E-DEV-106"
    assert machine.check_threads().state == NOTE


def test_little_memory_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine, "available_memory", lambda: Available(2**29, 2**32, "memory limit of the control group")
    )
    assert machine.check_memory(2**32) == Row(
        "free memory",
        NOTE,
        "0.5 GiB, the memory limit of the control group; PAREN_MEMORY plans for 4.0 GiB",
        "E-DEV-107",
    )


def test_a_compiler_that_fails_or_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_TINY", "define i64 @answer(i64 %x) {\n ret i64 %x\n}\n")
    assert machine.check_compiler() == Row("machine code", FAIL, "6 times 7 gave 7", "E-DEV-104")
    monkeypatch.setattr(machine, "_TINY", "no text of LLVM")
    assert machine.check_compiler().code == "E-DEV-104"


def test_a_cache_folder_that_cannot_be_made_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    row = machine.check_cache(tmp_path / "file" / "cache")
    assert (row.state, row.code) == (NOTE, "E-DEV-108")
    assert machine.check_cache(tmp_path / "new" / "cache").state == PASS


def test_the_device_that_would_be_used_is_opened() -> None:
    assert machine.check_device("reference").state == PASS
    assert machine.check_device("cpu").state == PASS
    assert str(machine.check_device("cuda:9").code).startswith("E-DEV-0")
    assert machine.check_device("gpu") == Row("device", FAIL, "unknown device gpu (did you mean cuda?)", "E-DEV-002")


def test_the_command_prints_a_table_or_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (Row("python", PASS, "3.11"), Row("x", NOTE, "needs paren[parquet]", "E-DEV-109"))
    monkeypatch.setattr(doctor, "examine", lambda checkpoints: Examination(rows))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "check   result     detail",
        "python  PASS       3.11",
        "x       E-DEV-109  needs paren[parquet]",
    ]
    monkeypatch.setattr(
        doctor, "examine", lambda checkpoints: Examination((*rows, Row("torch", FAIL, "gone", "E-DEV-103")))
    )
    assert main(["doctor", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["usable"] is False
    assert result["rows"][2] == {"name": "torch", "state": "FAIL", "detail": "gone", "code": "E-DEV-103"}


def test_a_wrong_environment_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_DEVCE", "cpu")
    environment, row = doctor.read_variables()
    assert environment is None
    assert (row.state, row.code) == (FAIL, "E-ENV-001")


@pytest.mark.parametrize(
    ("variables", "row"),
    [
        ({}, Row("ranks", PASS, "1 rank")),
        (
            {"PAREN_NODES": "2", "PAREN_NODE_RANK": "1", "PAREN_RENDEZVOUS": "node-0:29500", "PAREN_DEVICES": "0"},
            Row("ranks", PASS, "2 ranks, node 1 of 2, here on devices 0"),
        ),
        (
            {"PAREN_DEVICES": "0,0"},
            Row("ranks", FAIL, "PAREN_DEVICES is `0,0`, which names device 0 more than once", "E-DP-001"),
        ),
        ({"PAREN_NODES": "two"}, Row("ranks", FAIL, "PAREN_NODES is `two`, which is no count of nodes", "E-DP-005")),
    ],
)
def test_ranks_are_what_the_variables_say(variables: dict[str, str], row: Row) -> None:
    assert machine.check_ranks(variables, "cpu") == row


def test_a_place_for_checkpoints_is_looked_at(tmp_path: Path) -> None:
    """A bucket is seen in the tests of buckets; here is what the row says."""
    place = tmp_path / "place"
    assert machine.check_place(str(place)) == Row(
        "checkpoints", PASS, f"{place} can be written, read, listed and deleted"
    )
    fault = "'gs://bucket/x' is no place for checkpoints: of addresses, only s3:// is known"
    assert machine.check_place("gs://bucket/x") == Row("checkpoints", FAIL, fault, "E-S3-002")
