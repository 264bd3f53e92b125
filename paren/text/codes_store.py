"""Error codes of the store of artifacts, of claims, and of the sources that recipes are made of."""

from paren.text.code_registry import register

register(
    "E-STORE-001",
    "what cannot be stored",
    "Names of products, arrays and values become names of files: letters, digits, - and _, at most 100 of them, and "
    "each once. Arrays are kept without pickles, so they hold numbers, booleans, dates or fixed-length strings; values "
    "are JSON, which has neither NaN nor infinity.",
    "Rename it, or make it an array of numbers; None stands for an undefined value.",
)
register(
    "E-STORE-002",
    "a damaged artifact or record",
    "A file of an artifact is missing, or has other bytes than were published. Sizes are compared at each read, all "
    "bytes by paren verify. Or the record of a launch cannot be read, and paren prune does not know what it needs.",
    "What is missing or has another size is built again by paren run where it is needed. Move a folder away in which "
    "only paren verify sees the damage, then run again.",
)
register(
    "E-STORE-003",
    "the output folder cannot be written",
    "The disk refused a file of the store or of its claims: it is full, read-only, or not yours. Nothing half-written "
    "is taken for an artifact.",
    "Make room or make the folder writable, then start again: what is finished is kept.",
)
register(
    "E-STORE-004",
    "a source that is not Python",
    "A Python function is followed through the files of its experiment, to see what its results depend on; one of them "
    "is not there, or is not Python.",
    "Correct the file. It is not run for this.",
)
register(
    "E-STORE-005",
    "a function that is not there",
    "The Python file has no function of that name at its top, and nothing that could make one when it is run.",
    "Correct the name, hyphens become underscores; or define the function at the top of the file.",
)
register(
    "E-STORE-006",
    "no study is there",
    "The folder was not written by a study, or holds no artifacts yet.",
    "Give the output folder of a study, the one that holds store/ and runs/.",
)
register(
    "E-STORE-007",
    "a data file changed while it was read",
    "A file of `:files`, or an array that is mapped from its file, was another at the end than at the beginning. What "
    "was computed from it is not kept: it would be taken for that of one of the two contents.",
    "Start again when the file is whole. Write a new file aside and rename it, so that no reader sees half of it.",
)
