"""The registry of error codes: `paren help CODE` prints an entry, `docs/errors.md` is generated from all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """`cause` says when the error is raised, `fix` what to do about it; both are sentences for users."""

    code: str
    title: str
    cause: str
    fix: str


CODES: dict[str, Code] = {}


def _code(code: str, title: str, cause: str, fix: str) -> None:
    if code in CODES:
        raise ValueError(f"error code {code} is registered twice")
    CODES[code] = Code(code, title, cause, fix)


# ---- text: reading files -------------------------------------------------------------------------------------------

_code(
    "E-TXT-001",
    "a file cannot be read",
    "The named file does not exist, is a folder, or the system does not allow reading it.",
    "Check the path (a relative one starts at the current folder) and the permissions.",
)
_code(
    "E-TXT-002",
    "the file is not UTF-8",
    "paren files are UTF-8, with or without a byte-order mark. This one is in another encoding, or holds bytes that "
    "are no text at all.",
    "Save the file as UTF-8; the place shown is the first byte that does not fit.",
)
_code(
    "E-TXT-003",
    "a bracket is not closed",
    "The text, or the next top-level form, begins before the bracket shown is closed.",
    "Write the missing bracket where the form ends; `paren format` shows the nesting by indentation.",
)
_code(
    "E-TXT-004",
    "a closing bracket has no open one",
    "Everything before it is closed already; most often one bracket too many ends the form before it.",
    "Delete it, or write the bracket that opens the form.",
)
_code(
    "E-TXT-005",
    "a bracket is closed by one of the other kind",
    "`(` is closed by `)` and `[` by `]`. The note shows where the open one stands.",
    "Replace one of the two, or close the inner form first.",
)
_code(
    "E-TXT-006",
    "a string is not closed",
    "A string ends on the line on which it begins; no closing quote was found there.",
    'Close it with a straight quote. A line break in a string is written \\n, a quote \\".',
)
_code(
    "E-TXT-007",
    "a comment is not closed",
    "A comment that begins with `#|` ends with `|#`. Such comments nest, so each `#|` needs its own `|#`.",
    "Write the missing `|#`, or use `;`, which ends with its line.",
)
_code(
    "E-TXT-008",
    "a wrong escape in a string",
    'A backslash in a string begins one of the escapes \\n \\t \\r \\0 \\\\ \\" \\xHH \\uHHHH \\UHHHHHHHH.',
    "Write a backslash itself as two; write Windows paths with `/`.",
)
_code(
    "E-TXT-009",
    "a wrong number",
    "What begins like a number must be one: 12, -3, 0.5, .5, 6e-4, 0x10. Integers have at most 64 bits, floats are "
    "float64. Groups of digits, fractions and percent signs are not written, and names do not begin with a digit.",
    "Write the number in one of these forms, or another name.",
)
_code(
    "E-TXT-010",
    "a character that may not stand there",
    "Control characters, spaces other than the ordinary one, curly quotes, quote marks, commas, braces and `#` are no "
    "part of the language. Many of them come from text that was pasted from a web page or a word processor.",
    "Replace or delete the character shown; between quotes it may stand, or be written as an escape.",
)
_code(
    "E-TXT-011",
    "a wrong keyword",
    "A keyword is one colon and a name without a space between them, such as :rate.",
    "Write the name right after the colon.",
)
_code(
    "E-TXT-012",
    "brackets nest too deep",
    "A form may stand in at most 200 others, which no text written by hand reaches.",
    "Name inner parts with `def`, `let` or a function.",
)

# ---- environment ---------------------------------------------------------------------------------------------------

_code(
    "E-ENV-001",
    "an unknown environment variable",
    "A variable whose name begins with PAREN_ is set, but paren reads none of that name: most often a misspelling.",
    "Correct or unset it; docs/environment.md lists the names.",
)
_code(
    "E-ENV-002",
    "a wrong value in an environment variable or option",
    "A size is a number with a unit (24GiB, 512MiB, 2GB) or a number of bytes; a folder must exist.",
    "Write the value in that form.",
)
_code(
    "E-ENV-003",
    "an environment variable for several processes",
    "The variable belongs to training in several processes or on several nodes, which this version does not do.",
    "Unset it.",
)

# ---- command line --------------------------------------------------------------------------------------------------

_code(
    "E-CLI-001",
    "wrong use of the command line",
    "A command, option, argument or value is unknown, missing or of the wrong kind. The exit code is 2.",
    "`paren COMMAND --help` shows how the command is used.",
)
_code(
    "E-CLI-002",
    "the system refused a file operation",
    "The disk is full or read-only, a quota is used up, permission is missing, or the device failed.",
    "Free space, or name another folder with `--out` or PAREN_CACHE.",
)
_code(
    "E-CLI-003",
    "a file is not laid out",
    "`paren format --check` found files that differ from the layout; their names are on stdout.",
    "Run `paren format` on them.",
)
_code(
    "E-CLI-004",
    "no such code or command",
    "`paren help` explains error codes and commands; the name given is neither.",
    "docs/errors.md lists all codes, `paren --help` the commands.",
)

# ---- devices and memory --------------------------------------------------------------------------------------------

_code(
    "E-DEV-001",
    "CUDA was asked for and cannot be used",
    "The device is cuda or cuda:N, and this version of paren runs on the CPU only. paren never falls back by itself.",
    "Use the device cpu, or auto, which takes the best device there is and says which and why.",
)
_code(
    "E-DEV-002",
    "an unknown device",
    "A device is cpu, cuda, cuda:N, auto or reference.",
    "Use one of these names.",
)
_code(
    "E-DEV-003",
    "a wrong number of threads",
    "The number of threads is an integer of at least 1.",
    "Give a number from 1 to the cores of the machine, or none for all of them.",
)
_code(
    "E-MEM-002",
    "memory could not be allocated",
    "The system refused memory that the plan needs, although the plan fits what was available before.",
    "End other programs, or make the model or the microbatch smaller.",
)

# ---- doctor --------------------------------------------------------------------------------------------------------

_code(
    "E-DEV-101",
    "the Python is too old",
    "paren needs Python 3.11 or newer.",
    "Make a virtual environment with a newer Python and install paren in it.",
)
_code(
    "E-DEV-102",
    "a package is missing",
    "A package that paren always needs is not installed, so the installation is incomplete.",
    "Install paren again with pip, which brings the package along.",
)
_code(
    "E-DEV-103",
    "torch cannot be used",
    "torch is missing, does not load, is older than 2.10, or is built for ROCm, which is not supported yet.",
    "Install torch 2.10 or newer, built for the CPU or for CUDA.",
)
_code(
    "E-DEV-104",
    "no machine code",
    "llvmlite could not compile a small function for this processor, or its answer was wrong.",
    "Install llvmlite again for this Python; `--device reference` runs without it, slowly.",
)
_code(
    "E-DEV-105",
    "no matrix products of the library",
    "torch's library does not export its matrix products on this system, so they are called through torch.",
    "Nothing needs to be done; small products take longer.",
)
_code(
    "E-DEV-106",
    "no OpenMP runtime",
    "libgomp was found neither with torch nor in the system, so kernels run on one thread.",
    "Install libgomp1 (Debian, Ubuntu) or libgomp (Fedora) for several threads.",
)
_code(
    "E-DEV-107",
    "little free memory",
    "Less than 1 GiB is free, or the limit of the container leaves less.",
    "End other programs or raise the limit; small files train all the same.",
)
_code(
    "E-DEV-108",
    "the cache folder cannot be written",
    "Compiled kernels, tokenizers and checks of data files are then made anew by each run.",
    "Name another folder in PAREN_CACHE.",
)
_code(
    "E-DEV-109",
    "an optional package is missing",
    "Some data forms and options need a package that is not installed.",
    "Install it with the extra that the row names, if you need it.",
)
