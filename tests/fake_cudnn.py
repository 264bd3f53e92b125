"""A stand-in of the package of cuDNN: graphs that run in host memory, by the sizes and strides that their tensors were
given, in float32 between what is read and what is written."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

STAGES = (
    "validate",
    "build_operation_graph",
    "create_execution_plans",
    "deselect_numeric_notes",
    "check_support",
    "build_plans",
    "get_workspace_size",
)
MODULE_BYTES = b"graph "  # what a graph that was written begins with
WORKSPACE = 96
POINTWISE: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "identity": torch.clone,
    "cmp_lt": torch.lt,
    "cmp_le": torch.le,
    "cmp_gt": torch.gt,
    "cmp_ge": torch.ge,
    "cmp_eq": torch.eq,
    "cmp_neq": torch.ne,
    "binary_select": lambda then, otherwise, mask: torch.where(mask, then, otherwise),
}
TYPES = {"half": torch.float16, "bfloat": torch.bfloat16, "single": torch.float32, "boolean": torch.bool}


def host_tensor(address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """A tensor on host memory, which torch takes by its bits."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention and its statistics by the formula."""
    repeat = q.shape[1] // k.shape[1]
    scores = scale * q.float() @ k.float().repeat_interleave(repeat, 1).transpose(-1, -2)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    out = scores.softmax(-1) @ v.float().repeat_interleave(repeat, 1)
    return out.to(q.dtype), scores.logsumexp(-1)


@dataclass(eq=False)
class Symbol:
    """A tensor of a graph: whatever is set of it by `set_NAME` is its NAME. `make` gives its value, of a result."""

    known: dict[str, Any] = field(default_factory=dict)
    make: Callable[[Callable[[Symbol], Tensor]], Tensor] | None = None

    def __getattr__(self, name: str) -> Callable[[object], Symbol]:
        def put(value: object) -> Symbol:
            self.known[name.removeprefix("set_")] = value
            return self

        return put

    @property
    def written(self) -> bool:
        return bool(self.known.get("output"))


class Graph:
    def __init__(self, package: Package) -> None:
        self.package = package
        self.symbols: list[Symbol] = []
        self.operations: list[str] = []
        self.stages: list[str] = []

    def tensor(self, **known: object) -> Symbol:
        self.symbols.append(Symbol(dict(known)))
        return self.symbols[-1]

    def _result(self, name: str, make: Callable[[Callable[[Symbol], Tensor]], Tensor]) -> Symbol:
        self.operations.append(name)
        self.symbols.append(Symbol(make=make))
        return self.symbols[-1]

    def matmul(self, a: Symbol, b: Symbol, name: str) -> Symbol:
        return self._result("matmul", lambda value: value(a).float() @ value(b).float())

    def sdpa(self, **options: Any) -> tuple[Symbol, Symbol]:
        def made(number: int) -> Symbol:
            def make(value: Callable[[Symbol], Tensor]) -> Tensor:
                q, k, v = (value(options[name]) for name in "qkv")
                found = attend(q, k, v, options["use_causal_mask"], options["attn_scale"])
                return (found[0], found[1].unsqueeze(-1))[number]

            return self._result("sdpa", make)

        result, statistics = made(0), made(1)
        self.inference = (options["is_inference"], statistics)
        return result, statistics

    def sdpa_backward(self, **options: Any) -> tuple[Symbol, ...]:
        assert options["use_deterministic_algorithm"] is True

        def made(number: int) -> Symbol:
            def make(value: Callable[[Symbol], Tensor]) -> Tensor:
                leaves = [value(options[name]).float().requires_grad_() for name in "qkv"]
                result, _ = attend(*leaves, options["use_causal_mask"], options["attn_scale"])
                return torch.autograd.grad(result, leaves, value(options["dO"]).float())[number]

            return self._result("sdpa_backward", make)

        return tuple(made(number) for number in range(3))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in POINTWISE:
            function = POINTWISE[name]

            def operation(*operands: Symbol) -> Symbol:
                return self._result(name, lambda value: function(*(value(each) for each in operands)))

            return operation
        if name not in STAGES:
            raise AttributeError(name)

        def stage(*given: object) -> object:
            assert name == STAGES[len(self.stages)]
            self.stages.append(name)
            self._check(name, given)
            return WORKSPACE if name == "get_workspace_size" else None

        return stage

    def serialize(self) -> list[int]:
        """A list of bytes, as versions of the package have always given it."""
        assert self.stages[-1] == "build_plans"
        self.package.written.append(self)
        return list(MODULE_BYTES + str(len(self.package.written) - 1).encode())

    def deserialize(self, handle: object, data: list[int]) -> None:
        assert handle is self.package
        content = bytes(data)
        if not content.startswith(MODULE_BYTES):
            raise self.package.Refusal("this is no graph")
        written = self.package.written[int(content.removeprefix(MODULE_BYTES))]
        self.symbols, self.stages = written.symbols, list(STAGES[:-1])
        if hasattr(written, "inference"):
            self.inference = written.inference

    def _check(self, stage: str, given: Sequence[object]) -> None:
        if stage == "validate":
            named = [symbol for symbol in self.symbols if symbol.make is None or symbol.written]
            numbers = [symbol.known["uid"] for symbol in named]
            assert len(set(numbers)) == len(numbers)
            assert all({"dim", "stride", "data_type"} <= symbol.known.keys() for symbol in named)
        if stage == "deselect_numeric_notes":
            assert given == (["nondeterministic"],)
        if stage == "check_support" and self.package.refuses:
            raise self.package.Refusal("no engine\nmore words")

    def execute(self, places: Mapping[int, int], workspace: int, handle: object) -> None:
        assert self.stages == list(STAGES)
        assert workspace == self.package.workspace
        assert handle is self.package
        named = {s.known["uid"]: s for s in self.symbols if s.make is None or s.written}
        assert places.keys() == named.keys()
        if hasattr(self, "inference"):
            inference, statistics = self.inference
            assert inference is not statistics.written
        values: dict[int, Tensor] = {}

        def value(symbol: Symbol) -> Tensor:
            if id(symbol) not in values:
                if symbol.make is None:
                    values[id(symbol)] = self._lies(symbol, places).float().clone()
                else:
                    values[id(symbol)] = symbol.make(value)
                is_boolean = values[id(symbol)].dtype is torch.bool
                assert is_boolean is (symbol.known.get("data_type") == "boolean")
            return values[id(symbol)]

        made = [(symbol, value(symbol)) for symbol in named.values() if symbol.written]
        for symbol, result in made:
            self._lies(symbol, places).copy_(result)
        self.package.executed += 1

    def _lies(self, symbol: Symbol, places: Mapping[int, int]) -> Tensor:
        known = symbol.known
        shape, strides = tuple(known["dim"]), tuple(known["stride"])
        return host_tensor(places[known["uid"]], TYPES[known["data_type"]], shape, strides)


class Package:
    """A stand-in of the module `cudnn`. `workspace`: the address that a graph's has to have."""

    class Refusal(Exception):
        pass

    data_type = SimpleNamespace(BFLOAT16="bfloat", HALF="half", FLOAT="single", BOOLEAN="boolean")
    heur_mode = SimpleNamespace(A="a")
    numerical_note = SimpleNamespace(NONDETERMINISTIC="nondeterministic")

    written: ClassVar[list[Graph]] = []  # by any process

    def __init__(self, refuses: bool = False, workspace: int = 4096) -> None:
        self.refuses = refuses
        self.workspace = workspace
        self.made: list[Graph] = []
        self.streams: list[int] = []
        self.executed = 0

    def create_handle(self) -> Package:
        return self

    def set_stream(self, handle: object, stream: int) -> None:
        self.streams.append(stream)

    def pygraph(self, **known: object) -> Graph:
        assert {known.get("intermediate_data_type"), known.get("compute_data_type")} in ({"single"}, {None})
        self.made.append(Graph(self))
        return self.made[-1]
