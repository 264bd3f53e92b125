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
