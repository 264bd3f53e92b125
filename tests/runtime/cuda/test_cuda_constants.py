"""Numbers and structures that are written here by hand, against the headers that NVIDIA's and torch's packages hold."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from cuda.bindings import driver, nvml, runtime

from paren.runtime.cuda import cublas, driver_libraries, nccl, requirements

STRUCTURES = [
    (driver_libraries._Memory, nvml.memory_v2_dtype),
    (driver_libraries._Process, nvml.process_info_dtype),
]


def test_constants_of_the_driver() -> None:
    attributes, results = driver.CUdevice_attribute, driver.CUresult
    assert driver_libraries._CAPABILITY_MAJOR == attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    assert driver_libraries._CAPABILITY_MINOR == attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    assert driver_libraries._SUCCESS == results.CUDA_SUCCESS
    assert driver_libraries._NO_DEVICE == results.CUDA_ERROR_NO_DEVICE
    assert set(requirements._REMEDIES) <= {result.name for result in results}


@pytest.mark.parametrize(("own", "theirs"), STRUCTURES)
def test_structures_of_the_management_library(own: type[ctypes.Structure], theirs: object) -> None:
    fields = [getattr(own, name) for name, _ in own._fields_]
    described = theirs.fields  # type: ignore[attr-defined]
    wanted = sorted((offset, dtype.itemsize) for dtype, offset in described.values())
    assert [(field.offset, field.size) for field in fields] == wanted
    assert ctypes.sizeof(own) == theirs.itemsize  # type: ignore[attr-defined]


def test_types_of_products() -> None:
    types = runtime.cudaDataType
    names = {"float32": "CUDA_R_32F", "float64": "CUDA_R_64F", "bfloat16": "CUDA_R_16BF", "float16": "CUDA_R_16F"}
    assert {dtype.value: number for dtype, number in cublas._TYPES.items()} == {
        name: getattr(types, constant).value for name, constant in names.items()
    }


def test_constants_of_the_connection() -> None:
    """As torch says them again in its own header."""
    header = (Path(torch.__file__).parent / "include" / "torch" / "csrc" / "cuda" / "nccl.h").read_text()
    found = {name: int(number) for name, number in re.findall(r"^ +(\w+) = (\d+)", header, re.MULTILINE)}
    assert found["InProgress"] == nccl._UNDER_WAY
    assert found["Uint8"] == nccl._BYTES
    assert found["Success"] == 0
    assert ctypes.sizeof(nccl.UniqueId) == int(re.findall(r"NCCL_UNIQUE_ID_BYTES (\d+)", header)[0])
