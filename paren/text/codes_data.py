"""Error codes of data: what a `defdata` opens, and what is found in it before the first step."""

from __future__ import annotations

from paren.text.code_registry import register

register(
    "E-DATA-001",
    "a file that is not there",
    "A path or pattern in a data form names no file. Paths are relative to the folder of the paren file, or to the "
    "folder given with --data-root.",
    "Correct the path, or give the folder of the data with --data-root.",
)
register(
    "E-DATA-002",
    "text that is not UTF-8",
    "Text and CSV files are read as UTF-8, whatever the locale. The message gives file, line and column of the byte.",
    "Save the file as UTF-8, or leave it out of the pattern.",
)
register(
    "E-DATA-003",
    "no token file",
    "A token file is a .npy array of integers along one axis, or bare little-endian integers of the type :dtype. It "
    "must hold at least one token, and a whole number of them.",
    "Check that the file is whole, and that :dtype is the type it was written with.",
)
register(
    "E-DATA-004",
    "too few tokens for one example",
    "An example is a window of :length tokens and the one that follows. A split must hold at least one.",
    "Supply more text, a smaller :length, or a larger fraction for the split.",
)
register(
    "E-DATA-005",
    "splits that cannot be made",
    "Each split has its own name and a fraction above 0; the fractions sum to at most 1, and each leaves its split "
    "something.",
    "Write the splits as ((train 0.95) (validation 0.05)), with fractions that suit the amount of data.",
)
register(
    "E-DATA-006",
    "an array file that cannot be read",
    "Array files are .npy and .npz without pickled objects, .csv with a header, and .parquet without missing values.",
    "Check that the file is whole and of the kind that its name says.",
)
register(
    "E-DATA-007",
    "no data for a field",
    "A declared field takes the column of its own name, or those that :columns lists for it, and there is none, or "
    "more than one.",
    "Correct the name in :fields or :columns, or rename the column.",
)
register(
    "E-DATA-008",
    "data of another type than declared",
    "The stored type must be of the field's kind or of a simpler one: integers fit a float field, but floats fit no "
    "integer field.",
    "Store the data in the declared type, or declare the type that they have.",
)
register(
    "E-DATA-009",
    "data of another shape than declared",
    "The first axis of an array counts samples; the others must be the shape that the field declares.",
    "Reshape the data, or declare the shape that they have.",
)
register(
    "E-DATA-010",
    "fields of different lengths",
    "All fields of a data set have the same number of samples.",
    "Supply arrays of one length.",
)
register(
    "E-DATA-011",
    "a Python data function that cannot be called",
    "The file cannot be read as Python, has no such function, or the function does not take the keywords of the form.",
    "Correct the file, the name, or the keywords. A hyphen in the form is an underscore in Python.",
)
register(
    "E-DATA-012",
    "an exception in a Python data function",
    "The user's own code raised; the notes show its lines.",
    "Correct the Python file.",
)
register(
    "E-DATA-013",
    "a Python data function that returns something else",
    "It must return a dict from field name to array with all declared fields and no other, or a dict from split name "
    "to such dicts.",
    "Return what the form declares.",
)
register(
    "E-DATA-014",
    "something that is not installed",
    "The data need a library, or sources, that this Python came without.",
    "Install the extra that the message names.",
)
register(
    "E-DATA-015",
    "a tokenizer that cannot be used",
    "The tokenizer file cannot be read, a byte-pair tokenizer was asked for with fewer tokens than there are bytes, or "
    "the special token of :boundary is not in the tokenizer.",
    "Correct :tokenizer or :boundary.",
)
register(
    "E-DATA-016",
    "a value outside its range",
    "An index, label or token is outside what the program allows, or outside what the declared type holds. All splits "
    "are scanned before the first step.",
    "Correct the data, or change the size (vocabulary, classes) in the program; a value that marks what is to be left "
    "out must be declared with :ignore.",
)
register(
    "E-DATA-017",
    "a value that is not finite",
    "A float field holds nan or an infinity, or a value too large for the declared type.",
    "Correct the data, or leave such samples out.",
)
register(
    "E-DATA-018",
    "fewer samples than a batch",
    "The training split does not fill one global batch, so no step could be what the file describes.",
    "Set :batch to the number of samples or less, or supply more data.",
)
register(
    "E-DATA-019",
    "a split that is empty or not there",
    "Training reads the split train, and evaluation the split validation; each needs at least one sample.",
    "Declare the split with :split, or return it from the Python function.",
)
register(
    "E-DATA-020",
    "a cell of a CSV file that is no number",
    "Cells of a field's columns are numbers as Python writes them; booleans are true, false, 1 or 0. Empty cells stand "
    "for nothing.",
    "Correct the cell, whose line the message gives.",
)
register(
    "E-DATA-021",
    "a file or folder that cannot be used",
    "A data file cannot be read, or the cache folder cannot be read or written.",
    "Check the rights and the space, or give another cache folder in PAREN_CACHE.",
)
register(
    "E-DATA-022",
    "options that do not fit",
    "An option that the kind of data needs is missing, has no meaning beside another one, or is not in its range.",
    "Correct the options of the data form; the reference of data lists those of each kind.",
)
register(
    "E-DATA-023",
    "inputs that a model does not take",
    "A restored model was called with other inputs than it declares: their number, their shape, or their lengths.",
    "Give one array for each input, examples along the first axis, in the declared shape.",
)
