"""A trained model taken out of a run: called on arrays, saved as weights, asked for text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from paren.data.tokenizer import Tokenizer, load_tokenizer
from paren.environment import read_environment
from paren.ir.op import Array
from paren.ir.program import Field, Model, Program, Value
from paren.lang.elaborate import elaborate_kept
from paren.passes.alternatives import choose
from paren.passes.precision import set_precision
from paren.pipeline import Planning, plan_graph
from paren.plan.traits import traits_of
from paren.runtime.array import AnyArray, AnyBytes
from paren.runtime.block import Block, allocate_array, input_types
from paren.runtime.cache import PlanCache
from paren.runtime.device import Device, open_device
from paren.runtime.executor import Executable
from paren.runtime.memory import ALIGNMENT
from paren.text.errors import ParenError
from paren.text.json import parse_json
from paren.text.size import count_of
from paren.train.read_run import read_metrics, read_weights
from paren.train.run_directory import RUN, damaged, read_run_file

TOKENIZER = "tokenizer.json"
JOB = "job.json"
MOST_ROWS = 1 << 16  # of one call of a plan
_THREAD_BYTES, _CARD_BYTES = 2 << 20, 512 << 20  # of a call's arena: its cache for a thread of a CPU; for a card
_LONGEST_LIST = 8  # characters that a message names
Batch = TypeVar("Batch")


@dataclass
class RestoredModel:
    """A model with its trained parameters, on a device.

    Calling it takes one array for each input of the model, with the examples in front (`tokens[n, seq]`), NumPy or
    torch; the result is of the same kind. Dropout is off. Any number of examples is taken, in memory that is bounded
    beside the result: they go through in chunks of a power of two, whose plans are made once and share one arena. A
    row's bits are the same in every chunk.
    """

    out: Path
    program: Program = field(repr=False)
    step: int
    device: Device = field(repr=False)
    weights: Mapping[str, AnyArray] = field(repr=False)
    _executables: dict[int, tuple[Executable, Block]] = field(default_factory=dict, repr=False)
    _arena: AnyBytes = field(default_factory=lambda: np.zeros(0, np.uint8), repr=False)
    _most_rows: int = field(default=MOST_ROWS, repr=False)

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
            names = ", ".join(field.name for field in fields)
            raise ParenError(
                "E-DATA-023",
                f"model {self.model.name} takes {count_of(len(fields), 'input')}, got more",
                fix=f"give one array for each of {names}",
            )
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
        return array

    def _fill(self, wanted: Field, place: Array, rows: Array, first: int) -> None:
        """Puts rows of an input, the first of them number `first`, where the plan reads them, if the model can take
        them."""
        for low, high in self._ranges.get(wanted.name, ()):
            least, greatest = int(rows.min()), int(rows.max())
            if least < low or greatest >= high:
                value = least if least < low else greatest
                raise ParenError(
                    "E-DATA-023",
                    f"input {wanted.name} holds {value}, the model takes {low} .. {high - 1}",
                    wanted.span,
                    fix="give values in that range, as the data had that the model was trained with",
                )
        given = place[: len(rows)]
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
            np.copyto(given, rows, casting="unsafe")
        if wanted.type.dtype.is_float and not np.isfinite(given).all():
            example = int(np.argwhere(~np.isfinite(given))[0][0])
            value = given[example][~np.isfinite(given[example])].flat[0]
            raise ParenError(
                "E-DATA-023",
                f"input {wanted.name} holds {value} in example {first + example}, the model takes finite numbers",
                wanted.span,
                fix="leave the example out, or replace the value",
            )

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
            raise ParenError(
                "E-DATA-023",
                f"the model takes equally many examples of {names}, got {lengths}",
                fix="give one array for each, with the examples along the first axis",
            )
        total, done = len(arrays[0]), 0
        result: Array | None = None
        while done < total:
            executable, block, most = self._executable(total - done)
            rows = min(most, total - done)
            for wanted, array in zip(fields, arrays, strict=True):
                if wanted.name in block.host:
                    self._fill(wanted, block.host[wanted.name], array[done : done + rows], done)
            if "$rows" in block.host:  # of a model that draws random numbers
                block.host["$rows"][...] = np.arange(done, done + most, dtype=np.uint32)
            block.send()
            part = executable.run(self.weights, block.arrays, self._arena)["result"][:rows]
            if result is None:
                result = np.empty((total, *part.shape[1:]), part.dtype)
            result[done : done + rows] = part
            done += rows
        assert result is not None  # there is an example
        return result

    def _executable(self, rows: int) -> tuple[Executable, Block, int]:
        """A plan for the first of so many rows, where its inputs lie, and how many it takes: the next power of two, or
        as many as the bytes of a call allow."""
        size = min(1 << (rows - 1).bit_length(), self._most_rows)
        while size not in self._executables:
            traits, precision = traits_of(self.device.name), self.program.run.precision
            graph = set_precision(choose(self.model.forward(size), traits.attends, precision), precision)
            plan = plan_graph(graph, planning=Planning(traits=traits, cache=PlanCache(read_environment().cache)))
            allowed = _CARD_BYTES if self.device.own_memory else _THREAD_BYTES * self.device.threads
            if plan.arena_bytes > allowed and size > 1:
                size = self._most_rows = max(1, 1 << (size * allowed // plan.arena_bytes).bit_length() - 1)
                continue
            block = Block(self.device, input_types(plan))
            self._executables[size] = Executable(self.device, plan), block
            if max(ALIGNMENT, plan.arena_bytes) > len(self._arena):
                self._arena = self.device.allocate(max(ALIGNMENT, plan.arena_bytes))
        return *self._executables[size], size


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


def read_job(folder: Path) -> dict[str, Any] | None:
    """What `job.json` says in the folder of a job; None in another folder. Raises E-RUN-014 if it is damaged."""
    try:
        job = parse_json((folder / JOB).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        job = None
    if not isinstance(job, dict) or not {"model", "settings", "member", "changed", "products"} <= set(job):
        raise ParenError("E-RUN-014", f"{folder / JOB} cannot be read", fix="run the study again")
    return job


def run_of(folder: Path) -> Path:
    """The folder of the run that a folder is or, being a job's, refers to. Raises E-RUN-014 if that is not there."""
    job = read_job(folder)
    if job is None:
        return folder
    if job["model"] is None:
        raise ParenError("E-RUN-014", f"the job {folder} has no trained model yet", fix="paren run its study")
    run = folder / str(job["model"])
    if not run.is_dir():
        message = f"the model of the job {folder} is not at {job['model']}"
        raise ParenError("E-RUN-014", message, fix="run the study again")
    return run


def read_program(out: Path) -> Program:
    """The program of a run, from the texts and settings kept in its folder. Raises E-RUN-014 if there is no run."""
    stored = read_run_file(out)
    if stored is None:
        raise ParenError("E-RUN-014", f"{out} holds no run", fix="give the directory of a run")
    try:
        texts = {path: str(entry["text"]) for path, entry in stored["sources"].items()}
        settings = {name: as_value(value) for name, value in stored["settings"].items()}
        program, variant = str(stored["program"]), stored["variant"]
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(out / RUN) from error
    return elaborate_kept(program, variant, settings, texts)


def as_value(value: object) -> Value:
    """A setting as JSON keeps it, as the language has it: lists are tuples."""
    if isinstance(value, list):
        return tuple(as_value(item) for item in value)
    return value  # type: ignore[return-value]


def read_model(
    out: Path,
    device: Device,
    *,
    best: bool = False,
    checkpoints: str | None = None,
    program: Program | None = None,
) -> RestoredModel:
    """The model of a run, or of a job, with its newest (or best) weights; averages, where the run keeps them, stand for
    parameters. `program`: what it was trained as, or another that would train the same model, where it is known."""
    out = run_of(out)
    program = program or read_program(out)
    weights = read_weights(out, best=best, checkpoints=checkpoints)
    values = dict(weights.parameters) | dict(weights.averages)
    placed: dict[str, AnyArray] = {}
    for slot in program.parameters:
        if slot.name not in values or values[slot.name].shape != slot.type.shape:
            raise damaged(out / RUN, f"tells of another model than the weights in {out} are of: {slot.name}")
        placed[slot.name] = allocate_array(device, slot.type.dtype.numpy, slot.type.shape)
        placed[slot.name][...] = values[slot.name]
    return RestoredModel(out, program, weights.step, device, placed)


def restore(
    out: str | Path, device: str = "cpu", *, best: bool = False, checkpoints: str | Path | None = None
) -> RestoredModel:
    """The trained model of a run, or of a job, from its newest checkpoint or, with `best`, its best evaluation. All
    hashes are verified."""
    opened = open_device(device, None, read_environment().cache)
    return read_model(Path(out), opened, best=best, checkpoints=str(checkpoints) if checkpoints else None)


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
