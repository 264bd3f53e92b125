"""Codes of reading text, of the environment and of the command line: E-TXT, E-ENV, E-CLI."""

from paren.text.code_registry import register

register(
    "E-TXT-001",
    "a file cannot be read",
    "The named file does not exist, is a folder, or the system does not allow reading it.",
    "Check the path (a relative one starts at the current folder) and the permissions.",
)
register(
    "E-TXT-002",
    "the file is not UTF-8",
    "paren files are UTF-8, with or without a byte-order mark. This one is in another encoding, or holds bytes that "
    "are no text at all.",
    "Save the file as UTF-8; the place shown is the first byte that does not fit.",
)
register(
    "E-TXT-003",
    "a bracket is not closed",
    "The text, or the next top-level form, begins before the bracket shown is closed.",
    "Write the missing bracket where the form ends; `paren format` shows the nesting by indentation.",
)
register(
    "E-TXT-004",
    "a closing bracket has no open one",
    "Everything before it is closed already; most often one bracket too many ends the form before it.",
    "Delete it, or write the bracket that opens the form.",
)
register(
    "E-TXT-005",
    "a bracket is closed by one of the other kind",
    "`(` is closed by `)` and `[` by `]`. The note shows where the open one stands.",
    "Replace one of the two, or close the inner form first.",
)
register(
    "E-TXT-006",
    "a string is not closed",
    "A string ends on the line on which it begins; no closing quote was found there.",
    'Close it with a straight quote. A line break in a string is written \\n, a quote \\".',
)
register(
    "E-TXT-007",
    "a comment is not closed",
    "A comment that begins with `#|` ends with `|#`. Such comments nest, so each `#|` needs its own `|#`.",
    "Write the missing `|#`, or use `;`, which ends with its line.",
)
register(
    "E-TXT-008",
    "a wrong escape in a string",
    'A backslash in a string begins one of the escapes \\n \\t \\r \\0 \\\\ \\" \\xHH \\uHHHH \\UHHHHHHHH.',
    "Write a backslash itself as two; write Windows paths with `/`.",
)
register(
    "E-TXT-009",
    "a wrong number",
    "What begins like a number must be one: 12, -3, 0.5, .5, 6e-4, 0x10. Integers have at most 64 bits, floats are "
    "float64. Groups of digits, fractions and percent signs are not written, and names do not begin with a digit.",
    "Write the number in one of these forms, or another name.",
)
register(
    "E-TXT-010",
    "a character that may not stand there",
    "Control characters, spaces other than the ordinary one, curly quotes, quote marks, commas, braces and `#` are no "
    "part of the language. Many of them come from text that was pasted from a web page or a word processor.",
    "Replace or delete the character shown; between quotes it may stand, or be written as an escape.",
)
register(
    "E-TXT-011",
    "a wrong keyword",
    "A keyword is one colon and a name without a space between them, such as :rate.",
    "Write the name right after the colon.",
)
register(
    "E-TXT-012",
    "brackets nest too deep",
    "A form may stand in at most 200 others, which no text written by hand reaches.",
    "Name inner parts with `def`, `let` or a function.",
)

register(
    "E-ENV-001",
    "an unknown environment variable",
    "A variable whose name begins with PAREN_ is set, but paren reads none of that name: most often a misspelling.",
    "Correct or unset it; docs/environment.md lists the names.",
)
register(
    "E-ENV-002",
    "a wrong value in an environment variable or option",
    "A size is a number with a unit (24GiB, 512MiB, 2GB) or a number of bytes; a folder must exist.",
    "Write the value in that form.",
)

register(
    "E-CLI-001",
    "wrong use of the command line",
    "A command, option, argument or value is unknown, missing or of the wrong kind. The exit code is 2.",
    "`paren COMMAND --help` shows how the command is used.",
)
register(
    "E-CLI-002",
    "the system refused a file operation",
    "The disk is full or read-only, a quota is used up, permission is missing, or the device failed.",
    "Free space, or name another folder with `--out` or PAREN_CACHE.",
)
register(
    "E-CLI-003",
    "a file is not laid out",
    "`paren format --check` found files that differ from the layout; their names are on stdout.",
    "Run `paren format` on them.",
)
register(
    "E-CLI-004",
    "no such code or command",
    "`paren help` explains error codes and commands; the name given is neither.",
    "docs/errors.md lists all codes, `paren --help` the commands.",
)
register(
    "E-CLI-005",
    "memory ran out",
    "The system, or the limit of the container, did not give the memory that was asked for outside the plan.",
    "End other programs, raise the limit, or make the data or the model smaller.",
)
register(
    "E-CLI-006",
    "a library is missing",
    "A library that paren depends on cannot be found or loaded: the installation is incomplete, another Python was "
    "started, or a limit leaves no room to load it.",
    "Install paren again with pip, or raise the limit (`ulimit -v`); `paren doctor` shows what is missing.",
)
