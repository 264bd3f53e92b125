"""The doctor's rows about Python and its packages; needs nothing but the standard library, so that it always runs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re

from paren.inspect.examination import FAIL, NOTE, PASS, Row
from paren.text.errors import first_line

PYTHON = (3, 11)
TORCH = (2, 10)
PACKAGES = ("numpy", "llvmlite", "safetensors", "tokenizers", "rich", "typer", "filelock", "platformdirs", "matplotlib")
OPTIONAL = (
    ("cudnn", "nvidia-cudnn-frontend", "cudnn", "attention and products on cards by cuDNN's own graphs"),
    ("pyarrow", "pyarrow", "parquet", "Parquet files"),
    ("sklearn", "scikit-learn", "digits", "the digits images"),
    ("tensorboard", "tensorboard", "tensorboard", "--tensorboard"),
    ("scipy", "scipy", "nre", "examples/nre"),
    ("botocore", "botocore", "s3", "checkpoints on s3://"),
)


def check_python(version: tuple[int, int, int]) -> Row:
    """The interpreter's version."""
    detail = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    if version[:2] < PYTHON:
        return Row("python", FAIL, f"{detail}; at least {'.'.join(map(str, PYTHON))} is needed", "E-DEV-101")
    return Row("python", PASS, detail)


def check_torch() -> Row:
    """torch loads, is new enough, and is no build for ROCm."""
    try:
        import torch  # takes over a second
    except (ImportError, OSError) as error:
        return Row("torch", FAIL, f"cannot be loaded: {first_line(error)}", "E-DEV-103")
    return judge_torch(str(torch.__version__), getattr(torch.version, "hip", None))


def judge_torch(version: str, rocm: str | None) -> Row:
    """Whether a version of torch can be used; `rocm` is the version of ROCm it was built for."""
    if rocm:
        return Row("torch", FAIL, f"{version} is built for ROCm {rocm}, which is not supported yet", "E-DEV-103")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < TORCH:
        return Row("torch", FAIL, f"{version}; at least {'.'.join(map(str, TORCH))} is needed", "E-DEV-103")
    return Row("torch", PASS, version)


def check_package(name: str) -> Row:
    """A package that paren always needs, without importing it."""
    version = _version(name, name)
    if version is None:
        return Row(name, FAIL, f"not installed; pip install {name}", "E-DEV-102")
    return Row(name, PASS, version)


def check_optional(module: str, package: str, extra: str, purpose: str) -> Row:
    """A package that some files or options need."""
    version = _version(module, package)
    if version is None:
        return Row(package, NOTE, f"not installed, needed for {purpose}; pip install 'paren[{extra}]'", "E-DEV-109")
    return Row(package, PASS, version)


def _version(module: str, package: str) -> str | None:
    try:
        return importlib.metadata.version(package) if importlib.util.find_spec(module) is not None else None
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"
