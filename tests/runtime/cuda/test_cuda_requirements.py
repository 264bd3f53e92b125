"""What CUDA needs: every refusal in its exact words, from faked probes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from defined_kernels import defined_device
from fake_card import FakeCard
from fake_probes import GIB, H200, FakeProbes, several

from paren.inspect import machine
from paren.inspect.examination import NOTE, PASS, Row
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.probes import Compiler, Connector, Driver, MachineProbes, Occupancy, Torch
from paren.runtime.cuda.requirements import examine_cuda, require_cuda
from paren.runtime.cuda.visible import describe_mask
from paren.runtime.device import open_device
from paren.text.codes import CODES
from paren.text.errors import ParenError

FINE = FakeProbes()
CPU_BUILD = Torch("2.13.0+cpu", "", "")

NEEDED = "  note: CUDA needs torch 2.10 or newer, built for CUDA 13\n"
INSTALL = "pip uninstall torch, then pip install torch --index-url https://download.pytorch.org/whl/cu130"

REFUSALS = {
    "no torch": (
        replace(FINE, torch=None),
        f"E-DEV-103: device cuda cannot be used: torch is not installed\n{NEEDED}  fix: pip install torch",
    ),
    "torch for the CPU": (
        replace(FINE, torch=CPU_BUILD),
        f"E-DEV-020: device cuda cannot be used: torch 2.13.0+cpu is built for the CPU only\n{NEEDED}  fix: {INSTALL}",
    ),
    "torch for ROCm": (
        replace(FINE, torch=Torch("2.11.0+rocm6.4", "", "6.4")),
        "E-DEV-021: device cuda cannot be used: torch 2.11.0+rocm6.4 is built for ROCm 6.4, "
        "which is not supported yet\n"
        f"{NEEDED}  fix: on an NVIDIA card: {INSTALL}",
    ),
    "torch for CUDA 12": (
        replace(FINE, torch=Torch("2.10.0+cu128", "12.8", "")),
        "E-DEV-022: device cuda cannot be used: torch 2.10.0+cu128, built for CUDA 12.8, is too old\n"
        f"{NEEDED}  fix: {INSTALL}",
    ),
    "old torch": (
        replace(FINE, torch=Torch("2.9.1+cu130", "13.0", "")),
        "E-DEV-022: device cuda cannot be used: torch 2.9.1+cu130, built for CUDA 13.0, is too old\n"
        f"{NEEDED}  fix: {INSTALL}",
    ),
    "no driver": (
        replace(FINE, driver=None),
        "E-DEV-023: device cuda cannot be used: no NVIDIA driver was found\n"
        "  note: CUDA needs driver 580 (CUDA 13.0) or newer\n"
        "  fix: install NVIDIA's driver; a container needs --gpus all (Docker) or --nv (Apptainer) to see the host's",
    ),
    "old driver": (
        replace(FINE, driver=Driver("570.86.15", (12, 8))),
        "E-DEV-024: device cuda cannot be used: the NVIDIA driver 570.86.15 (CUDA 12.8) is too old, "
        "driver 580 (CUDA 13.0) or newer is needed\n"
        "  fix: update NVIDIA's driver",
    ),
    "a driver without a version": (
        replace(FINE, driver=Driver("", (12, 4))),
        "E-DEV-024: device cuda cannot be used: the NVIDIA driver of an unknown version (CUDA 12.4) is too old, "
        "driver 580 (CUDA 13.0) or newer is needed\n"
        "  fix: update NVIDIA's driver",
    ),
    "no fabric manager": (
        replace(FINE, driver=Driver("580.65.06", (13, 0), 802, "CUDA_ERROR_SYSTEM_NOT_READY")),
        "E-DEV-025: device cuda cannot be used: the NVIDIA driver 580.65.06 (CUDA 13.0) does not start: "
        "CUDA_ERROR_SYSTEM_NOT_READY (802)\n"
        "  fix: start the service nvidia-fabricmanager, which connects the cards of this machine",
    ),
    "a driver that does not start": (
        replace(FINE, driver=Driver("580.65.06", (13, 0), 999, "CUDA_ERROR_UNKNOWN")),
        "E-DEV-025: device cuda cannot be used: the NVIDIA driver 580.65.06 (CUDA 13.0) does not start: "
        "CUDA_ERROR_UNKNOWN (999)\n"
        "  fix: nvidia-smi may tell more; restart the machine if it fails too",
    ),
    "no GPU": (
        replace(FINE, cards=(), machine=()),
        "E-DEV-001: device cuda cannot be used: the driver shows no GPU\n"
        "  fix: use the device cpu; nvidia-smi lists what there is",
    ),
    "a hidden GPU": (
        replace(FINE, cards=(), mask=""),
        "E-DEV-001: device cuda cannot be used: no GPU is visible\n"
        "  note: CUDA_VISIBLE_DEVICES is empty, which hides every card\n"
        "  note: this machine has NVIDIA H200 (GPU-1111)\n"
        "  fix: name cards that are there in CUDA_VISIBLE_DEVICES, or unset it",
    ),
    "a mask on a machine that tells nothing": (
        replace(FINE, cards=(), mask="7", machine=()),
        "E-DEV-001: device cuda cannot be used: no GPU is visible\n"
        "  note: CUDA_VISIBLE_DEVICES is `7`\n"
        "  note: the driver does not tell which cards this machine has\n"
        "  fix: name cards that are there in CUDA_VISIBLE_DEVICES, or unset it",
    ),
    "an old card": (
        replace(FINE, cards=(replace(H200, name="Tesla T4", capability=(7, 5)),)),
        "E-DEV-011: device cuda cannot be used: Tesla T4 has compute capability 7.5, and paren needs 8.0 or newer\n"
        "  fix: use a card of the architecture Ampere (A100, A10, RTX 30) or a later one, or the device cpu",
    ),
    "no NVRTC": (
        replace(FINE, compiled=Compiler("", "No module named 'cuda'")),
        "E-DEV-027: device cuda cannot be used: NVRTC or cuda-bindings is missing: No module named 'cuda'\n"
        "  fix: pip install 'paren[cuda]'",
    ),
    "old NVRTC": (
        replace(FINE, compiled=Compiler("12.9")),
        "E-DEV-027: device cuda cannot be used: NVRTC 12.9 is too old, 13.0 is needed\n"
        "  fix: pip install --upgrade 'paren[cuda]'",
    ),
    "a card newer than NVRTC": (
        replace(
            FINE,
            cards=(replace(H200, capability=(13, 0)),),
            compiled=Compiler("13.0", "NVRTC_ERROR_INVALID_OPTION"),
        ),
        "E-DEV-028: device cuda cannot be used: NVRTC 13.0 cannot compile for sm_130: NVRTC_ERROR_INVALID_OPTION\n"
        "  fix: pip install --upgrade nvidia-cuda-nvrtc",
    ),
    "no cuBLAS": (
        replace(FINE, cublas="libcublas.so.13: cannot open shared object file: No such file or directory"),
        "E-DEV-029: device cuda cannot be used: torch's cuBLAS cannot be loaded: "
        "libcublas.so.13: cannot open shared object file: No such file or directory\n"
        f"  fix: install torch again ({INSTALL})",
    ),
    "a full card": (
        replace(FINE, occupied=Occupancy(GIB // 2, 140 * GIB, 139 * GIB, ("1234 (python)", "77"))),
        "E-DEV-031: device cuda cannot be used: 512 MiB of 140 GiB are free on NVIDIA H200, "
        "and 1 GiB stays free for CUDA's libraries\n"
        "  note: other processes hold 139 GiB of NVIDIA H200: 1234 (python), 77\n"
        "  fix: end the other processes, or use another card",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_cuda_is_refused_and_never_replaced(case: str) -> None:
    probes, message = REFUSALS[case]
    with pytest.raises(ParenError) as caught:
        open_device("cuda", probes=probes)
    assert str(caught.value) == message
    assert caught.value.code in CODES


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_auto_takes_the_cpu_for_the_same_reason(case: str) -> None:
    probes, message = REFUSALS[case]
    device = open_device("auto", 1, probes=probes)
    reason = message.splitlines()[0].partition("cannot be used: ")[2]
    assert (device.name, device.reason) == ("cpu", f"auto: the CPU, because {reason}")


@pytest.mark.parametrize(
    ("probes", "ordinal", "message"),
    [
        (
            FINE,
            1,
            "1 GPU is visible, and ordinals count the visible ones from 0\n"
            "  note: visible: cuda:0 NVIDIA H200 (GPU-1111)\n"
            "  fix: use cuda:0",
        ),
        (
            several(4, "2,3", 2),
            3,
            "2 GPUs are visible, and ordinals count the visible ones from 0\n"
            "  note: visible: cuda:0 NVIDIA A100 (GPU-00), cuda:1 NVIDIA A100 (GPU-11)\n"
            "  note: CUDA_VISIBLE_DEVICES is `2,3`\n"
            "  note: this machine has NVIDIA A100 (GPU-00), NVIDIA A100 (GPU-11), NVIDIA A100 (GPU-22), "
            "NVIDIA A100 (GPU-33)\n"
            "  fix: use cuda:0 or cuda:1",
        ),
        (
            several(2, "0, 5", 1),
            1,
            "1 GPU is visible, and ordinals count the visible ones from 0\n"
            "  note: visible: cuda:0 NVIDIA A100 (GPU-00)\n"
            "  note: CUDA_VISIBLE_DEVICES is `0, 5`: `5` names no card of this machine, "
            "so it and what follows are ignored\n"
            "  note: this machine has NVIDIA A100 (GPU-00), NVIDIA A100 (GPU-11)\n"
            "  fix: use cuda:0",
        ),
    ],
)
def test_an_ordinal_counts_what_is_visible(probes: FakeProbes, ordinal: int, message: str) -> None:
    with pytest.raises(ParenError) as caught:
        open_device(f"cuda:{ordinal}", probes=probes)
    assert str(caught.value) == f"E-DEV-026: device cuda:{ordinal} cannot be used: {message}"


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("1", ""),
        (" 1, 0 ", ""),
        ("GPU-aa11", ""),
        ("GPU-b,0", ""),
        ("MIG-17", ""),
        ("-1", ": `-1` hides every card from there on"),
        ("0,-1,1", ": `-1` hides every card from there on"),
        ("0,0", ": `0` repeats a card, and then CUDA shows none"),
        ("1,GPU-b", ": `GPU-b` repeats a card, and then CUDA shows none"),
        ("2", ": `2` names no card of this machine, so it and what follows are ignored"),
        ("0,,1", ": `` names no card of this machine, so it and what follows are ignored"),
        ("gpu0", ": `gpu0` names no card of this machine, so it and what follows are ignored"),
        ("GPU-a", ": `GPU-a` names several cards, so it and what follows are ignored"),
    ],
)
def test_masks(mask: str, said: str) -> None:
    cards = (("A", "GPU-aa11"), ("B", "GPU-b"), ("C", "GPU-aa22"))[: 3 if mask == "GPU-a" else 2]
    assert describe_mask(mask, cards) == f"CUDA_VISIBLE_DEVICES is `{mask}`{said}"


def test_what_is_enough() -> None:
    card, findings = require_cuda("cuda", 0, FINE)
    assert card == H200
    assert {finding.name: finding.detail for finding in findings} == {
        "torch": "2.11.0, built for CUDA 13.0",
        "driver": "580.65.06 (CUDA 13.0)",
        "GPU": "cuda:0 NVIDIA H200 (GPU-1111)",
        "ordinal": "cuda:0 of 1",
        "compute capability": "9.0",
        "NVRTC": "13.2, compiles for sm_90",
        "cuBLAS": "loaded with torch",
        "cuDNN": "9.19.0",
        "NCCL": "2.28.9",
        "GPU memory": "138 GiB of 140 GiB are free",
        "other processes": "none on the card",
    }
    assert [finding.code for finding in findings] == [None] * len(findings)


def test_what_stops_nothing_and_is_said() -> None:
    old = "cuDNN 9.10.2 is older than 9.13: it may refuse attention"
    shared = Occupancy(90 * GIB, 140 * GIB, 50 * GIB, ("1234 (python)",))
    _, findings = require_cuda("cuda", 0, replace(FINE, cudnn=(9, 10, 2), occupied=shared))
    assert [(finding.code, finding.detail) for finding in findings if finding.code] == [
        ("E-DEV-030", old),
        ("E-DEV-032", "other processes hold 50 GiB of NVIDIA H200: 1234 (python)"),
    ]
    _, findings = require_cuda("cuda", 0, replace(FINE, cudnn=None, occupied=Occupancy(GIB * 9, GIB * 10, GIB)))
    assert [finding.detail for finding in findings if finding.code] == [
        "cuDNN was not found: attention takes torch's flash attention instead",
        "other processes hold 1 GiB of NVIDIA H200",
    ]
    missing = Connector("", "NCCL cannot be loaded: libnccl.so.2: no such file")
    _, findings = require_cuda("cuda", 0, replace(FINE, nccl=missing))
    assert [(finding.code, finding.detail, finding.fix) for finding in findings if finding.code] == [
        (
            "E-DEV-034",
            "NCCL cannot be loaded: libnccl.so.2: no such file; gradients of several cards go through the hosts",
            "pip install nvidia-nccl-cu13",
        )
    ]
    _, findings = require_cuda("cuda", 0, replace(FINE, occupied=None))
    assert findings[-2].detail == "the driver does not tell before the device is opened"


def test_the_doctor_looks_at_all_that_can_be_looked_at() -> None:
    rows = machine.check_cuda(None, replace(FINE, torch=CPU_BUILD, driver=None, cards=()))
    assert rows == [
        Row("cuda: torch", NOTE, "torch 2.13.0+cpu is built for the CPU only", "E-DEV-020"),
        Row("cuda: driver", NOTE, "no NVIDIA driver was found", "E-DEV-023"),
        Row("cuda: GPU", NOTE, "not looked at: driver comes first", "E-DEV-023"),
        Row("cuda: ordinal", NOTE, "not looked at: driver comes first", "E-DEV-023"),
        Row("cuda: compute capability", NOTE, "not looked at: driver comes first", "E-DEV-023"),
        Row("cuda: NVRTC", PASS, "13.2, compiles for sm_80"),
        Row("cuda: cuBLAS", NOTE, "not looked at: torch comes first", "E-DEV-020"),
        Row("cuda: cuDNN", NOTE, "not looked at: torch comes first", "E-DEV-020"),
        Row("cuda: NCCL", NOTE, "not looked at: torch comes first", "E-DEV-020"),
        Row("cuda: GPU memory", NOTE, "not looked at: driver comes first", "E-DEV-023"),
        Row("cuda: other processes", NOTE, "not looked at: driver comes first", "E-DEV-023"),
    ]


def test_where_all_holds_the_doctor_computes_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(name: str, threads: int | None, cache: Path, probes: FakeProbes) -> CudaDevice:
        assert (name, threads, cache, probes) == ("cuda", None, tmp_path, FINE)
        return defined_device()[0]

    monkeypatch.setattr(machine, "open_device", opened)
    monkeypatch.setattr(machine, "_rates", lambda device, cache: f"rates of {device.target} in {cache.name}")
    *rows, last = machine.check_cuda(tmp_path, FINE)
    assert {row.state for row in rows} == {PASS}
    assert last == Row("cuda: speed", PASS, f"rates of Fake sm_90 definition in {tmp_path.name}")
    monkeypatch.setattr(FakeCard, "multiply", lambda *_: None)
    assert machine.check_cuda(tmp_path, FINE)[-1] == Row(
        "cuda: speed", NOTE, "a product of small integers is wrong", "E-DEV-033"
    )
    assert machine.check_cuda(None, FINE) == rows


def test_this_machine_answers_every_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    probes = MachineProbes()
    assert probes.torch is not None
    assert probes.mask == ""
    assert probes.cards == ()
    assert list(examine_cuda(probes))[3].name == "ordinal"
