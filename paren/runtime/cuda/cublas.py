"""cuBLAS by ctypes, from the library that torch has loaded, so that a process holds one.

Names and constants are those of cublas_api.h.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int, c_int64, c_longlong, c_size_t, c_void_p

from paren.ir.types import DType
from paren.runtime.cuda.native import Library, loaded_library
from paren.runtime.cuda.products import Gemm

WORKSPACE = 32 << 20  # bytes; what NVIDIA recommends for Hopper. A fixed one, for bits that repeat
_TYPES = {DType.FLOAT32: 0, DType.FLOAT64: 1, DType.BFLOAT16: 14, DType.FLOAT16: 2}  # cudaDataType
_FLOAT32, _FLOAT64, _TF32 = 68, 70, 77  # CUBLAS_COMPUTE_*
_SUMS_IN_FLOAT32 = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_DEFAULT_ALGORITHM = -1
_MATRIX = (c_void_p, c_int, c_int64)  # address, type, leading dimension
_SIZES = (c_void_p, c_int, c_int, c_int64, c_int64, c_int64, c_void_p)  # handle, transpositions, m, n, k, alpha
_FUNCTIONS = {
    "cublasCreate_v2": (POINTER(c_void_p),),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasSetMathMode": (c_void_p, c_int),
    "cublasGemmEx_64": (*_SIZES, *_MATRIX, *_MATRIX, c_void_p, *_MATRIX, c_int, c_int),
    "cublasGemmStridedBatchedEx_64": (
        *_SIZES,
        *_MATRIX,
        c_longlong,
        *_MATRIX,
        c_longlong,
        c_void_p,
        *_MATRIX,
        c_longlong,
        c_int64,
        c_int,
        c_int,
    ),
}


class _Cublas(Library):
    def describe(self, result: int) -> str:
        name = self._library.cublasGetStatusName
        name.restype = ctypes.c_char_p
        return str(name(result).decode())


class Products:
    """Products on one stream, with a workspace of `WORKSPACE` bytes at an address that stays valid. `tf32`: products of
    float32 may round their operands to 10 bits of mantissa."""

    def __init__(self, stream: int, workspace: int, tf32: bool) -> None:
        self._library = _Cublas(loaded_library("libcublas.so"), _FUNCTIONS)
        self._handle = c_void_p()
        self._library.call("cublasCreate_v2", ctypes.byref(self._handle))
        self._library.call("cublasSetStream_v2", self._handle, stream)  # first: it takes the workspace away
        self._library.call("cublasSetWorkspace_v2", self._handle, workspace, WORKSPACE)
        self._library.call("cublasSetMathMode", self._handle, _SUMS_IN_FLOAT32)
        self._computes = {
            DType.FLOAT32: _TF32 if tf32 else _FLOAT32,
            DType.FLOAT64: _FLOAT64,
            DType.BFLOAT16: _FLOAT32,
            DType.FLOAT16: _FLOAT32,
        }

    def multiply(self, gemm: Gemm, left: int, right: int, result: int) -> None:
        """One call; alpha is 1, beta 1 where it accumulates."""
        scalar = ctypes.c_double if gemm.left.dtype is DType.FLOAT64 else ctypes.c_float
        alpha, beta = scalar(1), scalar(int(gemm.accumulates))
        batched = gemm.count > 1
        operands = []
        for operand, address in ((gemm.left, left), (gemm.right, right), (gemm.result, result)):
            matrix = (address, _TYPES[operand.dtype], operand.leading)
            operands.append((*matrix, operand.stride) if batched else matrix)
        self._library.call(
            "cublasGemmStridedBatchedEx_64" if batched else "cublasGemmEx_64",
            self._handle,
            int(gemm.left.transposed),
            int(gemm.right.transposed),
            gemm.m,
            gemm.n,
            gemm.k,
            ctypes.byref(alpha),
            *operands[0],
            *operands[1],
            ctypes.byref(beta),
            *operands[2],
            *((gemm.count,) if batched else ()),
            self._computes[gemm.left.dtype],
            _DEFAULT_ALGORITHM,
        )
