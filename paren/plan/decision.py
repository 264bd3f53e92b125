"""What a pass decided about a pattern that changes memory or speed, and why: the rows of the lowering report.

How to fill it: whoever looks for a pattern makes one `Decision` for each place where the pattern could have applied,
whether it did or not, and adds it to `Plan.decisions` (`dataclasses.replace(plan, decisions=(*plan.decisions, ...))`)
of the graph it looked at. What is decided about the whole run, and not about one graph, goes to
`paren.forecast.plans.Plans.decisions`. The report groups equal decisions, so a reason names no layer and no node
number; the span does. A place where a pattern has no meaning (a graph without attention) gets no decision.

    Decision(Pattern.HEAD, True, "logits [1024 50257] in 16 chunks of 64 rows", node.span, saved_bytes=193_000_000)
    Decision(Pattern.UPDATE, False, ":clip needs the whole gradient first", program.run.spans["clip"])
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from paren.text.source import Span


class Pattern(Enum):
    """The patterns that a report speaks of, by the words it uses, in the order in which it shows them."""

    STEP = "attention in one step"
    ATTENTION = "attention in tiles"
    HEAD = "head in chunks"
    ACCUMULATION = "accumulation in place"
    EPILOGUE = "product with its kernel"
    UPDATE = "update inside the backward"
    RECOMPUTATION = "recomputation"
    CALL = "one native call a step"
    SAVING = "saving while training"


@dataclass(frozen=True)
class Decision:
    """`reason` is a phrase without a full stop: what was done, if the pattern `fired`, else what stood against it.

    `saved_bytes`: bytes of memory that do not exist because it fired, or would not exist if it had; 0 where it saves
    time only, or where that is not known.
    """

    pattern: Pattern
    fired: bool
    reason: str
    span: Span | None
    saved_bytes: int = 0
