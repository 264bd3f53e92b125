"""Short programs for the tests of the language, and their values by the definition in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paren.ir.evaluate import evaluate
from paren.ir.program import Program
from paren.lang.elaborate import elaborate
from paren.text.errors import ParenError

Arrays = dict[str, npt.NDArray[np.generic]]
Values = Mapping[str, npt.NDArray[np.generic]]

RUN = "(defrun :data d :loss {loss} :optimizer (sgd :rate 0.1) :batch {batch} :steps 1{more})"


def load(text: str, **arguments: object) -> Program:
    """The program of a text."""
    return elaborate("test.paren", read_file=lambda _path: text.encode(), **arguments)  # type: ignore[arg-type]


def program(
    fields: str, model: str, *, loss: str | None = None, more: str = "", batch: int = 3, before: str = ""
) -> Program:
    """A program with the model `m` over data fields; the loss is by default the mean of its result, of rank 1."""
    names = " ".join(part.split()[0] for part in fields.replace("[", " [").split("(")[1:])
    data = f'(defdata d (python "f.py" g :fields ({fields})))'
    run = RUN.format(loss=loss or f"(mean (reshape (m {names}) [-1]))", batch=batch, more=more)
    return load(f"{before}\n{data}\n(defmodel m ({fields}) {model})\n{run}")


def parameters(made: Program, seed: int = 0) -> Arrays:
    """Random values for all parameters, away from their first values."""
    generator = np.random.default_rng(seed)
    return {slot.name: generator.normal(size=slot.type.shape).astype(slot.type.dtype.numpy) for slot in made.parameters}


def call(made: Program, inputs: Values, values: Values | None = None) -> npt.NDArray[np.generic]:
    """The model's result on a batch of inputs."""
    rows = next(iter(inputs.values())).shape[0]
    graph = made.models[0].forward(rows)
    return evaluate(graph, {**(values if values is not None else parameters(made)), **inputs})["result"]


def loss_of(made: Program, inputs: Values, values: Values | None = None, graph: str = "evaluate") -> Arrays:
    """The outputs of the loss or evaluation graph; all examples are real, seed and step are 0."""
    rows = made.rows
    given = {
        "$valid": np.ones(rows, np.float32),
        "$rows": np.arange(rows, dtype=np.uint32),
        "$seed": np.uint32(0).reshape(()),
        "$step": np.uint32(0).reshape(()),
        **(values if values is not None else parameters(made)),
        **inputs,
    }
    return evaluate(getattr(made, graph), given)


def expression(text: str, inputs: Values, before: str = "") -> npt.NDArray[np.generic]:
    """The value of an expression of one example, over a batch of the inputs."""
    fields = " ".join(
        f"({name} {array.dtype} [{' '.join(map(str, array.shape[1:]))}])" for name, array in inputs.items()
    )
    made = program(
        fields,
        f"(let ((unused (param p [1] :init 0))) {text})",
        loss=f"(+ (sum (reshape (cast (m {' '.join(inputs)}) float32) [-1])) 0)",
        before=before,
    )
    return call(made, inputs, {"p": np.zeros(1, np.float32)})


def expression_or_refusal(text: str, inputs: Values) -> npt.NDArray[np.generic] | ParenError:
    """The value of an expression, or the mistake that is found in it."""
    try:
        return expression(text, inputs)
    except ParenError as error:
        return error


def example(name: str) -> Path:
    """The path of an example of the repository."""
    return Path(__file__).parents[2] / "examples" / name
