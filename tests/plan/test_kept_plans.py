"""Inside `keeping_plans`, equal graphs are planned once; outside, and for other graphs, nothing is shared."""

from __future__ import annotations

from pathlib import Path

from experiment.studies import write_study

from paren.forecast.plans import make_plans
from paren.lang.elaborate import elaborate
from paren.pipeline import keeping_plans


def test_programs_share_the_plans_of_equal_graphs(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with keeping_plans():
        one, same = make_plans(elaborate(path)), make_plans(elaborate(path))
        other = make_plans(elaborate(path, overrides=["rate=0.5"]))
        wider = make_plans(elaborate(path, overrides=["hidden=[5]"]))
    assert all(one.all[name] is same.all[name] for name in one.all)
    shared = {name for name in one.all if one.all[name] is other.all[name]}
    assert shared == set(one.all) - {"update 0"}
    assert not any(one.all[name] is wider.all[name] for name in ("initialize", "accumulate", "evaluate"))


def test_kept_plans_are_what_would_be_planned(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with keeping_plans():
        make_plans(elaborate(path, overrides=["rate=0.5"]))
        kept = make_plans(elaborate(path))
    fresh = make_plans(elaborate(path))
    assert {name: repr(plan) for name, plan in kept.all.items()} == {
        name: repr(plan) for name, plan in fresh.all.items()
    }
    assert not any(kept.all[name] is fresh.all[name] for name in fresh.all)


def test_places_in_the_text_count(tmp_path: Path) -> None:
    """A message that a step gives must name the place in its own file."""
    path = write_study(tmp_path)
    with keeping_plans():
        one = make_plans(elaborate(path))
        path.write_text("\n" + path.read_text())
        moved = make_plans(elaborate(path))
    assert one.accumulate is not moved.accumulate
    places = [
        plan.accumulate.steps[0].spans[0].source.position(plan.accumulate.steps[0].spans[0].start)
        for plan in (one, moved)
    ]
    assert places[1][0] == places[0][0] + 1
