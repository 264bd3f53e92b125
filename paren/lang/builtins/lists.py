"""Lists, functions, texts, and questions about values."""

from __future__ import annotations

from paren.lang.builtins.registry import builtin
from paren.lang.operand import need_integer, need_list, need_tensor, wrong_kind
from paren.lang.session import MAXIMUM_ELEMENTS, Session
from paren.lang.signature import Site
from paren.lang.value import POISON, Builtin, Closure, ModelValue, Rule, RuleByRank, Tensor, Value, show
from paren.text.size import count_of


@builtin("list", "& values")
def make_list(session: Session, site: Site, values: tuple[Value, ...]) -> Value:
    """A list of the values."""
    return values


@builtin("length", "x")
def length(session: Session, site: Site, x: Value) -> Value:
    """The number of elements of a list, or of characters of a string."""
    return len(x) if isinstance(x, str) else len(need_list(session, site, x, 0))


@builtin("nth", "x index")
def nth(session: Session, site: Site, x: Value, index: Value) -> Value:
    """An element of a list, counted from 0, negative from the end."""
    values = need_list(session, site, x, 0)
    position = need_integer(session, site, index, 1)
    if not -len(values) <= position < len(values):
        at = site.positional[1] if len(site.positional) > 1 else None
        raise session.error(
            "E-CALL-008", f"position {position} is outside a list of {count_of(len(values), 'element')}", site, at=at
        )
    return values[position]


def _element(session: Session, site: Site, x: Value) -> tuple[Value, ...]:
    values = need_list(session, site, x, 0)
    if not values:
        raise wrong_kind(session, site, x, 0, "a list with elements")
    return values


@builtin("first", "x")
def first(session: Session, site: Site, x: Value) -> Value:
    """The first element of a list."""
    return _element(session, site, x)[0]


@builtin("last", "x")
def last(session: Session, site: Site, x: Value) -> Value:
    """The last element of a list."""
    return _element(session, site, x)[-1]


@builtin("rest", "x")
def rest(session: Session, site: Site, x: Value) -> Value:
    """All elements of a list but the first."""
    return _element(session, site, x)[1:]


@builtin("append", "& lists")
def append(session: Session, site: Site, lists: tuple[Value, ...]) -> Value:
    """The elements of all lists in one list."""
    return tuple(item for key, part in enumerate(lists) for item in need_list(session, site, part, key))


@builtin("reverse", "x")
def reverse(session: Session, site: Site, x: Value) -> Value:
    """The list from its end to its start."""
    return need_list(session, site, x, 0)[::-1]


@builtin("range", "start :until :step", until=None, step=1)
def number_range(session: Session, site: Site, start: Value, until: Value, step: Value) -> Value:
    """`(range n)` is [0 ... n-1]; `(range a :until b :step s)` goes from a up to b, without b."""
    a, s = need_integer(session, site, start, 0), need_integer(session, site, step, "step")
    if s == 0:
        raise wrong_kind(session, site, step, "step", "a step other than 0")
    numbers = range(a) if until is None else range(a, need_integer(session, site, until, "until"), s)
    if abs(numbers.stop - numbers.start) > MAXIMUM_ELEMENTS:
        raise session.error("E-CALL-010", f"a list has at most {MAXIMUM_ELEMENTS} elements", site)
    return tuple(numbers)


@builtin("map", "function & lists")
def map_lists(session: Session, site: Site, function: Value, lists: tuple[Value, ...]) -> Value:
    """The function applied to the elements of one list, or of several lists of equal length."""
    columns = [need_list(session, site, values, key) for key, values in enumerate(lists, start=1)]
    if not columns:
        raise session.error("E-CALL-001", "map needs a list", site)
    if len({len(column) for column in columns}) > 1:
        lengths = " and ".join(str(len(column)) for column in columns)
        raise session.error("E-CALL-008", f"the lists of map have {lengths} elements", site)
    inner = Site(site.span, (), {}, site.internal)
    results = tuple(session.apply(function, values, {}, inner) for values in zip(*columns, strict=True))
    return POISON if POISON in results else results


@builtin("text", "& values")
def text(session: Session, site: Site, values: tuple[Value, ...]) -> Value:
    """The values written one after the other."""
    return "".join(value if isinstance(value, str) else show(value) for value in values)


@builtin("shape", "x")
def shape(session: Session, site: Site, x: Value) -> Value:
    """The sizes of one example of a tensor; the batch is not among them."""
    return _asked(session, need_tensor(session, site, x, 0)).shape


@builtin("rank", "x")
def rank(session: Session, site: Site, x: Value) -> Value:
    """The number of axes of one example of a tensor."""
    return _asked(session, need_tensor(session, site, x, 0)).rank


@builtin("size", "x :axis", axis=None)
def size(session: Session, site: Site, x: Value, axis: Value) -> Value:
    """The number of elements of one example, or its size along an axis."""
    tensor = _asked(session, need_tensor(session, site, x, 0))
    if axis is not None:
        index = need_integer(session, site, axis, "axis", "an axis (an integer)")
        if not -tensor.rank <= index < tensor.rank:
            raise session.error("E-TYPE-003", f"axis {index} is outside {tensor}", site)
        return tensor.shape[index]
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count


def _asked(session: Session, tensor: Tensor) -> Tensor:
    if session.trace is not None:
        session.trace.shape_asked = True
    return tensor


@builtin("dtype", "x")
def dtype(session: Session, site: Site, x: Value) -> Value:
    """The element type of a tensor."""
    return need_tensor(session, site, x, 0).dtype


@builtin("training?", "")
def training(session: Session, site: Site) -> Value:
    """Whether this is the graph that trains: dropout is on there, and off in evaluation, metrics and calls."""
    return session.need_trace(site).training


@builtin("tensor?", "x")
def is_tensor(session: Session, site: Site, x: Value) -> Value:
    """Whether the value is a tensor."""
    return isinstance(x, Tensor)


@builtin("number?", "x")
def is_number(session: Session, site: Site, x: Value) -> Value:
    """Whether the value is a number."""
    return isinstance(x, (int, float)) and not isinstance(x, bool)


@builtin("integer?", "x")
def is_integer(session: Session, site: Site, x: Value) -> Value:
    """Whether the value is an integer."""
    return isinstance(x, int) and not isinstance(x, bool)


@builtin("list?", "x")
def is_list(session: Session, site: Site, x: Value) -> Value:
    """Whether the value is a list."""
    return isinstance(x, tuple)


@builtin("none?", "x")
def is_none(session: Session, site: Site, x: Value) -> Value:
    """Whether the value is `none`."""
    return x is None


@builtin("function?", "x")
def is_function(session: Session, site: Site, x: Value) -> Value:
    """Whether the value can be called."""
    return isinstance(x, (Closure, Builtin, ModelValue))


@builtin("float?", "x")
def is_float(session: Session, site: Site, x: Value) -> Value:
    """Whether the value is a tensor of floats."""
    return isinstance(x, Tensor) and x.dtype.is_float


@builtin("split-by-rank", "matrices others")
def split_by_rank(session: Session, site: Site, matrices: Value, others: Value) -> Value:
    """An optimizer with one rule for parameters of rank 2 and another for the rest."""
    if not isinstance(matrices, Rule):
        raise wrong_kind(session, site, matrices, 0, "an optimizer")
    if not isinstance(others, Rule):
        raise wrong_kind(session, site, others, 1, "an optimizer")
    return RuleByRank(matrices, others)
