"""Codes of devices, memory and the doctor: E-DEV, E-MEM."""

from paren.text.code_registry import register

register(
    "E-DEV-001",
    "no GPU is visible",
    "The driver works and shows this process no card: there is none, or CUDA_VISIBLE_DEVICES hides it. paren never "
    "falls back by itself.",
    "Look what nvidia-smi lists, correct CUDA_VISIBLE_DEVICES, or use the device cpu or auto.",
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
    "architecture (--memory, --arch). --device cuda may stand beside a card that is described; --device cpu with "
    "--memory is the CPU with only so much memory.",
    "Give one of them.",
)
register(
    "E-DEV-013",
    "an unknown architecture",
    "The architecture of a card is the name of its instruction set: sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, ...",
    "Use one of the names that the message lists.",
)
register(
    "E-DEV-014",
    "TF32 without CUDA",
    "--tf32 lets CUDA round the operands of float32 products of matrices to TF32, of 10 bits. No other device does it.",
    "Leave out --tf32, or use the device cuda.",
)
register(
    "E-DEV-020",
    "torch is built for the CPU only",
    "On a card paren works through torch's CUDA libraries, which this build of torch does not have.",
    "Install torch built for CUDA 13: uninstall it first, since pip takes the build for the CPU for the same version.",
)
register(
    "E-DEV-021",
    "torch is built for ROCm",
    "paren computes on the CPU and on NVIDIA's cards. ROCm is not supported yet.",
    "Use the device cpu; on an NVIDIA card, install torch built for CUDA 13.",
)
register(
    "E-DEV-022",
    "torch is too old for CUDA",
    "CUDA needs torch 2.10 or newer, built for CUDA 13.",
    "Install a newer torch, or the build of it for CUDA 13.",
)
register(
    "E-DEV-023",
    "no NVIDIA driver",
    "libcuda.so.1, which NVIDIA's driver brings, was not found. A container sees its host's driver only on demand.",
    "Install NVIDIA's driver; start a container with --gpus all (Docker) or --nv (Apptainer).",
)
register(
    "E-DEV-024",
    "the NVIDIA driver is too old",
    "CUDA 13 needs driver 580 or newer.",
    "Update NVIDIA's driver; on cards for data centres its package cuda-compat is enough.",
)
register(
    "E-DEV-025",
    "the NVIDIA driver does not start",
    "The driver is there, and CUDA failed to start with the error that the message names.",
    "Do what the message says; nvidia-smi often tells more. After an update of the driver, restart the machine.",
)
register(
    "E-DEV-026",
    "a GPU that is not visible",
    "In cuda:N, N counts the cards that this process sees, from 0. CUDA_VISIBLE_DEVICES decides which those are.",
    "Use an ordinal that the message lists, or change CUDA_VISIBLE_DEVICES.",
)
register(
    "E-DEV-027",
    "NVRTC is missing or too old",
    "Kernels for CUDA are compiled by NVRTC 13, which the extra `cuda` brings with cuda-bindings.",
    "Run pip install 'paren[cuda]'.",
)
register(
    "E-DEV-028",
    "NVRTC does not know the card",
    "NVRTC could not compile a small kernel for the architecture of the card, which is newer than it.",
    "Run pip install --upgrade nvidia-cuda-nvrtc.",
)
register(
    "E-DEV-029",
    "no cuBLAS",
    "Products of matrices on a card are cuBLAS's, which torch's build for CUDA brings. It could not be loaded.",
    "Install torch again, from the package index.",
)
register(
    "E-DEV-030",
    "no cuDNN, or an old one",
    "Attention on a card is computed by cuDNN 9.13 or newer where torch brings it; where it is missing or refuses, by "
    "torch's flash attention.",
    "Nothing has to be done; a newer torch brings a newer cuDNN.",
)
register(
    "E-DEV-031",
    "the card has no free memory",
    "paren leaves 1 GiB of a card free for CUDA's libraries, and no more than that is free now.",
    "End the other processes on the card, or use another one.",
)
register(
    "E-DEV-032",
    "other processes on the card",
    "They hold memory that the plan cannot use, and take turns with paren's kernels, which makes a step slower.",
    "Nothing has to be done; end them for their memory and their time.",
)
register(
    "E-DEV-033",
    "a card that fails",
    "All that CUDA needs is there, and a product of matrices on the card or the measurement of its speed failed.",
    "See what the row says, and what nvidia-smi says of the card; restart the machine if it says nothing.",
)
register(
    "E-DEV-034",
    "cards exchange gradients through the hosts",
    "Cards of several ranks send each other gradients through NCCL. It is not there, it does not connect these cards, "
    "two ranks are on one card, one has none, or PAREN_CARD_GRADIENTS says so; the message says which. A run goes on, "
    "with the same bits and slower.",
    "Install nvidia-nccl-cu13, which comes with torch for CUDA, give every rank a card of its own, and where NCCL does "
    "not connect them set NCCL_DEBUG=INFO: it then says what it tried.",
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
