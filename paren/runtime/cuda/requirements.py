"""What CUDA needs: each requirement, judged in order from what the probes found.

A finding without a code is a requirement that holds. The first that fails stops a run. Three never do: cuDNN, which
attention takes where it is there, NCCL, which several cards take, and other processes on the card.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paren.runtime.cuda.driver_libraries import Visible
from paren.runtime.cuda.probes import Probes
from paren.runtime.cuda.visible import describe_mask
from paren.text.errors import Note, ParenError
from paren.text.size import count_of, show_bytes

LEAST_TORCH = (2, 10)
LEAST_CUDA = (13, 0)
LEAST_DRIVER = 580  # the first with CUDA 13
OTHERS = "E-DEV-032"  # the code of the finding that names other processes on a card
UNCONNECTED = "E-DEV-034"  # of what keeps cards from sending each other gradients
LEAST_CAPABILITY = (8, 0)
LEAST_CUDNN = (9, 13)
RESERVE = 1 << 30  # bytes of a card that stay free for CUDA and its libraries

NEEDED = "CUDA needs torch 2.10 or newer, built for CUDA 13"
INSTALL_TORCH = "pip uninstall torch, then pip install torch --index-url https://download.pytorch.org/whl/cu130"
INSTALL_EXTRA = "pip install 'paren[cuda]'"
CPU = "use the device cpu"

# Failures of cuInit with a remedy of their own, by the names of cuda.h.
_REMEDIES = {
    "CUDA_ERROR_SYSTEM_NOT_READY": "start the service nvidia-fabricmanager, which connects the cards of this machine",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine: the driver was updated and its kernel module was not",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "update the driver itself: this card takes no compatibility package",
}


@dataclass(frozen=True)
class Finding:
    """One requirement: what was found, and if that is not enough a code, what explains it, and what to do.

    `needed`: whether CUDA cannot be used without it.
    """

    name: str
    detail: str
    code: str | None = None
    notes: tuple[str, ...] = ()
    fix: str = ""
    needed: bool = True

    @property
    def stops(self) -> bool:
        """Whether CUDA cannot be used because of this."""
        return self.code is not None and self.needed


def examine_cuda(probes: Probes, ordinal: int = 0) -> Iterator[Finding]:
    """The findings about the card `ordinal`, each made when it is asked for. What needs a requirement that failed is
    not looked at."""
    failed: dict[str, Finding] = {}
    for name, needs, judge in _REQUIREMENTS:
        first = next((failed[each] for each in needs if each in failed), None)
        if first is None:
            finding = judge(probes, ordinal)
        else:
            finding = Finding(name, f"not looked at: {first.name} comes first", first.code)
        if finding.stops:
            failed[name] = first or finding
        yield finding


def require_cuda(device: str, ordinal: int, probes: Probes) -> tuple[Visible, tuple[Finding, ...]]:
    """The card `ordinal` and all findings about it. Raises the first that CUDA cannot be used with, in the name of the
    device that was asked for: E-DEV-001, E-DEV-011, E-DEV-103, E-DEV-020 to E-DEV-031."""
    findings = []
    for finding in examine_cuda(probes, ordinal):
        if finding.stops:
            raise ParenError(
                str(finding.code),
                f"device {device} cannot be used: {finding.detail}",
                notes=[Note(note) for note in finding.notes],
                fix=finding.fix,
            )
        findings.append(finding)
    return probes.cards[ordinal], tuple(findings)


def too_old(name: str, capability: tuple[int, int]) -> tuple[str, str]:
    """What is wrong with a card, or an architecture, of this compute capability, and what to do."""
    return (
        f"{name} has compute capability {_dotted(capability)}, and paren needs {_dotted(LEAST_CAPABILITY)} or newer",
        "use a card of the architecture Ampere (A100, A10, RTX 30) or a later one",
    )


def _judge_torch(probes: Probes, _ordinal: int) -> Finding:
    torch = probes.torch
    if torch is None:
        return Finding("torch", "torch is not installed", "E-DEV-103", (NEEDED,), "pip install torch")
    if torch.rocm:
        reason = f"torch {torch.version} is built for ROCm {torch.rocm}, which is not supported yet"
        return Finding("torch", reason, "E-DEV-021", (NEEDED,), f"on an NVIDIA card: {INSTALL_TORCH}")
    if not torch.cuda:
        reason = f"torch {torch.version} is built for the CPU only"
        return Finding("torch", reason, "E-DEV-020", (NEEDED,), INSTALL_TORCH)
    if _numbers(torch.cuda) < LEAST_CUDA or _numbers(torch.version) < LEAST_TORCH:
        reason = f"torch {torch.version}, built for CUDA {torch.cuda}, is too old"
        return Finding("torch", reason, "E-DEV-022", (NEEDED,), INSTALL_TORCH)
    return Finding("torch", f"{torch.version}, built for CUDA {torch.cuda}")


def _judge_driver(probes: Probes, _ordinal: int) -> Finding:
    driver, needed = probes.driver, f"driver {LEAST_DRIVER} (CUDA {_dotted(LEAST_CUDA)}) or newer"
    if driver is None:
        fix = "install NVIDIA's driver; a container needs --gpus all (Docker) or --nv (Apptainer) to see the host's"
        return Finding("driver", "no NVIDIA driver was found", "E-DEV-023", (f"CUDA needs {needed}",), fix)
    found = f"{driver.version or 'of an unknown version'} (CUDA {_dotted(driver.cuda)})"
    if driver.cuda < LEAST_CUDA:
        reason = f"the NVIDIA driver {found} is too old, {needed} is needed"
        return Finding("driver", reason, "E-DEV-024", (), "update NVIDIA's driver")
    if driver.failure:
        reason = f"the NVIDIA driver {found} does not start: {driver.failure} ({driver.status})"
        fix = _REMEDIES.get(driver.failure, "nvidia-smi may tell more; restart the machine if it fails too")
        return Finding("driver", reason, "E-DEV-025", (), fix)
    return Finding("driver", found)


def _judge_visible(probes: Probes, _ordinal: int) -> Finding:
    cards = probes.cards
    if cards:
        return Finding("GPU", ", ".join(_describe(card) for card in cards))
    if probes.mask is None:
        return Finding("GPU", "the driver shows no GPU", "E-DEV-001", (), f"{CPU}; nvidia-smi lists what there is")
    notes = (describe_mask(probes.mask, probes.machine), _describe_machine(probes))
    fix = "name cards that are there in CUDA_VISIBLE_DEVICES, or unset it"
    return Finding("GPU", "no GPU is visible", "E-DEV-001", notes, fix)


def _judge_ordinal(probes: Probes, ordinal: int) -> Finding:
    cards = probes.cards
    if ordinal < len(cards):
        return Finding("ordinal", f"cuda:{ordinal} of {len(cards)}")
    names = " or ".join(f"cuda:{card.ordinal}" for card in cards)
    count = count_of(len(cards), "GPU is", "GPUs are")
    notes = [f"visible: {', '.join(_describe(card) for card in cards)}"]
    if probes.mask is not None:
        notes += [describe_mask(probes.mask, probes.machine), _describe_machine(probes)]
    reason = f"{count} visible, and ordinals count the visible ones from 0"
    return Finding("ordinal", reason, "E-DEV-026", tuple(notes), f"use {names}")


def _judge_capability(probes: Probes, ordinal: int) -> Finding:
    card = probes.cards[ordinal]
    if card.capability < LEAST_CAPABILITY:
        reason, fix = too_old(card.name, card.capability)
        return Finding("compute capability", reason, "E-DEV-011", (), f"{fix}, or the device cpu")
    return Finding("compute capability", _dotted(card.capability))


def _judge_compiler(probes: Probes, ordinal: int) -> Finding:
    known = probes.cards[ordinal : ordinal + 1]
    arch = "sm_{}{}".format(*max([LEAST_CAPABILITY, *(card.capability for card in known)]))
    compiler = probes.compiler(arch)
    if not compiler.version:
        reason = f"NVRTC or cuda-bindings is missing: {compiler.failure}"
        return Finding("NVRTC", reason, "E-DEV-027", (), INSTALL_EXTRA)
    if _numbers(compiler.version) < LEAST_CUDA:
        reason = f"NVRTC {compiler.version} is too old, {_dotted(LEAST_CUDA)} is needed"
        return Finding("NVRTC", reason, "E-DEV-027", (), INSTALL_EXTRA.replace("install", "install --upgrade"))
    if compiler.failure:
        reason = f"NVRTC {compiler.version} cannot compile for {arch}: {compiler.failure}"
        return Finding("NVRTC", reason, "E-DEV-028", (), "pip install --upgrade nvidia-cuda-nvrtc")
    return Finding("NVRTC", f"{compiler.version}, compiles for {arch}")


def _judge_products(probes: Probes, _ordinal: int) -> Finding:
    reason = probes.cublas
    if reason:
        detail = f"torch's cuBLAS cannot be loaded: {reason}"
        return Finding("cuBLAS", detail, "E-DEV-029", (), f"install torch again ({INSTALL_TORCH})")
    return Finding("cuBLAS", "loaded with torch")


def _judge_attention(probes: Probes, _ordinal: int) -> Finding:
    version = probes.cudnn
    if version is not None and version >= LEAST_CUDNN:
        return Finding("cuDNN", _dotted(version))
    reason = "cuDNN was not found: attention takes torch's flash attention instead"
    if version is not None:
        reason = f"cuDNN {_dotted(version)} is older than {_dotted(LEAST_CUDNN)}: it may refuse attention"
    return Finding("cuDNN", reason, "E-DEV-030", (), "pip install --upgrade torch", needed=False)


def _judge_connector(probes: Probes, _ordinal: int) -> Finding:
    found = probes.nccl
    if found.version:
        return Finding("NCCL", found.version.removeprefix("NCCL "))
    reason = f"{found.failure}; gradients of several cards go through the hosts"
    return Finding("NCCL", reason, UNCONNECTED, (), "pip install nvidia-nccl-cu13", needed=False)


def _judge_memory(probes: Probes, ordinal: int) -> Finding:
    card = probes.cards[ordinal]
    occupancy = probes.occupancy(card)
    if occupancy is None:
        return Finding("GPU memory", "the driver does not tell before the device is opened")
    free = f"{show_bytes(occupancy.free)} of {show_bytes(occupancy.total)} are free"
    if occupancy.free <= RESERVE:
        reason = f"{free} on {card.name}, and {show_bytes(RESERVE)} stays free for CUDA's libraries"
        notes = (_describe_others(probes, card),) if occupancy.others else ()
        return Finding("GPU memory", reason, "E-DEV-031", notes, "end the other processes, or use another card")
    return Finding("GPU memory", free)


def _judge_others(probes: Probes, ordinal: int) -> Finding:
    others = _describe_others(probes, probes.cards[ordinal])
    if not others:
        return Finding("other processes", "none on the card")
    return Finding("other processes", others, OTHERS, (), "end them for their memory and their time", needed=False)


_Judge = Callable[[Probes, int], Finding]

# Name, the names of what has to hold before it can be looked at, and the judge.
_REQUIREMENTS: tuple[tuple[str, tuple[str, ...], _Judge], ...] = (
    ("torch", (), _judge_torch),
    ("driver", (), _judge_driver),
    ("GPU", ("driver",), _judge_visible),
    ("ordinal", ("GPU",), _judge_ordinal),
    ("compute capability", ("ordinal",), _judge_capability),
    ("NVRTC", (), _judge_compiler),
    ("cuBLAS", ("torch",), _judge_products),
    ("cuDNN", ("torch",), _judge_attention),
    ("NCCL", ("torch",), _judge_connector),
    ("GPU memory", ("ordinal",), _judge_memory),
    ("other processes", ("ordinal",), _judge_others),
)


def _describe_others(probes: Probes, card: Visible) -> str:
    """Who else is on a card and what they hold; empty if nobody is."""
    occupancy = probes.occupancy(card)
    if occupancy is None or not (occupancy.others or occupancy.processes):
        return ""
    named = f": {', '.join(occupancy.processes)}" if occupancy.processes else ""
    return f"other processes hold {show_bytes(occupancy.others)} of {card.name}{named}"


def _describe(card: Visible) -> str:
    return f"cuda:{card.ordinal} {card.name} ({card.uuid})"


def _describe_machine(probes: Probes) -> str:
    cards = ", ".join(f"{name} ({uuid})" for name, uuid in probes.machine)
    return f"this machine has {cards}" if cards else "the driver does not tell which cards this machine has"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
