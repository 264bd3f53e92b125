"""Which nodes of a graph get a buffer, which are computed inside their users, and which are views of others.

Does not decide which stored nodes share a kernel: `paren.plan.fuse` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import cast

from paren.ir.graph import Graph, Node
from paren.ir.types import DType
from paren.plan.attention import AttentionCall, find_calls, is_attention, layout_of
from paren.plan.concatenation import VIEWS
from paren.plan.product import Shape, View, contiguous, product_of, reshape_view
from paren.text.errors import InternalError

REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "fold")
COSTS = {  # scalar instructions, roughly; everything else counts 1
    "exp": 12, "log": 16, "log1p": 20, "expm1": 16, "tanh": 18, "erf": 22, "sin": 20, "cos": 20, "pow": 40,
    "sqrt": 4, "rsqrt": 5, "div": 4, "threefry": 90, "remainder": 6, "floor_divide": 6,
}  # fmt: skip
EXPENSIVE = 150  # cost of all uses but the first from which a value is stored although one large read would do
DEEPEST = 120  # nested nodes of one expression
LARGEST = 400  # cost of one expression
BROADCAST_COST = 10  # cost from which a value is stored rather than computed again for every element it is repeated to
BROADCAST_GROWTH = 8


@dataclass(frozen=True)
class ProductCall:
    """A contraction as a product. `a` and `b` are views as in the product (after a swap), `result` the node whose
    buffer it writes: the contraction or its elements rounded to bfloat16 or in another order, or, with `slot`, the term
    that it adds to that state input.

    The base of an operand in bfloat16 may be the input in float32 that is rounded, if products round as they read.
    """

    node: Node
    shape: Shape
    a: View
    b: View
    result: Node
    slot: Node | None


@dataclass(frozen=True)
class ScatterCall:
    """A scatter-add node. With `slot` it adds to that state input's buffer, else to a buffer with its base."""

    node: Node
    slot: Node | None


@dataclass(frozen=True)
class Use:
    """How an expression reads: the stored nodes at least half as large as itself with the number of elements read, its
    cost, and its depth."""

    large: dict[int, int]
    cost: int
    depth: int


@dataclass
class Storage:
    """The decisions. Keys are node numbers.

    `rounds_operands`: as in `paren.plan.traits.Traits`. `stored`: nodes with a buffer of their own that kernels,
    products, scatters or attention fill. `aliases`: outputs that are a state slot added to in place. `products`,
    `scatters` and `attentions` by the number of their node, a step of attention by each of its nodes, with the `views`
    of its operands and results by their numbers.
    """

    graph: Graph
    rounds_operands: bool = True
    stored: dict[int, Node] = field(default_factory=dict)
    users: dict[int, list[Node]] = field(default_factory=dict)
    products: dict[int, ProductCall] = field(default_factory=dict)
    scatters: dict[int, ScatterCall] = field(default_factory=dict)
    attentions: dict[int, AttentionCall] = field(default_factory=dict)
    views: dict[int, View] = field(default_factory=dict)
    aliases: dict[str, Node] = field(default_factory=dict)
    uses: dict[int, Use] = field(default_factory=dict)  # of the nodes that are computed inside their users
    whole: set[int] = field(default_factory=set)  # nodes that are read from memory, never computed inside their users
    hidden: set[int] = field(default_factory=set)  # nodes that in-place updates and results in another form stand for

    def readable(self, node: Node) -> bool:
        """Whether the node's elements lie in memory, contiguous."""
        return node.number in self.stored or node.op.name == "input"


def is_product(node: Node) -> bool:
    """Contractions, which are of floats, are products of matrices."""
    return node.op.name == "contract"


def is_rounding(node: Node) -> bool:
    return node.op.name == "cast" and node.dtype.is_short and node.args[0].dtype is DType.FLOAT32


def is_reduction(node: Node) -> bool:
    return node.op.name in REDUCTIONS


def decide_storage(graph: Graph, forced: Iterable[int], rounds_operands: bool) -> Storage:
    """What is stored. `forced` are numbers of nodes that lowering could not compute inside their users."""
    storage = Storage(graph, rounds_operands)
    for node in graph.nodes:
        storage.users[node.number] = []
    for node in graph.nodes:
        for arg in dict.fromkeys(node.args):
            storage.users[arg.number].append(node)
    outputs = {node.number for node in graph.outputs.values()}
    _update_in_place(storage, outputs)
    storage.whole = set(forced)
    must: set[int] = set()
    for node in graph.nodes:
        if node.number in outputs and node.number not in storage.hidden and node.op.name != "input":
            must.add(node.number)
        storage.whole |= {arg.number for arg in _read_from_memory(node) if arg.op.name != "input"}
    must |= storage.whole
    _place_results(storage, outputs)
    for call in storage.products.values():
        if call.slot is None:
            storage.stored[call.result.number] = call.result
    for attention in find_calls(graph):
        _place_attention(storage, attention, outputs)
    bases: set[int] = set()
    for node in reversed(graph.nodes):
        if is_product(node):
            bases |= {n.number for n in _operand_bases(storage, node, must) if n.op.name != "input"}
        elif is_attention(node):
            bases |= {n.number for n in _attended(storage, node, must) if n.op.name != "input"}
    must |= bases
    for node in graph.nodes:
        if node.op.name == "input" or node.number in storage.hidden:
            continue
        if is_product(node) or node.number in storage.stored:
            continue
        always = is_reduction(node) or node.op.name == "scatter_add" or node.number in must
        if always or _worth_storing(storage, node):
            storage.stored[node.number] = node
        else:
            storage.uses[node.number] = _use(storage, node)
    return storage


def view_of(storage: Storage, node: Node, must: Iterable[int]) -> View | None:
    """`node` as a strided view of a node that is, or can be, stored; None where it has no regular strides."""
    if node.number in must or node.number in storage.stored or node.op.name == "input":
        return View(node, contiguous(node.shape), 0)
    if node.op.name in ("reshape", "transpose", "slice"):
        inner = view_of(storage, node.args[0], must)
        if inner is None:
            return None
        if node.op.name == "reshape":
            return reshape_view(inner, node.args[0].shape, node.shape)
        if node.op.name == "transpose":
            axes: tuple[int, ...] = node.attrs["axes"]  # type: ignore[assignment]
            return View(inner.base, tuple(inner.strides[a] for a in axes), inner.offset)
        start: tuple[int, ...] = node.attrs["start"]  # type: ignore[assignment]
        step: tuple[int, ...] = node.attrs["step"]  # type: ignore[assignment]
        offset = inner.offset + sum(s * stride for s, stride in zip(start, inner.strides, strict=True))
        strides = tuple(s * stride for s, stride in zip(step, inner.strides, strict=True))
        return View(inner.base, strides, offset)
    if storage.rounds_operands and is_rounding(node) and node.args[0].op.name == "input":
        return View(node.args[0], contiguous(node.shape), 0)
    return View(node, contiguous(node.shape), 0)


# Products -----------------------------------------------------------------------------------------------------------


def _place_results(storage: Storage, outputs: set[int]) -> None:
    """For every contraction without a slot: the node whose buffer it writes, itself, or what its only users make of it:
    a rounding, or the last transpose."""
    for node in storage.graph.nodes:
        if not is_product(node) or node.number in storage.products:
            continue
        # The real operands are not known yet; contiguous ones tell whether the transposed result has a product at all.
        left, right = (View(arg, contiguous(arg.shape), 0) for arg in node.args)
        for result in _possible_results(storage, node, outputs):
            placed = _result_view(node, result)
            shape = None if placed is None else product_of(node, left, right, placed)
            if shape is not None:
                storage.products[node.number] = ProductCall(node, shape, left, right, result, None)
                storage.hidden |= _chain(storage.products[node.number]) - {result.number}
                break
        else:
            raise InternalError("storage", f"{node!r} has no product: `normalise_contractions` was not run")


def _possible_results(storage: Storage, node: Node, outputs: set[int]) -> list[Node]:
    """The roundings and transposes that `node` reaches through reshapes and each other, each the only user of the one
    before it, the last first; then `node` itself."""
    chain = [node]
    while chain[-1].number not in outputs and len(storage.users[chain[-1].number]) == 1:
        (user,) = storage.users[chain[-1].number]
        rounds = is_rounding(user) and user.dtype is node.args[0].dtype
        if user.op.name not in ("reshape", "transpose") and not rounds:
            break
        chain.append(user)
    return [made for made in reversed(chain) if made is node or made.op.name != "reshape"]


def _result_view(node: Node, result: Node, view: View | None = None) -> View | None:
    """The node's own dimensions as strides in the buffer of `result`, which is made of it by transposes, reshapes and
    roundings, if by anything; None where the strides are not regular. `view`: where `result` lies, if not alone."""
    view = view if view is not None else View(result, contiguous(result.shape), 0)
    current = result
    while current is not node and view is not None:
        source = current.args[0]
        if current.op.name == "reshape":
            view = reshape_view(view, current.shape, source.shape)
        elif current.op.name == "transpose":
            axes: tuple[int, ...] = current.attrs["axes"]  # type: ignore[assignment]
            placed = [0] * len(axes)
            for position, axis in enumerate(axes):
                placed[axis] = view.strides[position]
            view = replace(view, strides=tuple(placed))
        current = source
    return view


def _chain(call: ProductCall) -> set[int]:
    """The numbers of the nodes from a product's contraction to its result."""
    numbers = {call.node.number}
    current = call.result
    while current is not call.node:
        numbers.add(current.number)
        current = current.args[0]
    return numbers


def _operand_bases(storage: Storage, node: Node, must: set[int]) -> list[Node]:
    """Chooses views for the operands of a contraction, and gives the nodes that have to be stored for them."""
    call = storage.products[node.number]
    result = _result_view(node, call.result)
    if result is None:
        raise InternalError("storage", f"{call.result!r} has no regular strides")
    plain = [View(arg, contiguous(arg.shape), 0) for arg in node.args]
    views = [view_of(storage, arg, must) or p for arg, p in zip(node.args, plain, strict=True)]
    for a, b in ((views[0], views[1]), (views[0], plain[1]), (plain[0], views[1]), (plain[0], plain[1])):
        shape = product_of(node, a, b, result)
        if shape is not None:
            left, right = (b, a) if shape.swapped else (a, b)
            storage.products[node.number] = ProductCall(node, shape, left, right, call.result, call.slot)
            return [a.base, b.base]
    raise InternalError("storage", f"{node!r} has no product from contiguous operands")


def _place_attention(storage: Storage, call: AttentionCall, outputs: set[int]) -> None:
    """Finds where the results go: each to a buffer of its own, or all gradients to that of the value they are in."""
    beside = _concatenated(storage, call, outputs) if call.backward else None
    if beside is not None:
        views, chains = beside
        storage.stored[views[0].base.number] = views[0].base
        storage.attentions[views[0].base.number] = call
        storage.hidden |= chains
        results = [node for node in call.results if node is not None]
        storage.views |= {node.number: view for node, view in zip(results, views, strict=True)}
    for node in call.members:
        storage.attentions[node.number] = call
        if beside is None:
            storage.stored[node.number] = node
            storage.views[node.number] = View(node, contiguous(node.shape), 0)


def _concatenated(storage: Storage, call: AttentionCall, outputs: set[int]) -> tuple[list[View], set[int]] | None:
    """Where the gradients of a step lie in a `concat` of nothing else, and the numbers of the nodes that vanish."""
    views, hidden = [], set()
    whole: Node | None = None
    for number, member in enumerate(call.results):
        if member is None:
            return None
        chain = [member]
        while len(storage.users[chain[-1].number]) == 1 and chain[-1].number not in outputs:
            (user,) = storage.users[chain[-1].number]
            if user.op.name not in VIEWS:
                break
            chain.append(user)
        users = storage.users[chain[-1].number]
        if len(users) != 1 or chain[-1].number in outputs or users[0].op.name != "concat":
            return None
        if users[0] is not (whole or users[0]) or len(users[0].args) != len(call.results):
            return None
        whole = users[0]
        axis = cast(int, whole.attrs["axis"])
        strides = contiguous(whole.shape)
        begin = sum(arg.shape[axis] for arg in whole.args[: whole.args.index(chain[-1])])
        view = _result_view(member, chain[-1], View(whole, strides, begin * strides[axis]))
        if view is None or layout_of(view, member.shape, number) is None:
            return None
        views.append(view)
        hidden |= {node.number for node in chain}
    return views, hidden


def _attended(storage: Storage, node: Node, must: set[int]) -> list[Node]:
    """Chooses views for the operands of a step of attention, and gives the nodes that have to be stored for them."""
    bases = []
    for number, operand in enumerate(storage.attentions[node.number].operands):
        view = view_of(storage, operand, must)
        if view is None or view.base.dtype is not operand.dtype or layout_of(view, operand.shape, number) is None:
            view = View(operand, contiguous(operand.shape), 0)
        storage.views[operand.number] = view
        bases.append(view.base)
    return bases


# State that is added to in place ------------------------------------------------------------------------------------


def _update_in_place(storage: Storage, outputs: set[int]) -> None:
    """Outputs that only add contractions and scatters to the state of their own name: each adds to the slot itself."""
    inputs = {str(node.attrs["name"]): node for node in storage.graph.inputs if node.attrs["role"] == "state"}
    for name, node in storage.graph.outputs.items():
        slot = inputs.get(name)
        if slot is None or node is slot or len(storage.users.get(slot.number, [])) != 1 or storage.users[node.number]:
            continue
        if sum(1 for other in storage.graph.outputs.values() if other is node or other is slot) != 1:
            continue
        found = _addends(storage, node, slot, outputs, top=True)
        if found is None:
            continue
        addends, inner = found
        inside = outputs - {node.number}
        calls = [_accumulating(storage, addend, slot, inside) for addend in addends]
        if not addends or any(call is None for call in calls) or len(set(addends)) != len(addends):
            continue
        for call in calls:
            if isinstance(call, ProductCall):
                storage.products[call.node.number] = call
                storage.hidden |= _chain(call)
            elif isinstance(call, ScatterCall):
                storage.scatters[call.node.number] = call
                storage.hidden.add(call.node.number)
        storage.hidden |= inner
        storage.aliases[name] = slot


def _addends(
    storage: Storage, node: Node, slot: Node, outputs: set[int], top: bool
) -> tuple[list[Node], set[int]] | None:
    """The terms beside `slot` of a sum that contains it once, and the numbers of the inner nodes; None for others."""
    if node is slot:
        return [], set()
    if not top and (node.number in outputs or len(storage.users[node.number]) != 1):
        return None
    if node.op.name == "add" and node.args[0] is not node.args[1]:
        for this, other in (node.args, node.args[::-1]):
            rest = _addends(storage, this, slot, outputs, top=False)
            if rest is not None:
                terms = _terms(storage, other, outputs)
                return rest[0] + terms[0], rest[1] | terms[1] | {node.number}
    if node.op.name == "scatter_add":
        rest = _addends(storage, node.args[0], slot, outputs, top=False)
        if rest is not None and all(slot is not n for n in node.args[1:]):
            return [*rest[0], node], rest[1]
    return None


def _terms(storage: Storage, node: Node, outputs: set[int]) -> tuple[list[Node], set[int]]:
    """The terms of a sum of values that are used nowhere else, and the numbers of the additions. A scatter-add is the
    sum of its base and what it scatters."""
    if node.number in outputs or len(storage.users[node.number]) != 1:
        return [node], set()
    if node.op.name == "add":
        left, right = (_terms(storage, arg, outputs) for arg in node.args)
        return left[0] + right[0], left[1] | right[1] | {node.number}
    if node.op.name == "scatter_add" and not _is_zero(node.args[0]):
        base = _terms(storage, node.args[0], outputs)
        return [*base[0], node], base[1]
    return [node], set()


def _is_zero(node: Node) -> bool:
    constant = node.args[0] if node.op.name == "broadcast" else node
    return constant.op.name == "constant" and constant.attrs["value"] == 0


def _accumulating(storage: Storage, node: Node, slot: Node, outputs: set[int]) -> ProductCall | ScatterCall | None:
    """How a term of an update is added to the slot by its own step, or None. `outputs` are those but the update."""
    if len(storage.users[node.number]) > 1 or node.number in outputs:
        return None
    if node.op.name == "scatter_add":
        return ScatterCall(node, slot)
    contraction = node
    while contraction.op.name in ("reshape", "transpose"):
        contraction = contraction.args[0]
        if len(storage.users[contraction.number]) != 1 or contraction.number in outputs:
            return None
    placed = _result_view(contraction, node) if is_product(contraction) else None
    if placed is None:
        return None
    left, right = (View(arg, contiguous(arg.shape), 0) for arg in contraction.args)
    shape = product_of(contraction, left, right, placed)
    return None if shape is None else ProductCall(contraction, shape, left, right, node, slot)


# Storing and recomputing --------------------------------------------------------------------------------------------


def _read_from_memory(node: Node) -> tuple[Node, ...]:
    """Arguments that the node reads at places that are no affine map, so that they cannot be computed inside it."""
    if node.op.name in ("take", "fold"):
        return node.args[:1]
    return ()


def _use(storage: Storage, node: Node) -> Use:
    reads: dict[int, int] = {}
    cost, depth = COSTS.get(node.op.name, 1), 1
    for arg in node.args:
        if storage.readable(arg):
            # A gather reads as many elements as it gives, whatever the size of its table.
            gathered = node.op.name == "take" and arg is node.args[0]
            reads[arg.number] = max(reads.get(arg.number, 0), node.type.size if gathered else arg.type.size)
        elif arg.number in storage.uses:
            inner = storage.uses[arg.number]
            reads |= inner.large
            cost, depth = cost + inner.cost, max(depth, inner.depth + 1)
    large = {number: size for number, size in reads.items() if size > 1 and 2 * size >= node.type.size}
    return Use(large, min(cost, 10**6), depth)


def _worth_storing(storage: Storage, node: Node) -> bool:
    """Whether the node is better kept than computed again in each user."""
    if node.op.name in ("constant", "iota", "broadcast"):
        return False
    use = _use(storage, node)
    if use.depth > DEEPEST or use.cost > LARGEST:
        return True
    users = storage.users[node.number]
    if node.op.kind == "elementwise" and use.cost >= BROADCAST_COST:
        for user in users:
            if user.op.name == "broadcast" and user.type.size >= BROADCAST_GROWTH * node.type.size:
                return True
    if len(users) < 2:
        return False
    return len(use.large) >= 2 or use.cost * (len(users) - 1) > EXPENSIVE
