"""What a function imports from elsewhere than its folder counts: by version, or where none tells, by its code."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from experiment.studies import write_study

from paren.experiment.python.functions import Functions
from paren.experiment.python.packages import version_of
from paren.experiment.store.recipe import versions
from paren.lang.elaborate import elaborate


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the search path."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    version_of.cache_clear()
    yield folder
    version_of.cache_clear()


def now(package: str) -> str | None:
    version_of.cache_clear()
    return version_of(package)


def test_installed_packages_count_by_their_version() -> None:
    assert version_of("numpy") == metadata.version("numpy")
    assert version_of("yaml") == metadata.version("pyyaml")
    assert version_of("dateutil") == metadata.version("python-dateutil")
    assert version_of("math") is None
    assert version_of("is_not_there") is None


def test_a_module_that_was_never_installed_counts_by_its_code(elsewhere: Path) -> None:
    (elsewhere / "law.py").write_text("def constant():\n    import deeper.inner, numpy\n    return deeper.inner.C\n")
    (elsewhere / "deeper").mkdir()
    (elsewhere / "deeper" / "inner.py").write_text("import law\nC = 1\n")
    first = now("law")
    assert first is not None
    assert now("law") == first
    (elsewhere / "deeper" / "inner.py").write_text("import law\nC = 2\n")
    second = now("law")
    (elsewhere / "law.py").write_text("def constant():\n    return 3\n")
    assert len({first, second, now("law")}) == 3


def test_an_installation_that_may_be_edited_counts_by_its_code(elsewhere: Path) -> None:
    (elsewhere / "law.py").write_text("C = 1\n")
    installed = elsewhere / "law-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: law\nVersion: 1.2\n")
    assert now("law") == "1.2"
    (installed / "direct_url.json").write_text('{"url": "file:///law", "dir_info": {"editable": true}}')
    first = now("law")
    (elsewhere / "law.py").write_text("C = 2\n")
    second = now("law")
    assert first is not None
    assert first.startswith("1.2, ")
    assert second != first


def test_a_product_is_made_again_when_it_changes(elsewhere: Path, tmp_path: Path) -> None:
    (elsewhere / "law.py").write_text("C = 1\n")
    path = write_study(tmp_path, '(defproduct value (python "value.py" value))')
    (tmp_path / "value.py").write_text("import law\ndef value():\n    return {'c': law.C}\n")
    (analysis,) = elaborate(path).study.analyses
    packages = Functions.of(tmp_path).reach(analysis).packages
    before = versions(packages)
    (elsewhere / "law.py").write_text("C = 2\n")
    version_of.cache_clear()
    assert versions(packages).keys() == before.keys()
    assert versions(packages) != before
