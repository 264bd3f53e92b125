"""A trained model taken out of a run: called on arrays, saved as weights, asked for text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from paren.data.tokenizer import Tokenizer, load_tokenizer
from paren.environment import read_environment
from paren.ir.op import Array
from paren.ir.program import Model, Program, Value
from paren.lang.elaborate import elaborate_kept
from paren.passes.alternatives import choose
from paren.passes.precision import set_precision
from paren.pipeline import Planning, plan_graph
from paren.plan.traits import traits_of
from paren.runtime.array import AnyArray, AnyBytes
from paren.runtime.block import Block, allocate_array, input_types
from paren.runtime.device import Device, open_device
from paren.runtime.executor import Executable
from paren.runtime.memory import ALIGNMENT
from paren.text.errors import ParenError
from paren.train.read_run import read_metrics, read_weights
from paren.train.run_directory import read_run_file

TOKENIZER = "tokenizer.json"
MOST_PLANS = 8  # numbers of rows whose plans a restored model keeps
_LONGEST_LIST = 8  # characters that a message names
Batch = TypeVar("Batch")


@dataclass
class RestoredModel:
    """A model with its trained parameters, on a device.

    Calling it takes one array for each input of the model, with the examples in front (`tokens[n, seq]`), NumPy or
    torch; the result is of the same kind. Dropout is off. Any number of examples is taken: a plan is made for each
    number that occurs, the last few are kept, and they share one arena.
    """

    out: Path
    program: Program = field(repr=False)
    step: int
    device: Device = field(repr=False)
    weights: Mapping[str, AnyArray] = field(repr=False)
    _executables: dict[int, tuple[Executable, Block]] = field(default_factory=dict, repr=False)
    _arena: AnyBytes = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)

    @property
    def model(self) -> Model:
        """The declared model: the only one, or the first."""
        return self.program.models[0]

    @property
    def settings(self) -> dict[str, Value]:
        """The values of the file's settings in the run."""
        return {setting.name: setting.value for setting in self.program.settings}

    def metrics(self) -> dict[str, Array]:
        """The run's metrics as columns, NaN where a line has none."""
        return dict(read_metrics(self.out))

    def parameters(self) -> dict[str, Array]:
        """Copies of the parameters by name."""
        return {name: np.array(value) for name, value in self.weights.items()}

    def save(self, path: str | Path) -> None:
        """Writes the parameters as a safetensors file. Raises E-RUN-005 where that is not possible."""
        try:
            save_file(self.parameters(), str(path))
        except (OSError, SafetensorError) as error:
            raise ParenError(
                "E-RUN-005", f"{path} could not be written ({error})", fix="give a path in a folder that is writable"
            ) from error

    def __call__(self, *inputs: Batch) -> Batch:
        """The model's result for a batch. Raises E-DATA-023 for inputs that do not fit the declared ones, or have
        values that the model cannot take (a token beyond its vocabulary, a number that is not finite)."""
        arrays = [array if isinstance(array, np.ndarray) else _from_torch(array) for array in inputs]
        result = self._run([self._checked(i, array) for i, array in enumerate(arrays)])
        if not any(hasattr(array, "detach") for array in inputs):
            return result  # type: ignore[return-value]
        import torch  # only for who has tensors of it

        return torch.from_numpy(result)  # type: ignore[return-value]

    def _checked(self, position: int, array: Array) -> Array:
        fields = self.model.inputs
        if position >= len(fields):
            raise ParenError("E-DATA-023", f"model {self.model.name} takes {len(fields)} inputs, got more")
        wanted = fields[position]
        if array.ndim != 1 + wanted.type.rank or array.shape[1:] != wanted.type.shape or len(array) < 1:
            shape = " ".join(map(str, wanted.type.shape))
            raise ParenError(
                "E-DATA-023",
                f"input {wanted.name} has shape {list(array.shape)}, the model takes [n{' ' if shape else ''}{shape}]",
                wanted.span,
                fix="give a batch of that shape: one or more examples along the first axis, n",
            )
        kinds = "bui" if wanted.type.dtype.is_integer else "buif"
        if array.dtype.kind not in kinds:
            raise ParenError(
                "E-DATA-023",
                f"input {wanted.name} holds {array.dtype}, the model takes {wanted.type.dtype}",
                wanted.span,
                fix=f"convert it to {wanted.type.dtype}",
            )
        for low, high in self._ranges.get(wanted.name, ()):
            least, greatest = int(array.min()), int(array.max())
            if least < low or greatest >= high:
                value = least if least < low else greatest
                raise ParenError(
                    "E-DATA-023",
                    f"input {wanted.name} holds {value}, the model takes {low} .. {high - 1}",
                    wanted.span,
                )
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
            given = np.ascontiguousarray(array, wanted.type.dtype.numpy)
        if wanted.type.dtype.is_float and not np.isfinite(given).all():
            example = int(np.argwhere(~np.isfinite(given))[0][0])
            value = given[example][~np.isfinite(given[example])].flat[0]
            raise ParenError(
                "E-DATA-023",
                f"input {wanted.name} holds {value} in example {example}, the model takes finite numbers",
                wanted.span,
            )
        return given

    @cached_property
    def _ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Integer inputs by name -> the ranges (low, high) in which the model takes them."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        for bound in self.model.bounds():
            ranges.setdefault(bound.field, []).append((bound.low, bound.high))
        return ranges

    def _run(self, arrays: list[Array]) -> Array:
        fields = self.model.inputs
        if len(arrays) != len(fields) or len({len(array) for array in arrays}) != 1:
            lengths = ", ".join(str(len(array)) for array in arrays) or "no input"
            names = ", ".join(field.name for field in fields)
            raise ParenError("E-DATA-023", f"the model takes equally many examples of {names}, got {lengths}")
        rows = len(arrays[0])
        executable, block = self._executable(rows)
        given = {field.name: array for field, array in zip(fields, arrays, strict=True)}
        given |= {"$rows": np.arange(rows, dtype=np.uint32), "$valid": np.ones(rows, np.float32)}
        given |= {"$seed": np.zeros((), np.uint32), "$step": np.zeros((), np.uint32)}
        for name, array in block.host.items():
            np.copyto(array, given[name])
        block.send()
        return np.array(executable.run(self.weights, block.arrays, self._arena)["result"])

    def _executable(self, rows: int) -> tuple[Executable, Block]:
        """The plan for so many rows, and where its inputs lie."""
        if rows not in self._executables:
            if len(self._executables) == MOST_PLANS:
                del self._executables[next(iter(self._executables))]
            traits, precision = traits_of(self.device.name), self.program.run.precision
            graph = set_precision(choose(self.model.forward(rows), traits.attends, precision), precision)
            plan = plan_graph(graph, planning=Planning(traits=traits))
            self._executables[rows] = Executable(self.device, plan), Block(self.device, input_types(plan))
            if max(ALIGNMENT, plan.arena_bytes) > len(self._arena):
                self._arena = self.device.allocate(max(ALIGNMENT, plan.arena_bytes))
        return self._executables[rows]


class _Tensor(Protocol):
    """What a torch tensor offers: paren takes it without importing torch."""

    def detach(self) -> _Tensor: ...

    def cpu(self) -> _Tensor: ...

    def numpy(self) -> Array: ...


def _from_torch(tensor: object) -> Array:
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    try:
        return cast(_Tensor, tensor).detach().cpu().numpy()
    except TypeError as error:
        raise ParenError(
            "E-DATA-023", f"NumPy has no type for this tensor: {error}", fix="convert the tensor to float32 or int32"
        ) from error


def read_program(out: Path) -> Program:
    """The program of a run, from the texts and settings kept in its folder. Raises E-RUN-014 if there is no run."""
    stored = read_run_file(out)
    if stored is None:
        raise ParenError("E-RUN-014", f"{out} holds no run", fix="give the directory of a run")
    texts = {path: entry["text"] for path, entry in stored["sources"].items()}
    settings = {name: _value(value) for name, value in stored["settings"].items()}
    return elaborate_kept(stored["program"], stored["variant"], settings, texts)


def _value(value: object) -> Value:
    """A setting as JSON keeps it, as the language has it."""
    if isinstance(value, list):
        return tuple(_value(item) for item in value)
    return value  # type: ignore[return-value]


def read_model(out: Path, device: Device, *, best: bool = False, checkpoints: Path | None = None) -> RestoredModel:
    """The model of a run with its newest (or best) weights; averages, where the run keeps them, stand for
    parameters."""
    program = read_program(out)
    weights = read_weights(out, best=best, checkpoints=checkpoints)
    values = dict(weights.parameters) | dict(weights.averages)
    placed: dict[str, AnyArray] = {}
    for slot in program.parameters:
        placed[slot.name] = allocate_array(device, slot.type.dtype.numpy, slot.type.shape)
        placed[slot.name][...] = values[slot.name]
    return RestoredModel(out, program, weights.step, device, placed)


def restore(
    out: str | Path, device: str = "cpu", *, best: bool = False, checkpoints: str | Path | None = None
) -> RestoredModel:
    """The trained model of a run, from its newest checkpoint or, with `best`, its best evaluation. All hashes are
    verified."""
    opened = open_device(device, None, read_environment().cache / "kernels")
    return read_model(Path(out), opened, best=best, checkpoints=Path(checkpoints) if checkpoints else None)


def sample(
    out: str | Path,
    prompt: str = "",
    length: int = 200,
    temperature: float = 1.0,
    seed: int = 0,
    checkpoints: str | Path | None = None,
) -> Iterator[str]:
    """Text from the language model of a run, piece by piece; `checkpoints` says where its checkpoints are, if not in
    its folder."""
    return sample_text(restore(out, checkpoints=checkpoints), prompt, length, temperature, seed)


def sample_text(model: RestoredModel, prompt: str, length: int, temperature: float, seed: int) -> Iterator[str]:
    """Text from a language model (one int32 input `[seq]`, one row of logits for each position), piece by piece.

    The next token is drawn from softmax(logits / temperature) with NumPy's PCG64 of `seed`; temperature 0 takes the
    likeliest. The model sees the last `seq` tokens. Raises E-API-001 if the run is no language model, E-API-003 if the
    prompt has characters that the tokenizer lacks, E-API-004 for a temperature below 0.
    """
    inputs = model.model.inputs
    path = model.out / TOKENIZER
    if len(inputs) != 1 or inputs[0].type.rank != 1 or not inputs[0].type.dtype.is_integer or not path.exists():
        raise ParenError(
            "E-API-001",
            f"{model.out} holds no language model: a model of one row of tokens, and a tokenizer, are needed",
            fix="sample from a run whose data are text",
        )
    if not temperature >= 0:
        raise ParenError("E-API-004", f"the temperature is {temperature}, a number of at least 0 is needed")
    tokenizer = load_tokenizer(path)
    _refuse_unknown_characters(tokenizer, prompt)
    return _pieces(model, tokenizer, prompt, length, temperature, np.random.default_rng(seed))


def _refuse_unknown_characters(tokenizer: Tokenizer, prompt: str) -> None:
    """Raises E-API-003 for characters that would vanish from the prompt: lone surrogates, which are bytes that are not
    text, and what the tokenizer has no token for."""
    broken = [character for character in prompt if "\ud800" <= character <= "\udfff"]
    if broken:
        raise ParenError(
            "E-API-003",
            f"the prompt is not Unicode text: it has the code {hex(ord(broken[0]))}",
            fix="give the prompt in UTF-8, under a UTF-8 locale",
        )
    single = dict.fromkeys(character for character in prompt if not character.isspace())
    lost = [character for character in single if len(tokenizer.encode(character)) == 0]
    if lost:
        shown = " ".join(lost[:_LONGEST_LIST])
        more = f" and {len(lost) - _LONGEST_LIST} more" if len(lost) > _LONGEST_LIST else ""
        raise ParenError(
            "E-API-003",
            f"the tokenizer of the run has no token for {shown}{more}",
            fix="leave these characters out of the prompt",
        )


def _pieces(
    model: RestoredModel, tokenizer: Tokenizer, prompt: str, length: int, temperature: float, draw: np.random.Generator
) -> Iterator[str]:
    window = model.model.inputs[0].type.shape[0]
    # A tokenizer of whole words may have nothing for the line end: then text begins after its first token.
    ids = [int(token) for token in tokenizer.encode(prompt or "\n")] or [0]
    shown = text = "" if not prompt else tokenizer.decode(ids)
    start = 0 if prompt else len(ids)
    for _ in range(length):
        recent = ids[-window:]
        tokens = np.zeros((1, window), np.int32)
        tokens[0, : len(recent)] = recent
        logits = np.asarray(model(tokens))[0, len(recent) - 1].astype(np.float64)
        ids.append(_choose(logits[: tokenizer.vocabulary], temperature, draw))
        text = tokenizer.decode(ids[start:])
        # A character may be cut between tokens: wait for the rest of it.
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    if len(text) > len(shown):
        yield text[len(shown) :]


def _choose(logits: npt.NDArray[np.float64], temperature: float, draw: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # -inf is right: such a token is never drawn
        weights = np.exp((logits - logits.max()) / temperature)
    return int(draw.choice(len(weights), p=weights / weights.sum()))
