"""Error codes of the Python interface and the commands on it."""

from paren.text.code_registry import register

register(
    "E-API-001",
    "the run is no language model",
    "Text can be sampled only from a model of one input, a row of tokens, whose run kept a tokenizer.",
    "Sample from a run whose data are text.",
)
register(
    "E-API-002",
    "an unknown stage",
    "A file can be shown after the stages forms, program, graph, fused, plan and code.",
    "Name one of these stages.",
)
register(
    "E-API-003",
    "the prompt cannot be encoded",
    "The prompt is not Unicode text, or has characters for which the tokenizer of the run has no token, so that the "
    "model would not see them.",
    "Leave these characters out, or train with a tokenizer that has them; `bytes` and `byte-pair` encode every text.",
)
register(
    "E-API-004",
    "an impossible temperature",
    "Logits are divided by the temperature before a token is drawn: it is a number of at least 0.",
    "Give 1 for the distribution of the model, less for likelier text, 0 for the likeliest token each time.",
)
register(
    "E-API-005",
    "pandas is not installed",
    "Results are given as a DataFrame only where pandas is installed; paren itself does without.",
    "Install pandas, or use the columns and rows as they are.",
)
register(
    "E-API-006",
    "an unknown column of results",
    "A column is a setting, a series of the training, or a metric of the analysis, with dots into nested results; no "
    "job has one of this name.",
    "Look at `paren results OUT` without columns, which shows what there is.",
)
