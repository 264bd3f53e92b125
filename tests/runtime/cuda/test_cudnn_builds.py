"""cuDNN itself, where it is installed with its package, builds every graph for each generation of cards."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
# What answers with success: these put 1 where the caller wants a handle or a number. The rest fails as without a card.
HANDLES = ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuModuleLoadData", "cuModuleGetFunction")
NUMBERS = (
    "cuDeviceGetCount",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaGetDevice",
    "cudaRuntimeGetVersion",
    "cudaDeviceGetAttribute",
)
SILENT = ("cuKernelSetAttribute", "cuFuncSetAttribute", "cuLibraryUnload", "cuModuleUnload")
STUB = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
int cuGetErrorString(int error, const char **text) { *text = "no device"; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
const char *cudaGetErrorString(int error) { return "no device"; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
  *found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
  return *found ? 0 : 500;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                     int *status) {
  if (status) *status = 0;
  return cuGetProcAddress_v2(name, found, 0, 0, 0);
}
"""


def libraries() -> Path | None:
    """The folder of cuDNN's libraries, from its wheel."""
    try:
        found = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return None
    places = [Path(place) / "lib" for place in (found.submodule_search_locations or ())] if found is not None else []
    return next((place for place in places if place.is_dir()), None)


def stubs(folder: Path, cudnn: Path, package: Path) -> None:
    """libcuda and libcudart with all functions whose names stand in the libraries and in the package's module."""
    names: set[str] = set()
    for library in [*cudnn.glob("*.so*"), *package.glob("*.so")]:
        names |= {name.decode() for name in re.findall(rb"\b(cu(?:da)?[A-Z]\w+)\x00", library.read_bytes())}
    text = STUB
    for name in sorted(names - set(re.findall(r"(\w+)\(", STUB))):
        if name in HANDLES + NUMBERS:
            width = "int" if name in NUMBERS else "void *"
            text += f"int {name}({width} *to) {{ *to = ({width})1; return 0; }}\n"
        else:
            text += f"int {name}() {{ return {0 if name in SILENT else 100}; }}\n"
    source = folder / "stub.c"
    source.write_text(text)
    for name in ("libcuda.so.1", "libcudart.so"):
        options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{name}"]
        command = ["gcc", *options, "-o", str(folder / name), str(source), "-ldl"]
        subprocess.run(command, check=True, timeout=300)


@pytest.mark.long
def test_cudnn_builds_every_graph_without_a_card(tmp_path: Path) -> None:
    package = importlib.util.find_spec("cudnn")
    cudnn = libraries()
    if package is None or package.origin is None or cudnn is None or shutil.which("gcc") is None:
        pytest.skip("needs nvidia-cudnn-frontend, nvidia-cudnn-cu13 and gcc")
    stubs(tmp_path, cudnn, Path(package.origin).parent)
    paths = [str(tmp_path), str(cudnn), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path),
        "CUDNN_FRONTEND_CUDART_LIB_NAME": str(tmp_path / "libcudart.so"),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(TESTS), *sys.path]),
    }
    command = [sys.executable, str(HERE / "cudnn_builds.py"), str(tmp_path / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout)
    assert len(found) > 200
    assert {name: refusal for name, refusal in found.items() if refusal is not None} == {}
