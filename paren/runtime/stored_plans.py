"""Plans on disk, under a digest of all that a plan follows from: paren's own files, the graph, how it is planned.

What was verified when it was made is not verified again: the bytes are sealed. A place in the program's text is kept as
the number of its source among the graph's, so that a plan speaks of the program that it was asked for.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Callable, Sequence

from paren.ir.graph import Graph
from paren.ir.identity import graph_key, sources_of
from paren.own_files import own_digest
from paren.plan.plan import Plan
from paren.runtime.cache import PlanCache
from paren.text.source import Source

MAKERS = ("text", "ir", "passes", "plan", "pipeline.py", "runtime/stored_plans.py")  # the files that make plans
LEAST = 200  # nodes from which reading a plan is ten times as fast as making it


def plan_once(cache: PlanCache, graph: Graph, how: object, make: Callable[[], Plan]) -> Plan:
    """What `make` gives, or gave for an equal graph before, to the same version of paren. `how` it does that is told
    apart by its `repr`. What is damaged or cannot be kept is made again."""
    own = own_digest(*MAKERS) if len(graph.nodes) >= LEAST else None
    if own is None:
        return make()
    sources = sources_of(graph)
    key = cache.key(own, graph_key(graph), repr(how), *(source.text for source in sources))
    content = cache.read(key)
    if content is not None:
        plan: Plan = _Reader(zlib.decompress(content), sources).load()
        return plan
    plan = make()
    file = io.BytesIO()
    _Writer(file, sources).dump(plan)
    cache.write(key, zlib.compress(file.getvalue(), level=1))
    return plan


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, sources: Sequence[Source]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = {id(source): number for number, source in enumerate(sources)}

    def persistent_id(self, value: object) -> int | None:
        return self._numbers.get(id(value))


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, sources: Sequence[Source]) -> None:
        super().__init__(io.BytesIO(content))
        self._sources = sources

    def persistent_load(self, number: int) -> Source:
        return self._sources[number]
