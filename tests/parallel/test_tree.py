"""Sums as trees: one structure for every power of two of leaves in a share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.parallel.tree import Leaf, Tree, held_sums, leaves_of, place_of, sum_as_tree
from paren.text.errors import ParenError

EXAMPLE = Path(__file__).parents[2] / "examples" / "regression.paren"


def written(left: str, right: str) -> str:
    return f"({left}{right})"


def test_neighbours_first() -> None:
    assert sum_as_tree("abcdefgh", written) == "(((ab)(cd))((ef)(gh)))"
    assert sum_as_tree("abcdefg", written) == "(((ab)(cd))((ef)g))"
    assert sum_as_tree("a", written) == "a"


@pytest.mark.parametrize("leaves", range(1, 33))
def test_shares_of_a_power_of_two_change_nothing(leaves: int) -> None:
    names = [chr(ord("a") + number % 26) + str(number) for number in range(leaves)]
    whole = sum_as_tree(names, written)
    share = 1
    while leaves % share == 0:
        parts = [sum_as_tree(names[begin : begin + share], written) for begin in range(0, leaves, share)]
        assert sum_as_tree(parts, written) == whole
        share *= 2


@pytest.mark.parametrize("leaves", [1, 2, 4, 8, 64])
def test_sums_lie_where_the_first_of_them_did_in_as_many_places_as_are_planned(leaves: int) -> None:
    program = paren.load(EXAMPLE).program
    places = held_sums(replace(program, run=replace(program.run, reproducible_over=leaves)))
    assert places == (0 if leaves == 1 else leaves.bit_length())
    sums = np.zeros((max(1, places), 1), np.float32)
    tree: Tree[Leaf] = Tree(Leaf.plus)
    for number in range(leaves):
        own = sums[place_of(number)]
        assert not any(each.gradients is own or each.gradients.base is own for _, each in tree._sums)
        own[...] = number
        tree.take(Leaf(own, 0.0, 0.0))
    assert tree.total().gradients == leaves * (leaves - 1) // 2


def test_a_number_of_ranks_that_cannot_be_is_refused() -> None:
    assert [leaves_of(8, ranks) for ranks in (1, 2, 4, 8)] == [8, 4, 2, 1]
    assert leaves_of(6, 3) == 2
    for over, ranks, good in ((6, 2, "3 or 6"), (8, 3, "1 or 2 or 4 or 8"), (4, 8, "1 or 2 or 4")):
        with pytest.raises(ParenError) as caught:
            leaves_of(over, ranks)
        assert caught.value.code == "E-DP-003"
        assert caught.value.message == f":reproducible-over {over} is not the same on {ranks} ranks"
        assert caught.value.fix == f"take {good} of them, or another :reproducible-over"
