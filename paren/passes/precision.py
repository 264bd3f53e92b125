"""Mixed precision: a graph in float32 becomes one whose products take short floats, and whose kept values are short.

The pass runs on whole graphs, after differentiation: what the new graph means in numpy is what `:precision bfloat16` or
`float16` means, whatever kernels compute it and whatever of it is kept in memory. Rounded are, to nearest even,

- the operands of every product (`contract` and `attention` of float32). An operand that is a parameter or data is
  rounded for products only. Any other value that a product takes is rounded for all its uses, so that nothing but the
  rounded value has to be kept, with two exceptions: additions and subtractions, so that a residual stream and the
  gradient along it stay in float32, and comparisons, so that a maximum is still found among the values it was taken
  from.
- the result of every product, unless it is a term of a parameter's gradient: those add up in float32.

Everything else, losses, softmax, norms, reductions, optimizers, is computed in float32 from the widened values. Sums
within a product are float32's, and so are the statistics of attention.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Attrs
from paren.ir.types import DType
from paren.passes.simplify import simpler, simplify
from paren.text.source import Span

VIEWS = ("reshape", "transpose", "slice")
SUMS = ("add", "sub")
ATTENTION = ("attention", "attention_gradient")  # their results are rounded by themselves
STATISTICS = "attention_statistics"
PRODUCTS = ("contract", *ATTENTION, STATISTICS)
EXACT = (*SUMS, "eq", "ne", "lt", "le", "gt", "ge")  # what sees values that are rounded for all other uses
PRECISIONS = ("off", "bfloat16", "float16")


def set_precision(graph: Graph, precision: str, gradients: Collection[str] = ()) -> Graph:
    """The graph in one of `PRECISIONS`, simplified; `off` leaves it as it is. `gradients` names the outputs that are
    parameters' gradients. Products of float64 stay, and so do those that the program asks for in a short type."""
    return graph if precision == "off" else _Rounding(simplify(graph), DType(precision), gradients).run()


class _Rounding:
    def __init__(self, graph: Graph, short: DType, gradients: Collection[str]) -> None:
        self.graph = graph
        self.short = short
        self.builder = Builder(graph.name, _moving_casts)
        self.exact: dict[Node, Node] = {}  # the node that stands for a node, as `EXACT` sees it
        self.kept: dict[Node, Node] = {}  # the same rounded and widened, where all other uses see that
        self.operands = _operands(graph)
        self.gradients = _gradient_terms(graph, gradients)

    def run(self) -> Graph:
        for node in self.graph.inputs:
            name, role = str(node.attrs["name"]), str(node.attrs["role"])
            self.exact[node] = self.builder.input(name, node.type, role, node.span)
        for node in self.graph.nodes:
            if node not in self.exact:
                self._emit(node)
        return self.builder.graph({name: self._seen(node) for name, node in self.graph.outputs.items()})

    def _emit(self, node: Node) -> None:
        if _is_product(node):
            product = self._again(node, [self._factor(arg, node.span) for arg in node.args])
            if node.op.name in ATTENTION:
                product = self.builder.cast(product, DType.FLOAT32)
            elif node.op.name != STATISTICS and node not in self.gradients:
                product = self._rounded(product)
            self.exact[node] = product
            return
        if node.op.name in (*VIEWS, "broadcast") and node not in self.operands:
            self.exact[node] = self._again(node, [self.exact[arg] for arg in node.args])
            if node.args[0] in self.kept:
                self.kept[node] = self._again(node, [self.kept[arg] for arg in node.args])
            return
        args = [self.exact[arg] if node.op.name in EXACT else self._seen(arg) for arg in node.args]
        self.exact[node] = self._again(node, args)
        if node in self.operands:
            self.kept[node] = self._rounded(self.exact[node])

    def _again(self, node: Node, args: Sequence[Node]) -> Node:
        return self.builder.emit(node.op.name, args, node.attrs, node.span)

    def _seen(self, node: Node) -> Node:
        """The value that other uses see."""
        return self.kept.get(node, self.exact[node])

    def _rounded(self, node: Node) -> Node:
        """The value rounded, in float32 again."""
        return self.builder.cast(self.builder.cast(node, self.short), DType.FLOAT32)

    def _factor(self, node: Node, span: Span) -> Node:
        """The value as a product takes it."""
        if node.op.name == STATISTICS:
            return self.exact[node]
        return self.builder.cast(self._seen(node), self.short, span)


def _is_product(node: Node) -> bool:
    return node.op.name in PRODUCTS and node.args[0].dtype is DType.FLOAT32


def _operands(graph: Graph) -> set[Node]:
    """The values that products take, directly or as views. Parameters and data are not among them."""
    found: set[Node] = set()
    for node in graph.nodes:
        for arg in node.args if _is_product(node) else ():
            while arg.op.name in VIEWS:
                arg = arg.args[0]
            if arg.op.kind != "leaf" and not _is_product(arg):
                found.add(arg)
    return found


def _gradient_terms(graph: Graph, gradients: Collection[str]) -> set[Node]:
    """The products that nothing but these outputs are sums of, as views or summed up over axes."""
    users: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    outputs = set(graph.outputs.values())
    inside = {graph.outputs[name] for name in gradients}
    for node in reversed(graph.nodes):
        if node not in outputs and all(user in inside and _passes_on(user) for user in users[node]):
            inside.add(node)
    return {node for node in inside if _is_product(node)}


def _passes_on(user: Node) -> bool:
    """Whether a node only adds up products, or moves them. A scatter's indices are integers, so not products."""
    return user.op.name in (*VIEWS, *SUMS, "sum", "pad", "concat", "scatter_add")


def _moving_casts(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """Views are taken of rounded values: a rounding goes before them, a widening after them."""
    if name in VIEWS and _is_widening(args[0]):
        view = builder.emit(name, args[0].args, attrs, span)
        return builder.cast(view, DType.FLOAT32, span)
    target = attrs.get("dtype")
    rounding = name == "cast" and isinstance(target, DType) and target.is_short and args[0].dtype is DType.FLOAT32
    if rounding and args[0].op.name in VIEWS:
        inner = builder.emit("cast", args[0].args, attrs, span)
        return builder.emit(args[0].op.name, (inner,), args[0].attrs, span)
    return simpler(builder, name, args, attrs, span)


def _is_widening(node: Node) -> bool:
    return node.op.name == "cast" and node.args[0].dtype.is_short and node.dtype is DType.FLOAT32
