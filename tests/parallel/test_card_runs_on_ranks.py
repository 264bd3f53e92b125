"""Whole runs on several cards: the same bits whether the cards exchange gradients or the hosts do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from card_ranks import How, Seen, start_rank, train_rank
from rank_processes import run_ranks
from rank_runs import ENDED, HOST, finish, last_line, parameters, series, write_experiment

from paren.parallel.store import open_store
from paren.parallel.topology import Address


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("cards"))


def train(file: Path, name: str, ranks: int, how: How) -> list[Seen]:
    return run_ranks(ranks, train_rank, ranks, str(file), str(file.parent / name), how)


def assert_equal(file: Path, first: str, *others: str) -> None:
    """Runs that ended with the same bits, and said the same on their way."""
    for other in others:
        assert parameters(file.parent / other) == parameters(file.parent / first)
        for name, values in series(file.parent / first).items():
            np.testing.assert_array_equal(series(file.parent / other)[name], values, err_msg=f"{name} of {other}")


def test_two_cards_train_as_two_hosts_do(file: Path) -> None:
    """After the backward, and beside it in a run that is interrupted and resumed."""
    hosts = train(file, "hosts", 2, How(cards=False))
    after = train(file, "after", 2, How(stages=False))
    train(file, "cards", 2, How(steps=2))
    cards = train(file, "cards", 2, How(resume="latest"))
    assert_equal(file, "hosts", "after", "cards")
    assert [(each.on_cards, each.stages) for each in hosts + after] == [(False, 1)] * 2 + [(True, 1)] * 2
    assert all(each.on_cards for each in cards)
    assert cards[0].stages > cards[1].stages == 2
    assert "exchange   from card to card by NCCL 2.28.9" in cards[0].notices
    assert any(line.startswith("E-DEV-034: gradients of the cards go through") for line in hosts[0].notices)
    assert any(re.fullmatch(r"exchange: .* a step, .* % of it beside the .*", line) for line in cards[0].notices)
    for out, fallbacks in (("hosts", 1), ("cards", 0)):
        report = json.loads((file.parent / out / "report" / "lowering.json").read_text())
        assert len(report["fallbacks"]) == fallbacks
        assert all("E-DEV-034: gradients of the cards go through the hosts" in line for line in report["fallbacks"])
    for each in hosts + cards:  # arrays without elements have a byte on a card
        assert each.planned == pytest.approx(each.bytes, abs=2)


def test_what_cards_round_between_nodes_is_what_hosts_round(file: Path) -> None:
    """Two nodes of two ranks; what is carried lies on the cards, and is in the checkpoint."""
    train(file, "rounding hosts", 4, How(cards=False, nodes=2, gradients="bf16"))
    train(file, "rounding cards", 4, How(nodes=2, gradients="bf16", steps=3))
    seen = train(file, "rounding cards", 4, How(nodes=2, gradients="bf16", resume="latest"))
    assert_equal(file, "rounding hosts", "rounding cards")
    assert all(each.on_cards and each.stages > 1 for each in seen)
    assert all(each.planned >= each.bytes > each.planned // 2 for each in seen)


def test_ranks_join_products_alike(file: Path) -> None:
    """As the first rank measured it, also after a resume; cards sum what hosts do."""
    plain = file.read_text()
    assert "dropout (tanh (linear x 16)) 0.2)" in plain
    text = plain.replace("(dropout (tanh (linear x 16)) 0.2)", "(tanh (linear x 16))")
    joining = file.with_name("joining.paren")
    joining.write_text(text.replace("(defrun", '(defrun :precision "bfloat16"'))
    two = train(joining, "in two", 2, How())
    train(joining, "joined hosts", 2, How(cards=False, joins=True))
    train(joining, "joined cards", 2, How(joins=True, steps=2))
    one = train(joining, "joined cards", 2, How(joins=True, resume="latest"))
    assert [each.joined for each in (*two, *one)] == [False, False, True, True]
    assert_equal(joining, "joined hosts", "joined cards")
    assert parameters(joining.parent / "in two") != parameters(joining.parent / "joined cards")


def test_sums_as_a_tree_are_the_same_on_cards(file: Path) -> None:
    settings: dict[str, object] = {"microbatches": 8, "over": 8}
    reproducible = file.with_name("reproducible.paren")
    reproducible.write_text(f"(def over 8)\n{file.read_text().replace('(defrun', '(defrun :reproducible-over over')}")
    train(reproducible, "tree of hosts", 2, How(cards=False, set=settings))
    train(reproducible, "tree of cards", 4, How(set=settings))
    assert_equal(file, "tree of hosts", "tree of cards")


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (How(killed=35, set={"microbatches": 3}), "its process is gone"),
        (How(raises=35, set={"microbatches": 3}), "ValueError: provoked by a test"),
    ],
    ids=["killed", "raises"],
)
def test_a_rank_that_ends_in_an_exchange_ends_all(file: Path, how: How, cause: str) -> None:
    store, out = open_store(Address("127.0.0.1", 0), 3, True, 60.0), file.parent / f"ended by {cause[:3]}"
    processes = [start_rank(rank, store.port, 3, file, out, how) for rank in range(3)]
    ended = {rank: finish(processes[rank]) for rank in (1, 0, 2)}  # first the one whose process is looked for
    assert [ended[rank][0] for rank in range(3)] == [1, -9 if how.killed else 1, 1]
    for rank in (0, 2):
        line = last_line(ended[rank][1])
        named = rf"E-DP-008: rank 1 on {HOST} failed in step \d+: {cause} \(rank {rank} {ENDED}\)"
        assert re.fullmatch(named, line), line


def test_a_connection_that_breaks_ends_all(file: Path) -> None:
    store, out = open_store(Address("127.0.0.1", 0), 2, True, 60.0), file.parent / "broken"
    processes = [start_rank(rank, store.port, 2, file, out, How(lost=35)) for rank in range(2)]
    ended = [finish(process) for process in processes]
    assert [code for code, _ in ended] == [1, 1]
    said = "".join(text for _, text in ended)
    assert "an exchange broke, and no rank said why: ncclGroupEnd: remote process exited" in said
