"""The experiment of the runs of several ranks, and undisturbed runs of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_runs import END, LONG, train, train_on_ranks, write_experiment


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def alone(file: Path) -> Path:
    return train(file, file.parent / "alone", "--stacking", "1")


@pytest.fixture(scope="session")
def two(file: Path) -> Path:
    return train_on_ranks(2, file, file.parent / "two", "--stacking", "1")


@pytest.fixture(scope="session")
def long(file: Path) -> Path:
    return train_on_ranks(2, file, file.parent / "long", "--stacking", "1", *LONG, "--steps", str(END))
