"""What a file declares, once evaluated: settings, data, slots and graphs. Nothing in it knows a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paren.ir.graph import Graph
from paren.ir.types import TensorType
from paren.text.source import Span

Value = bool | int | float | str | tuple["Value", ...]


def same_value(one: Value, other: Value) -> bool:
    """Whether two values of settings are written the same: 1, 1.0 and true are three, also in lists, as 0.0 and -0.0
    are two."""
    return repr(one) == repr(other)


@dataclass(frozen=True)
class Setting:
    """A top-level `def` of a literal value, after variant and `--set`. `span` is where the value in force was
    written."""

    name: str
    value: Value
    span: Span


@dataclass(frozen=True)
class Field:
    """One field of a data set: type of one example (the batch axis is not in it)."""

    name: str
    type: TensorType
    span: Span


@dataclass(frozen=True)
class Slot:
    """A named piece of state. `role`: parameter, moment (optimizer state of one parameter), average, counter.

    A moment is named `PARAMETER/MOMENT` (`layer-norm.weight/variance`) and starts as zeros. `group` numbers the
    optimizer group; frozen parameters have group -1. Gradients are not slots: they live within a step only.
    """

    name: str
    type: TensorType
    role: str
    group: int
    span: Span


@dataclass(frozen=True)
class DataForm:
    """`(kind positional... :option value...)` of a `defdata`, evaluated but not opened.

    Options that were not written are absent. Common to all kinds: `split` (pairs `("train", 0.95)`, fractions that sum
    to at most 1), `evaluation-batch` (int), `evaluation-count` (int, examples of an evaluation split that are used).

    | kind | arguments | options | fields |
    |---|---|---|---|
    | `text-files` | glob patterns | `tokenizer`, `length`, `stride`, `boundary` | `tokens`, `targets` int32[length] |
    | `python-docs`, `python-stdlib` | none | as `text-files` | the same |
    | `token-file` | path | `dtype` (a name such as "uint16"), `length`, `stride`, `validation` (path) | the same |
    | `arrays` | paths | `columns`: pairs (field, (column, ...)) for CSV and Parquet | declared |
    | `digits` | none | none | `image` float32[1 8 8], `label` int32[] |
    | `python` | file, function | `keywords`: pairs (name, value) passed to the function; `files`: paths | declared |

    `tokenizer` is `("bytes",)`, `("byte-pair", vocab)` or `("file", path)`. `boundary` is `("join",)` (documents follow
    each other), `("separate",)` (no window spans two documents) or `("token", text)` (that special token is put between
    documents); absent means join. `stride` absent means `length`. Declared fields come from `:fields`. The content of
    `files` belongs to a python form's identity.
    """

    name: str
    kind: str
    arguments: tuple[Value, ...]
    options: Mapping[str, Value]
    spans: Mapping[str, Span]  # of each option; positional arguments under "0", "1", ...
    span: Span
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Bound:
    """Values of an integer field must be in `low <= value < high`, or equal `ignore`; `span` is where the program
    says so."""

    field: str
    low: int
    high: int
    ignore: int | None
    span: Span


@dataclass(frozen=True)
class Diagnostic:
    """A value sampled every `every` steps on the training batch; `reduce` (max, min, sum, mean) folds all its
    elements."""

    name: str
    every: int
    reduce: str
    span: Span


@dataclass(frozen=True)
class Best:
    """Which evaluation series decides: `(best evaluation/loss :min)`, `:stop-early (... :patience 5)`."""

    metric: str
    mode: str  # "min" or "max"
    patience: int | None
    span: Span


@dataclass(frozen=True)
class RunForm:
    """The settings of a `defrun`, checked. Counts are global: `batch` and `microbatches` are over all devices.

    `clip` is the largest global gradient norm. Exactly one of `steps` and `epochs` is given.
    """

    batch: int
    microbatches: int
    steps: int | None
    epochs: int | None
    seed: int
    precision: str
    clip: float | None
    evaluate_every: int | None
    checkpoint_every: int | None
    log_every: int
    keep_checkpoints: int
    keep_best: Best | None
    stop_early: Best | None
    on_nonfinite: str  # "stop" or "skip"
    skip_limit: int
    average: float | None
    start_from: str | None  # safetensors file with the first weights
    start_names: tuple[tuple[str, str], ...]  # (name in the file, parameter name) pairs that differ
    reproducible_over: int | None
    spans: Mapping[str, Span]

    def rows(self, stacking: int) -> int:
        """Examples of one call that takes `stacking` neighbouring microbatches. Sizes of microbatches differ by at most
        one, the larger ones come first; a smaller call is padded."""
        small, larger = divmod(self.batch, self.microbatches)
        return stacking * small + min(larger, stacking)


@dataclass(frozen=True)
class Model:
    """A `defmodel`: inputs per example, and the graph of a call with dropout off on `rows` examples. `bounds()`: what
    the model asks of its integer inputs, by their names."""

    name: str
    inputs: tuple[Field, ...]
    span: Span
    forward: Callable[[int], Graph]  # rows -> graph; inputs: state parameters, batch fields; output "result"
    bounds: Callable[[], tuple[Bound, ...]] = tuple


@dataclass(frozen=True)
class UpdateGroup:
    """Parameters that share an update rule.

    If `flat`, the rule is elementwise and `graph` updates all of them as one vector: its state inputs and outputs are
    named `parameter`, the moments' names, its batch input `gradient`. Else there is one graph for each distinct shape:
    `graphs` maps a parameter's name to its graph (shared between equal shapes). The scalar inputs are `update`
    (float32: the number of this update, 1 at first). Output `rate` is the scheduled rate, if the optimizer has one.
    """

    number: int
    parameters: tuple[str, ...]
    moments: tuple[str, ...]
    flat: bool
    graphs: Mapping[str, Graph]  # parameter name -> graph; if flat, the single key "" with type float32[total size]


@dataclass(frozen=True)
class Factor:
    """A setting and the values it takes in a sweep, cohort or grid; a sweep leaves out its present value."""

    name: str
    values: tuple[Value, ...]
    span: Span


@dataclass(frozen=True)
class Analysis:
    """A `defproduct`, `defmetric` or `defplot`: a Python function of the trained model, the data and other products.

    `needs` names products, `model` or `data`; `over` is None, "cohort" or "sweep". `files`, as written, are files whose
    content counts like that of the Python file. `cost` names a function of the file that foretells costs; `settings`
    are those that the keywords are computed from.
    """

    kind: str  # "product", "metric" or "plot"
    name: str
    file: str
    function: str
    keywords: tuple[tuple[str, Value], ...]
    needs: tuple[str, ...]
    over: str | None
    files: tuple[str, ...]
    cost: str | None
    settings: tuple[str, ...]
    spans: Mapping[str, Span]  # of `file`, `function` and, where they are given, of `cost` and the keywords
    span: Span


@dataclass(frozen=True)
class Limit:
    """The most of a cost, by its name, that the analysis of one job may have."""

    name: str
    most: float
    span: Span


@dataclass(frozen=True)
class Study:
    """What a file declares around one training: checked, not yet run."""

    sweep: tuple[Factor, ...] = ()  # one factor at a time from the baseline
    cohort: tuple[Factor, ...] = ()  # crossed, repeated in every configuration
    grid: tuple[Factor, ...] = ()  # crossed configurations
    analyses: tuple[Analysis, ...] = ()  # in an order in which needs come first
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Program:
    """A whole experiment.

    One call of a graph takes `rows` examples: `stacking` neighbouring microbatches of a batch. An evaluation takes
    `evaluation_rows`.

    Graph conventions (all graphs are for `rows` examples, `evaluate` for `evaluation_rows`):
    - inputs of role `state`: parameter names; of role `batch`: field names, `$rows` (uint32[rows], index of each
      example in the global batch), `$valid` (float32[rows], 1 for real examples, 0 for padding); of role `scalar`:
      `$seed` (uint32), `$step` (uint32, the position of the training step, from 0).
    - `loss`: outputs `loss` (float32[rows ...], one value per example or token) and `weight` (the same shape, already
      multiplied by `$valid`); dropout is on.
    - `evaluate`: the same with dropout off, and for each metric `metric:NAME` and `weight:NAME` of equal shape.
    - `diagnostics`: name -> graph with output `value` (float32[rows ...]) and `weight`.
    - `initialize`: one output per parameter; its only input is `$seed`.
    """

    path: str
    variant: str | None
    settings: tuple[Setting, ...]
    sources: Mapping[str, str]  # path -> text: the file and its imports
    run: RunForm
    data: DataForm
    stacking: int
    rows: int
    evaluation_rows: int
    models: tuple[Model, ...]
    parameters: tuple[Slot, ...]
    moments: tuple[Slot, ...]
    loss: Graph
    evaluate: Graph
    diagnostics: Mapping[str, tuple[Diagnostic, Graph]]
    initialize: Graph
    updates: tuple[UpdateGroup, ...]
    metrics: tuple[str, ...]
    bounds: tuple[Bound, ...]
    notes: tuple[str, ...]  # warnings for the user
    study: Study = Study()
    ranks: int = 1  # that share the microbatches of a batch evenly
    nodes: int = 1  # that hold equal numbers of these ranks
    rounds: bool = False  # whether gradients are rounded to bfloat16 between nodes
    linked: bool = False  # whether the ranks' cards send each other gradients themselves

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are those of the loss times a scale, so that they fit into float16."""
        return self.run.precision == "float16"

    @property
    def drops_sums(self) -> bool:
        """Whether a step may go without an update though its gradients were summed."""
        return self.scales_loss or self.run.on_nonfinite == "skip"

    @property
    def calls(self) -> int:
        """Calls of the training graph in one step, on each rank."""
        return self.run.microbatches // self.ranks // self.stacking
