"""Codes of devices, memory and the doctor: E-DEV, E-MEM."""

from paren.text.code_registry import register

register(
    "E-DEV-001",
    "CUDA was asked for and cannot be used",
    "The device is cuda or cuda:N, and this version of paren runs on the CPU only. paren never falls back by itself.",
    "Use the device cpu, or auto, which takes the best device there is and says which and why.",
)
register(
    "E-DEV-002",
    "an unknown device",
    "A device is cpu, cuda, cuda:N, auto or reference.",
    "Use one of these names.",
)
register(
    "E-DEV-003",
    "a wrong number of threads",
    "The number of threads is an integer of at least 1.",
    "Give a number from 1 to the cores of the machine, or none for all of them.",
)
register(
    "E-DEV-010",
    "an unknown card",
    "`paren explain FILE --card NAME` knows the cards that docs/cards.md lists, by these names.",
    "Use one of these names, or give the memory of another card with --memory.",
)
register(
    "E-DEV-011",
    "a card that is too old",
    "paren needs compute capability 8.0 or newer: the architecture Ampere (A100, A10, RTX 30) or a later one.",
    "Use a newer card, or the CPU.",
)
register(
    "E-DEV-012",
    "options of a report that contradict each other",
    "A report is about a device of this machine (--device), a card by its name (--card), or a card of some memory and "
    "architecture (--memory, --arch). --memory with --device is that device with only so much memory.",
    "Give one of them.",
)
register(
    "E-DEV-013",
    "an unknown architecture",
    "The architecture of a card is the name of its instruction set: sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, ...",
    "Use one of the names that the message lists.",
)
register(
    "E-MEM-001",
    "the plan does not fit",
    "The plan of the run needs more memory than is free, or than PAREN_MEMORY allows. Nothing was computed.",
    "Take the change that the message names, or end other programs; the message gives the parts.",
)
register(
    "E-MEM-002",
    "memory could not be allocated",
    "The system refused memory that the plan needs, although the plan fits what was available before.",
    "End other programs, or make the model or the microbatch smaller.",
)
register(
    "E-MEM-003",
    "a stacking that cannot be",
    "--stacking is the number of microbatches that one call takes, so it has to divide the microbatches of a batch.",
    "Use one of the numbers that the message gives, or leave it out: paren then chooses.",
)

register(
    "E-DEV-101",
    "the Python is too old",
    "paren needs Python 3.11 or newer.",
    "Make a virtual environment with a newer Python and install paren in it.",
)
register(
    "E-DEV-102",
    "a package is missing",
    "A package that paren always needs is not installed, so the installation is incomplete.",
    "Install paren again with pip, which brings the package along.",
)
register(
    "E-DEV-103",
    "torch cannot be used",
    "torch is missing, does not load, is older than 2.10, or is built for ROCm, which is not supported yet.",
    "Install torch 2.10 or newer, built for the CPU or for CUDA.",
)
register(
    "E-DEV-104",
    "no machine code",
    "llvmlite could not compile a small function for this processor, or its answer was wrong.",
    "Install llvmlite again for this Python; `--device reference` runs without it, slowly.",
)
register(
    "E-DEV-106",
    "no OpenMP runtime",
    "libgomp was found neither with torch nor in the system, so kernels run on one thread.",
    "Install libgomp1 (Debian, Ubuntu) or libgomp (Fedora) for several threads.",
)
register(
    "E-DEV-107",
    "little free memory",
    "Less than 1 GiB is free, or the limit of the container leaves less.",
    "End other programs or raise the limit; small files train all the same.",
)
register(
    "E-DEV-108",
    "the cache folder cannot be written",
    "Compiled kernels, tokenizers and checks of data files are then made anew by each run.",
    "Name another folder in PAREN_CACHE.",
)
register(
    "E-DEV-109",
    "an optional package is missing",
    "Some data forms and options need a package that is not installed.",
    "Install it with the extra that the row names, if you need it.",
)
