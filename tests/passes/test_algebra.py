"""Every rule of the algebra keeps the value, NaN and infinity included, and makes the expression cheaper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_samples import comparable

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Node
from paren.ir.op import Array
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.passes.rules import AlgebraRule, Literal, Pattern, Term, Variable, algebra_rules, variables
from paren.passes.simplify import simpler
from paren.text.source import Source, Span

SPAN = Span(Source("algebra.paren", "(x)"), 0, 3)
SIZE = 64
RULES = {rule.name: rule for rule in algebra_rules()}
# These compute the same number along another way, so they agree to rounding.
ROUNDED = ("pow-two", "pow-three", "pow-minus-one")
WEIGHTS = {"pow": 8, "div": 4, "sqrt": 4, "rsqrt": 4, "neg": 1, "not": 1}


def typings(rule: AlgebraRule) -> Iterator[tuple[DType, dict[str, DType]]]:
    """The result's element type and the variables', for all ways in which the rule's left side has a type."""
    names = sorted(set(variables(rule.pattern)))
    for dtype in DType:
        for choice in itertools.product(*([dtype] if dtype is DType.BOOL else [dtype, DType.BOOL] for _ in names)):
            types = dict(zip(names, choice, strict=True))
            try:
                result = made(Builder("typing"), rule.pattern, types, dtype).dtype
            except TypeMismatch:
                continue
            if result in rule.dtypes and dtype in (*choice, result):
                yield dtype, types


def made(builder: Builder, pattern: Pattern, types: dict[str, DType], literal: DType) -> Node:
    """The pattern as nodes: variables become inputs; a boolean literal is boolean, a number has type `literal`."""
    match pattern:
        case Variable(name):
            return builder.input(name, TensorType(types[name], (SIZE,)), "batch", SPAN)
        case Literal(value):
            dtype = DType.BOOL if isinstance(value, bool) else literal
            if (dtype is DType.BOOL) != isinstance(value, bool):
                raise TypeMismatch("a number among booleans")
            return builder.broadcast(builder.constant(value, dtype, SPAN), (SIZE,))
        case Term(op, args):
            return builder.emit(op, [made(builder, arg, types, literal) for arg in args], {}, SPAN)


def values(types: dict[str, DType]) -> dict[str, Array]:
    """Random numbers, and the special ones in random combinations."""
    generator = np.random.default_rng(3)
    result: dict[str, Array] = {}
    for name, dtype in types.items():
        if dtype.is_float:
            special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e30, -1e-30, 0.5])
            mixed = np.where(generator.random(SIZE) < 0.6, generator.choice(special, SIZE), generator.normal(size=SIZE))
            with np.errstate(over="ignore"):
                result[name] = mixed.astype(dtype.numpy)
        elif dtype is DType.BOOL:
            result[name] = generator.random(SIZE) < 0.5
        else:
            limits = np.iinfo(dtype.value)
            special_integers = np.array([limits.min, limits.max, 0, 1, 2, 31, 32], dtype.numpy)
            drawn = generator.integers(limits.min, limits.max, SIZE, dtype=dtype.numpy, endpoint=True)
            result[name] = np.where(generator.random(SIZE) < 0.5, generator.choice(special_integers, SIZE), drawn)
    return result


def terms(pattern: Pattern) -> set[Term]:
    if not isinstance(pattern, Term):
        return set()
    return {pattern}.union(*(terms(arg) for arg in pattern.args))


def cost(pattern: Pattern) -> int:
    return sum(WEIGHTS.get(term.op, 2) for term in terms(pattern))


def test_rule_names_differ_and_the_algebra_is_there() -> None:
    assert len(RULES) == len(algebra_rules())
    assert len(RULES) >= 50


@pytest.mark.parametrize("name", list(RULES))
def test_a_rule_keeps_the_value_of_every_type_it_is_for(name: str) -> None:
    rule = RULES[name]
    cases = list(typings(rule))
    assert cases, "the left side has no type"
    for literal, types in cases:
        builder = Builder("sides")
        left = made(builder, rule.pattern, types, literal)
        right = made(builder, rule.replacement, types, left.dtype)
        assert left.type == right.type
        found = evaluate(builder.graph({"left": left, "right": right}), values(types))
        if name in ROUNDED:
            np.testing.assert_allclose(found["right"], found["left"], rtol=3e-7)
        else:
            np.testing.assert_array_equal(comparable(found["right"]), comparable(found["left"]))


@pytest.mark.parametrize("name", list(RULES))
def test_a_rule_makes_the_expression_cheaper(name: str) -> None:
    assert cost(RULES[name].replacement) < cost(RULES[name].pattern)


@pytest.mark.parametrize("name", list(RULES))
def test_a_builder_with_the_algebra_applies_the_rule(name: str) -> None:
    rule = RULES[name]
    for literal, types in typings(rule):
        builder = Builder("applied", simpler)
        left = made(builder, rule.pattern, types, literal)
        right = made(builder, rule.replacement, types, left.dtype)
        assert left is right


@pytest.mark.parametrize(
    ("name", "operands", "dtype"),
    [
        ("mul", ("x", 0.0), DType.FLOAT32),
        ("sub", ("x", "x"), DType.FLOAT32),
        ("div", ("x", "x"), DType.FLOAT32),
        ("eq", ("x", "x"), DType.FLOAT32),
        ("floor_divide", ("x", 1.0), DType.FLOAT32),
        ("xor", ("x", "y"), DType.BOOL),
    ],
)
def test_what_would_change_nan_stays(name: str, operands: tuple[str | float, ...], dtype: DType) -> None:
    builder = Builder("stays", simpler)
    nodes: list[Node | float] = [
        builder.input(o, TensorType(dtype, (3,)), "batch", SPAN) if isinstance(o, str) else o for o in operands
    ]
    assert builder.apply(name, *nodes).op.name == name
