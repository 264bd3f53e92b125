"""CUDA C to machine code for one architecture, by NVIDIA's runtime compiler. It needs no card and no driver."""

from __future__ import annotations

from collections.abc import Sequence

from cuda.bindings import nvrtc

from paren.runtime.cuda.resources import REPORT, Resources, read_resources
from paren.text.errors import InternalError

# The same bits as on the CPU: no contraction that the text does not ask for, division and roots rounded correctly,
# small numbers kept.
OPTIONS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")


class Nvrtc:
    """`version`: the library that is installed, and the options; machine code depends on both. `name`: without them."""

    def __init__(self) -> None:
        result, major, minor = nvrtc.nvrtcVersion()
        _check("nvrtcVersion", result)
        self.name = f"NVRTC {major}.{minor}"
        self.version = " ".join((self.name, *OPTIONS))

    def compile(self, text: str, architecture: str) -> bytes:
        """The module (cubin) of a text. It compiles outside Python's lock."""
        return _compile(text, architecture, OPTIONS)[0]

    def measure(self, text: str, architecture: str) -> dict[str, Resources]:
        """What each kernel of a text takes, by its name."""
        return read_resources(_compile(text, architecture, (*OPTIONS, REPORT))[1])


def _compile(text: str, architecture: str, options: Sequence[str]) -> tuple[bytes, str]:
    """The module of a text, and what the compiler said."""
    result, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
    _check("nvrtcCreateProgram", result)
    try:
        given = [option.encode() for option in (f"--gpu-architecture={architecture}", *options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = _log(program)
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise InternalError("cuda", f"a kernel does not compile: {log[:2000]}")
        _check("nvrtcCompileProgram", result)
        result, size = nvrtc.nvrtcGetCUBINSize(program)
        _check("nvrtcGetCUBINSize", result)
        module = bytearray(size)
        (result,) = nvrtc.nvrtcGetCUBIN(program, module)
        _check("nvrtcGetCUBIN", result)
        return bytes(module), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: nvrtc.nvrtcProgram) -> str:
    """What the compiler said, shortened."""
    result, size = nvrtc.nvrtcGetProgramLogSize(program)
    _check("nvrtcGetProgramLogSize", result)
    log = bytearray(size)
    (result,) = nvrtc.nvrtcGetProgramLog(program, log)
    _check("nvrtcGetProgramLog", result)
    return bytes(log).rstrip(b"\0").decode(errors="replace").strip()


def _check(name: str, result: nvrtc.nvrtcResult) -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise InternalError("cuda", f"{name}: {result.name}")
