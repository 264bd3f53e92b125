"""Which stored nodes share a kernel.

A kernel's members have the same rows. Row kernels hold reductions over trailing axes with the values they are made of
and the values made of them; map kernels hold values of one shape; column kernels hold reductions over other axes. A
node joins a kernel only if it reads the members at its own row, if no path leads from the kernel to it through another
kernel, and if memory traffic falls. Every refusal of a pair that shares data is kept with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, cast

from paren.ir.graph import Graph, Node
from paren.plan.plan import Refusal
from paren.plan.storage import Storage, decide_storage, is_reduction, is_rounding
from paren.plan.traits import CPU, Traits
from paren.text.errors import InternalError

FEW_ROWS = 64
LONG = 16384  # elements of a reduction with few rows from which it is cut into chunks
CHUNK = 4096
NEAR = 64  # nodes between two values without a common reader that may still share a kernel
MOST_MEMBERS = 24
LITTLE = 1 << 16  # bytes: what is saved by reading less is less than what waiting may cost
SMALL = 1 << 12  # elements of a value up to which it counts as small
LARGE = 1 << 16  # elements of a value from which what it is made of must not wait
DEEPEST_KERNEL = 160  # nested nodes; a value is written by a recursion of three calls for each


class Score(NamedTuple):
    """How good a kernel is for a node: bytes not read again, then nearness in the program."""

    bytes_saved: int
    nearness: int


@dataclass
class Group:
    """The members of one kernel. `kind`: map, row, column, chunked, scatter, product and attention (library
    calls), base.

    `rows` is the shape of the row axes; a map's rows are its whole shape.
    """

    number: int
    kind: str
    rows: tuple[int, ...]
    stage: tuple[int, ...]
    members: list[Node] = field(default_factory=list)
    needs: set[int] = field(default_factory=set)  # groups whose results it reads

    @property
    def last(self) -> int:
        return max(member.number for member in self.members)


@dataclass(frozen=True)
class Fusion:
    """`groups` in an order in which they can run. `kept` are the stored nodes that need a buffer; the others live
    within their kernel only."""

    graph: Graph
    storage: Storage
    groups: tuple[Group, ...]
    kept: frozenset[int]
    refusals: tuple[Refusal, ...]


def fuse(graph: Graph, forced: Iterable[int] = (), traits: Traits = CPU) -> Fusion:
    """The kernels of a graph. `forced` are numbers of nodes that must be stored."""
    return _Fuser(graph, decide_storage(graph, forced, traits.rounds_operands), traits.joins_late).run()


@dataclass(frozen=True)
class Domain:
    """What a stored node loops over: its rows, and the axes that a reduction runs over. `axes` are the reduced ones."""

    kind: str
    rows: tuple[int, ...]
    stage: tuple[int, ...]
    axes: tuple[int, ...]


def domain_of(node: Node) -> Domain:
    """The loops of a stored node that a kernel computes."""
    if node.op.name == "fold":
        return Domain("column", node.shape, node.args[0].shape[2:4], (2, 3))
    if not is_reduction(node):
        return Domain("map", node.shape, (), ())
    axes = cast(tuple[int, ...], node.attrs["axes"]) if "axes" in node.attrs else (cast(int, node.attrs["axis"]),)
    shape = node.args[0].shape
    stage = tuple(shape[i] for i in axes)
    if node.op.name not in ("argmax", "argmin") and prod(node.shape) < FEW_ROWS and prod(stage) >= LONG:
        return Domain("chunked", node.shape, stage, axes)
    trailing = axes == tuple(range(len(shape) - len(axes), len(shape)))
    return Domain("row" if trailing else "column", node.shape, stage, axes)


@dataclass
class _Fuser:
    graph: Graph
    storage: Storage
    joins_late: bool = True
    groups: list[Group] = field(default_factory=list)
    group_of: dict[int, Group] = field(default_factory=dict)
    reads: dict[int, dict[int, int]] = field(default_factory=dict)  # root -> stored node -> identical leading axes
    readers: dict[int, set[int]] = field(default_factory=dict)  # stored node -> roots that read it
    by_leaf: dict[int, list[Group]] = field(default_factory=dict)
    last_addition: dict[int, Group] = field(default_factory=dict)  # state input -> group that last added to its slot
    refusals: dict[tuple[int, int], Refusal] = field(default_factory=dict)
    scalars: Group | None = (
        None  # the last kernel of single values: others join it, for a launch costs more than they do
    )
    depths: dict[int, int] = field(default_factory=dict)  # root -> nested nodes down to what its kernel reads
    urgent: dict[int, bool] = field(default_factory=dict)  # node -> whether it is small and goes into a large one

    def run(self) -> Fusion:
        for node in self.graph.nodes:
            if node.number in self.storage.products:
                self._add_call(node, "product")
            elif node.number in self.storage.attentions:
                self._add_attention(node)
            elif node.number in self.storage.scatters or (
                node.op.name == "scatter_add" and node.number in self.storage.stored
            ):
                self._add_call(node, "scatter")
            elif node.number in self.storage.stored and not self._is_result(node):
                self._add_root(node)
        order = self._order()
        return Fusion(self.graph, self.storage, order, self._kept(), tuple(self.refusals.values()))

    def _is_result(self, node: Node) -> bool:
        """A transpose or rounding that a product writes: it belongs to the product's group."""
        contraction = node
        while contraction.op.name in ("reshape", "transpose") or is_rounding(contraction):
            contraction = contraction.args[0]
        call = self.storage.products.get(contraction.number)
        if call is None or call.result is not node:
            return False
        self.group_of[node.number] = self.group_of[contraction.number]
        return True

    # What a node reads ----------------------------------------------------------------------------------------------

    def _reads_of(self, node: Node) -> dict[int, int]:
        """Numbers of the stored nodes and inputs that `node` reads, with how many leading axes are read at equal
        index."""
        found: dict[int, int] = {}
        seen: set[tuple[int, int]] = set()
        domain = domain_of(node)
        if domain.kind == "map":
            start = node.type.rank
        elif node.op.name == "fold":
            start = 0
        else:
            start = min(domain.axes, default=0)
        pending = [(arg, _identical(node, i, start)) for i, arg in enumerate(node.args)]
        while pending:
            current, same = pending.pop()
            if (current.number, same) in seen:
                continue
            seen.add((current.number, same))
            if self.storage.readable(current):
                found[current.number] = min(found.get(current.number, same), same)
            elif current.op.name not in ("constant", "iota"):
                pending += [(arg, _identical(current, i, same)) for i, arg in enumerate(current.args)]
        return found

    def _needs(self, reads: Iterable[int]) -> set[int]:
        return {self.group_of[number].number for number in reads if number in self.group_of}

    # Adding nodes ---------------------------------------------------------------------------------------------------

    def _add_call(self, node: Node, kind: str) -> None:
        group = Group(len(self.groups), kind, node.shape, (), [node])
        reads: dict[int, int] = {}
        if kind == "product":
            call = self.storage.products[node.number]
            reads = {view.base.number: 0 for view in (call.a, call.b)}
        else:
            for arg in node.args:
                inner = {arg.number: 0} if self.storage.readable(arg) else self._reads_of(arg)
                reads.update(inner)
        group.needs = self._needs(reads)
        slot = self.storage.products[node.number].slot if kind == "product" else self._slot(node)
        if slot is not None:
            # Additions to one slot keep their order.
            before = self.last_addition.get(slot.number)
            group.needs |= set() if before is None else {before.number}
            self.last_addition[slot.number] = group
        self._register(node, group, reads)
        self.groups.append(group)

    def _add_attention(self, node: Node) -> None:
        """All nodes of a step are members of its group, which is made at the first."""
        call = self.storage.attentions[node.number]
        reads = {self.storage.views[operand.number].base.number: 0 for operand in call.operands}
        if call.backward and call.statistics is not None:
            reads[call.statistics.number] = 0
        group = next((self.group_of[m.number] for m in call.members if m.number in self.group_of), None)
        if group is not None:
            group.members.append(node)
        else:
            group = Group(len(self.groups), "attention", node.shape, (), [node], self._needs(reads))
            self.groups.append(group)
        self._register(node, group, reads)

    def _slot(self, node: Node) -> Node | None:
        call = self.storage.scatters.get(node.number)
        return None if call is None else call.slot

    def _add_root(self, node: Node) -> None:
        reads = self._reads_of(node)
        needs = self._needs(reads)
        domain = domain_of(node)
        best: tuple[Score, Group] | None = None
        for group in self._candidates(node, reads):
            reason = self._refuse(node, domain, reads, needs, group)
            shared = self._shared_bytes(reads, group)
            if reason is None and shared < LITTLE and self._makes_wait(node, needs, group):
                reason = "a large kernel needs one of them, and would wait for the other"
            if reason is None and (shared > 0 or group is self.scalars):
                score = Score(shared, group.last)
                if best is None or score > best[0]:
                    best = (score, group)
            elif reason is not None and any(member.number in reads for member in group.members):
                producer = next(member for member in group.members if member.number in reads)
                self.refusals[group.number, node.number] = Refusal(repr(producer), repr(node), reason, node.span)
        if best is None:
            group = Group(len(self.groups), domain.kind, domain.rows, domain.stage)
            self.groups.append(group)
        else:
            group = best[1]
            if group.kind == "map" and domain.kind == "row":
                group.kind, group.rows = "row", domain.rows
        self.depths[node.number] = self._depth(node, reads, group)
        group.members.append(node)
        group.needs = (group.needs | needs) - {group.number}
        self._register(node, group, reads)

    def _register(self, node: Node, group: Group, reads: dict[int, int]) -> None:
        self.group_of[node.number] = group
        self.reads[node.number] = reads
        for number in reads:
            self.readers.setdefault(number, set()).add(node.number)
            recent = self.by_leaf.setdefault(number, [])
            if group not in recent:
                recent.append(group)
                del recent[:-4]
        if group.kind == "map" and node.type.size == 1:
            self.scalars = group

    def _candidates(self, node: Node, reads: dict[int, int]) -> list[Group]:
        found: dict[int, Group] = {}
        for number in reads:
            if number in self.group_of:
                found[self.group_of[number].number] = self.group_of[number]
            for group in self.by_leaf.get(number, ()):
                if node.number - group.last <= NEAR:
                    found[group.number] = group
        if self.scalars is not None and node.type.size == 1:
            found[self.scalars.number] = self.scalars
        return list(found.values())

    def _shared_bytes(self, reads: dict[int, int], group: Group) -> int:
        """Bytes that the node need not read from memory in this kernel, because the kernel makes or reads them
        anyway."""
        members = {member.number for member in group.members}
        group_reads = {number for member in group.members for number in self.reads[member.number]}
        nodes = self.storage.stored
        saved = 0
        for number in reads:
            if number in members or number in group_reads:
                read = nodes.get(number)
                saved += read.type.bytes if read is not None else self._input_bytes(number)
        return saved

    def _input_bytes(self, number: int) -> int:
        return next((n.type.bytes for n in self.graph.inputs if n.number == number and n.type.size > 1), 0)

    def _refuse(self, node: Node, domain: Domain, reads: dict[int, int], needs: set[int], group: Group) -> str | None:
        """Why the node cannot join the group, or None."""
        if group.kind in ("product", "scatter", "attention"):
            return f"a {group.kind} is a step of its own"
        if group.kind == "chunked" or domain.kind == "chunked":
            return "a long reduction with few rows is cut into chunks"
        if len(group.members) >= MOST_MEMBERS:
            return f"the kernel has {MOST_MEMBERS} results already"
        reason = self._refuse_shape(node, domain, group)
        if reason is not None:
            return reason
        width = len(domain.rows if domain.kind in ("row", "column") else group.rows)
        for member in group.members:
            same = reads.get(member.number)
            if same is not None and same < min(width, member.type.rank):
                return "it reads the value at other rows than its own"
            if same is not None and member.number in self.storage.whole:
                return "it reads the value at places that are no sums of multiples of its loops"
        if self._depth(node, reads, group) > DEEPEST_KERNEL:
            return f"the kernel's expressions would be nested deeper than {DEEPEST_KERNEL}"
        if any(self._leads_to(need, group) for need in needs if need != group.number):
            return "another kernel stands between them"
        return None

    def _makes_wait(self, node: Node, needs: set[int], group: Group) -> bool:
        """Whether a value that large ones are made of would wait for what only its company in the kernel needs."""
        if self.joins_late:
            return False
        more, less = group.needs - needs, needs - group.needs - {group.number}
        return bool(more and self._is_urgent(node)) or bool(less and any(map(self._is_urgent, group.members)))

    def _is_urgent(self, node: Node) -> bool:
        """Whether a small value goes into a large one, directly or through other small ones."""
        if node.number not in self.urgent:
            users = self.storage.users[node.number] if node.type.size < SMALL else []
            self.urgent[node.number] = any(user.type.size >= LARGE or self._is_urgent(user) for user in users)
        return self.urgent[node.number]

    def _depth(self, node: Node, reads: dict[int, int], group: Group) -> int:
        uses = self.storage.uses
        own = 1 + max((uses[arg.number].depth for arg in node.args if arg.number in uses), default=0)
        return own + max((self.depths[m.number] for m in group.members if m.number in reads), default=0)

    def _refuse_shape(self, node: Node, domain: Domain, group: Group) -> str | None:
        if domain.kind == "column" or group.kind == "column":
            if domain.kind == group.kind == "column":
                same = (domain.rows, domain.stage) == (group.rows, group.stage)
                alike = all(domain_of(m).axes == domain.axes for m in group.members if domain_of(m).kind == "column")
                return None if same and alike else "the reductions run over different axes"
            if domain.kind == "map" and node.shape == group.rows:
                return None
            return "one runs down the columns, the other along the rows"
        if domain.kind == "row":
            if group.kind == "row":
                return None if group.rows == domain.rows else f"rows {group.rows} and {domain.rows} differ"
            whole = domain.rows + domain.stage
            if group.rows not in (whole, domain.rows):
                return f"shapes {group.rows} and {whole} differ"
            return None
        if group.kind == "row":
            if node.shape[: len(group.rows)] != group.rows:
                return f"rows {group.rows} are not the first axes of {node.shape}"
            return None
        return None if node.shape == group.rows else f"shapes {group.rows} and {node.shape} differ"

    def _leads_to(self, start: int, target: Group) -> bool:
        """Whether group `start` reads, directly or through others, a result of `target`."""
        pending, seen = [start], {start}
        while pending:
            group = self.groups[pending.pop()]
            if group.number == target.number:
                return True
            for need in group.needs - seen:
                seen.add(need)
                pending.append(need)
        return False

    # The result -----------------------------------------------------------------------------------------------------

    def _order(self) -> tuple[Group, ...]:
        """Groups after those they need, otherwise in the order of their last member."""
        done: set[int] = set()
        waiting: set[int] = set()
        order: list[Group] = []
        for group in sorted(self.groups, key=lambda g: g.last):
            stack = [(group, iter(sorted(group.needs)))]
            if group.number in done:
                continue
            done.add(group.number)
            waiting.add(group.number)
            while stack:
                current, needs = stack[-1]
                need = next(needs, None)
                if need is None:
                    order.append(current)
                    waiting.discard(current.number)
                    stack.pop()
                elif need in waiting:
                    raise InternalError(
                        "fuse", f"{current.members[0]!r} and {self.groups[need].members[0]!r} wait for each other"
                    )
                elif need not in done:
                    done.add(need)
                    waiting.add(need)
                    stack.append((self.groups[need], iter(sorted(self.groups[need].needs))))
        return tuple(order)

    def _kept(self) -> frozenset[int]:
        """Stored nodes that something outside their kernel reads, and outputs."""
        outputs = {node.number for node in self.graph.outputs.values()}
        kept = set()
        for number in self.storage.stored:
            group = self.group_of[number]
            readers = self.readers.get(number, set())
            if (
                group.kind in ("product", "scatter", "attention", "chunked")
                or number in outputs
                or any(self.group_of[reader] is not group for reader in readers)
            ):
                kept.add(number)
        return frozenset(kept)


def _identical(node: Node, position: int, same: int) -> int:
    """How many leading axes of argument `position` have the index of the node's, when the node's first `same` are equal
    to the row's."""
    arg = node.args[position]
    match node.op.name:
        case "broadcast":
            axes = cast(tuple[int, ...], node.attrs["axes"])
            return next((i for i, axis in enumerate(axes) if axis != i or i >= same), len(axes))
        case "transpose":
            axes = cast(tuple[int, ...], node.attrs["axes"])
            return next((i for i, axis in enumerate(axes) if axis != i or i >= same), same)
        case "reshape":
            pairs = zip(arg.shape, node.shape, strict=False)
            return min(same, next((i for i, (a, b) in enumerate(pairs) if a != b), min(arg.type.rank, node.type.rank)))
        case "slice" | "pad" | "concat":
            pairs = zip(arg.shape, node.shape, strict=True)
            return min(same, next((i for i, (a, b) in enumerate(pairs) if a != b), node.type.rank))
        case "take":
            return min(same, arg.type.rank) if position == 1 else 0
        case "patches":
            return min(same, 2)
    return min(same, arg.type.rank)
