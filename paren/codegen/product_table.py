"""The table that tells a compiled product what to multiply, and the parameters of its function."""

from __future__ import annotations

from enum import IntEnum

HEADER = 64  # bytes at the start of a workspace: a word that is 1 while a thread uses it


class Word(IntEnum):
    """Words of the table, int64. Strides in bytes; `BLOCK_*` the largest blocks; `*_PLACE` bytes into a workspace."""

    M = 0
    N = 1
    K = 2
    A_ROW = 3
    A_K = 4
    B_K = 5
    B_COLUMN = 6
    C_ROW = 7
    ACCUMULATE = 8
    ROUNDED = 9  # 1: C is in bfloat16, sums are made in the workspace
    A_PACKING = 10
    B_PACKING = 11
    BLOCK_M = 12
    BLOCK_N = 13
    BLOCK_K = 14
    CELL_M = 15
    CELL_N = 16
    ALONG_N = 17  # 1: a line of cells has the same columns of C; 0: the same rows
    LINE = 18  # cells in a line
    CELLS = 19  # cells of a matrix
    WORKSPACES = 20
    WORKSPACE_BYTES = 21
    A_PLACE = 22  # packed panels of A; those of B come after the header
    SUMS_PLACE = 23


class Packing(IntEnum):
    """How an operand reaches the tiles. A partial last panel of B is copied even where the others are read in place.

    Only products in bfloat16 pack A, and only they have operands of `HALVES`, which are in bfloat16.
    """

    DIRECT = 0
    COPY = 1
    TRANSPOSE = 2
    COPY_HALVES = 3
    TRANSPOSE_HALVES = 4


class Pointer(IntEnum):
    """The parameters of the function."""

    A = 0
    B = 1
    C = 2
    TABLE = 3
    OFFSETS = 4  # int64[matrices 3]: byte offsets of A, B and C
    WORKSPACES = 5
