"""How loops are arranged: by the kernel alone, innermost where elements lie side by side, in pieces for threads."""

from __future__ import annotations

import pytest
from kernel_samples import F32, Body, access, axis, gelu, reads, reduction, softmax, writes

from paren.codegen.loops import arrange, merge_axes, work
from paren.codegen.positions import split_positions
from paren.plan.kernel import Kernel, Load, Parameter, Reduce


def transposition(rows: int, columns: int) -> Kernel:
    body = Body()
    body.stage()
    body.store(access(1, (rows, columns), 0, 1), body.load(access(0, (columns, rows), 1, 0)))
    return body.kernel((rows, columns), 2, [reads(rows * columns), writes(rows * columns)])


def test_rows_that_lie_side_by_side_run_along_themselves() -> None:
    loops = arrange(softmax(64, 100))
    assert (loops.lane, loops.units) == (None, 64)


def test_columns_run_across_rows() -> None:
    loops = arrange(reduction("sum", 1000, 768, "column"))
    assert (loops.lane, loops.tile, loops.units) == (0, 192, 4)


@pytest.mark.parametrize(
    ("columns", "tile", "units"),
    [(1, 1, 1), (10, 10, 1), (128, 128, 1), (256, 128, 2), (1024, 256, 4), (5000, 256, 20)],
)
def test_tiles_are_wide_and_units_some(columns: int, tile: int, units: int) -> None:
    loops = arrange(reduction("sum", 3, columns, "column"))
    if loops.lane is None:
        assert columns == 1
        return
    assert (loops.tile, loops.units) == (tile, units)


def test_a_map_is_one_long_loop_in_pieces() -> None:
    loops = arrange(gelu(100, 1000))
    assert (loops.kernel.axes, loops.lane, loops.tile, loops.units) == ((100_000,), 0, 7696, 13)


def test_a_transposition_runs_in_blocks() -> None:
    loops = arrange(transposition(100, 200))
    assert (loops.lane, loops.tile, loops.block, loops.units) == (1, 16, 0, 26)


def test_axes_of_one_index_vanish() -> None:
    body = Body()
    body.stage(2, 3)
    total = body.reduce("sum", body.load(access(0, (1, 5, 1, 7), 0, 1, 2, 3)))
    body.stage()
    body.store(access(1, (1, 5), 0, 1), total)
    merged = merge_axes(body.kernel((1, 5, 1, 7), 2, [reads(35), writes(5)]))
    assert (merged.axes, merged.rows, merged.stages[0].axes) == ((5, 7), 1, (1,))


def test_axes_that_step_unevenly_stay_apart() -> None:
    body = Body()
    body.stage()
    body.store(access(1, (4, 6), 0, 1), body.load(access(0, (6,), 1)))
    assert merge_axes(body.kernel((4, 6), 2, [reads(6), writes(24)])).axes == (4, 6)


def test_rows_never_merge_with_the_axes_of_a_stage() -> None:
    assert merge_axes(reduction("sum", 4, 6, "row")).axes == (4, 6)


@pytest.mark.parametrize(("constant", "guarded"), [(0, False), (-1, True), (1, True)])
def test_guards_that_always_hold_are_dropped(constant: int, guarded: bool) -> None:
    body = Body()
    body.stage()
    body.store(access(1, (6,), 0), body.load(access(0, (6,), axis((0, 1), constant=constant), guarded=True)))
    merged = merge_axes(body.kernel((6,), 1, [reads(6), writes(6)]))
    load = merged.stages[0].body[0]
    assert isinstance(load, Load)
    assert load.access.guarded == guarded


def test_work_counts_statements_over_all_loops() -> None:
    assert work(reduction("sum", 10, 20, "row")) == 10 * (20 * 2 + 1)


def test_positions_are_split_unless_the_stage_stores() -> None:
    split = split_positions(reduction("argmax", 4, 6, "row"))
    kinds = [s.kind for stage in split.stages for s in stage.body if isinstance(s, Reduce)]
    assert kinds == ["max", "min"]
    body = Body()
    body.stage(1)
    value = body.load(access(0, (4, 6), 0, 1))
    body.store(access(1, (4, 6), 0, 1), value)
    position = body.reduce("argmax", value)
    body.stage()
    body.store(access(2, (4,), 0), body.compute("cast", position, dtype=F32))
    kernel = body.kernel((4, 6), 1, [reads(24), Parameter(F32, 24, False, True), writes(4)])
    assert split_positions(kernel) == kernel
