"""The keys of `defrun`: what may stand behind each, its default, its meaning. `docs/defrun.md` is this table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunKey:
    """`values` says what may be written; `default` is the number or word in force without the key, None if there is
    none (`absent` then says what holds); `required` keys must be there."""

    name: str
    values: str
    default: int | str | None
    absent: str
    meaning: str
    required: bool = False


RUN_KEYS = (
    RunKey(
        "data", "the name of a `defdata`", None, "", "What is trained on: the fields are names in expressions.", True
    ),
    RunKey(
        "loss",
        "an expression",
        None,
        "",
        "One value for each example or token; the loss is their weighted mean over the global batch.",
        True,
    ),
    RunKey("weight", "an expression", None, "1 for each value", "Weights of the loss's values; 0 leaves a value out."),
    RunKey(
        "metrics",
        "`((name expression) ...)`",
        None,
        "none",
        "Further values, computed in evaluations as `evaluation/NAME`, weighted means as the loss is.",
    ),
    RunKey("optimizer", "a call: `(adamw :rate 1e-3)`", None, "", "The rule that updates parameters.", True),
    RunKey(
        "groups",
        '`(("pattern" :key value ...) ...)`',
        None,
        "one rule for all",
        "Other keywords, or another `:optimizer`, for parameters by name; the first pattern that matches counts.",
    ),
    RunKey("frozen", '`("pattern" ...)`', None, "none", "Parameters that stay as they are."),
    RunKey("clip", "a positive number", None, "no clipping", "The largest norm of all gradients together."),
    RunKey("batch", "an integer of at least 1", None, "", "Examples in one optimizer step, over all devices.", True),
    RunKey(
        "microbatches",
        "an integer, 1 to the batch",
        1,
        "",
        "Into how many calls a batch is cut, to save memory; loss and gradient stay the same but for rounding.",
    ),
    RunKey("steps", "an integer of at least 1", None, "`:epochs` is needed", "Optimizer steps in all."),
    RunKey("epochs", "an integer of at least 1", None, "`:steps` is needed", "Passes over the training data."),
    RunKey(
        "precision",
        "`off`, `bfloat16` or `float16`",
        "off",
        "",
        "Off computes in float32. Else products of matrices take short floats; parameters and sums stay in float32.",
    ),
    RunKey(
        "evaluate-every",
        "an integer of at least 1",
        None,
        "after each epoch with `:epochs`, never with `:steps`",
        "Steps between evaluations on the split `validation`.",
    ),
    RunKey("checkpoint-every", "an integer of at least 1", None, "only at the end", "Steps between checkpoints."),
    RunKey("log-every", "an integer of at least 1", 1, "", "Steps between lines of `metrics.jsonl`."),
    RunKey("keep-checkpoints", "an integer of at least 1", 3, "", "How many of the newest checkpoints are kept."),
    RunKey(
        "keep",
        "`(best evaluation/NAME :min)` or `:max`",
        None,
        "none",
        "Keeps the parameters of the best evaluation in `best/`.",
    ),
    RunKey(
        "stop-early",
        "`(evaluation/NAME :min :patience N)` or `:max`",
        None,
        "never",
        "Ends the run after N evaluations that were no better than the best.",
    ),
    RunKey(
        "on-nonfinite",
        "`stop` or `skip`",
        "stop",
        "",
        "What a loss or gradient that is not finite does: it ends the run, or the step leaves the parameters alone.",
    ),
    RunKey("skip-limit", "an integer of at least 1", 10, "", "Steps skipped in a row after which the run ends."),
    RunKey(
        "average",
        "a number between 0 and 1",
        None,
        "no averages",
        "The decay of a running average of the parameters; evaluations and `paren.restore` take the average.",
    ),
    RunKey("from", "the path of a safetensors file", None, "first values of the file", "First weights."),
    RunKey(
        "names",
        '`(("name in the file" "parameter") ...)`',
        None,
        "equal names",
        "Which tensor of `:from` a parameter takes, where the names differ.",
    ),
    RunKey("seed", "an integer, 0 to 2^32 - 1", 0, "", "Decides first values, order of the data, and dropout."),
    RunKey(
        "reproducible-over",
        "an integer that divides the microbatches",
        None,
        "one process",
        "The most ranks up to which the same bits are wanted: with 8, those of 1, 2, 4 and 8 ranks are the same.",
    ),
)

KEYS = tuple(key.name for key in RUN_KEYS)
REQUIRED = tuple(key.name for key in RUN_KEYS if key.required)
_DEFAULTS = {key.name: key.default for key in RUN_KEYS}


def default_count(name: str) -> int:
    """The default of a key that is a number."""
    default = _DEFAULTS[name]
    assert isinstance(default, int)
    return default


def default_word(name: str) -> str:
    """The default of a key that is one of some words."""
    default = _DEFAULTS[name]
    assert isinstance(default, str)
    return default
