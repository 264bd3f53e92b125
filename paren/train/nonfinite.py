"""What happens when a loss or a gradient is not a finite number: stop, or skip up to a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable

from paren.data.loader import Microbatch
from paren.ir.program import RunForm
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.size import count_of
from paren.text.source import Span
from paren.train.engine import Engine
from paren.train.state import LoopState

Origin = tuple[str, Span] | None


def find_origin(engine: Engine, microbatches: Iterable[Microbatch], position: int) -> Origin:
    """The first node, over the microbatches in order, that made a non-finite value."""
    for microbatch in microbatches:
        origin = engine.locate_nonfinite(microbatch, position)
        if origin is not None:
            return origin
    return None


def describe_origin(origin: Origin) -> dict[str, Json]:
    """As a line of the metrics says it."""
    return {"operation": origin[0], "place": str(origin[1])} if origin else {}


def stop_error(state: LoopState, quantity: str, value: float, origin: Origin) -> ParenError:
    """E-NUM-001: what was not finite at which step, and the operation and place that it came from."""
    source = f", first produced by '{origin[0]}'" if origin else ""
    return ParenError(
        "E-NUM-001",
        f"the {quantity} of step {state.step} is {name_of(value)}{source}",
        origin[1] if origin else None,
        fix="a smaller rate or :clip may help; :on-nonfinite skip leaves such steps out",
    )


def limit_error(run: RunForm, state: LoopState, quantity: str, value: float, origin: Origin) -> ParenError:
    """E-NUM-002: more steps in a row were skipped than `:skip-limit` allows."""
    source = f", first produced by '{origin[0]}'" if origin else ""
    skipped = count_of(state.skipped_in_row, "step was", "steps in a row were")
    return ParenError(
        "E-NUM-002",
        f"{skipped} skipped and :skip-limit is {run.skip_limit}: "
        f"the {quantity} of step {state.step} is {name_of(value)}{source}",
        origin[1] if origin else None,
        fix="resume from an earlier checkpoint with a smaller rate or with :clip",
    )


def check_weight(state: LoopState, weight: float) -> None:
    """Raises E-NUM-003 for a negative total weight, which no mean can be taken by."""
    if weight < 0:
        raise ParenError(
            "E-NUM-003",
            f"the loss weights of step {state.step} sum to {weight:g}, and a mean needs a weight above 0",
            fix="make :weight give values of 0 or more",
        )


def name_of(value: float) -> str:
    """`nan`, `inf` or `-inf`."""
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
