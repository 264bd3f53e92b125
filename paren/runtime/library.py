"""Products of matrices by the BLAS that torch carries: its `sgemm_` and `dgemm_`, without importing torch.

Matrices are row-major. BLAS counts columns first, so C = A B is asked for as C' = B' A', which needs no copy. Loading
the library takes about 0.25 s, importing torch 1.2 s. Where the symbols are missing, torch multiplies.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paren.environment import bound_busy_waiting
from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.text.errors import InternalError

INT32_LIMIT = 2**31
SMALL = 2 * 128**3  # operations of one matrix below which threads share out matrices instead of one product


@dataclass(frozen=True)
class Blas:
    """Addresses of the library's functions; `limit` sets the threads of products for the calling thread."""

    sgemm: int
    dgemm: int
    limit: int | None


@dataclass(frozen=True)
class OpenMP:
    """Addresses of libgomp's functions: start a team, number of this thread, number of threads."""

    parallel: int
    thread: int
    threads: int


def _torch_folder() -> Path | None:
    """The folder of torch's libraries, found without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent / "lib" if spec is not None and spec.origin is not None else None


def _address(library: ctypes.CDLL, name: str) -> int | None:
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@cache
def find_blas() -> Blas | None:
    """The BLAS in torch's CPU library, or None where it exports none."""
    folder = _torch_folder()
    path = folder / "libtorch_cpu.so" if folder is not None else None
    if path is None or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    sgemm, dgemm = _address(library, "sgemm_"), _address(library, "dgemm_")
    if sgemm is None or dgemm is None:
        return None
    return Blas(sgemm, dgemm, _address(library, "MKL_Set_Num_Threads_Local"))


@cache
def find_openmp() -> OpenMP | None:
    """libgomp as torch carries it, so that kernels and products share one pool of threads; else the system's."""
    bound_busy_waiting()
    folder = _torch_folder()
    candidates = [str(path) for path in sorted(folder.glob("libgomp*"))] if folder is not None else []
    system = ctypes.util.find_library("gomp")
    for candidate in [*candidates, *([system] if system else [])]:
        try:
            library = ctypes.CDLL(candidate)
        except OSError:
            continue
        found = [_address(library, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")]
        if None not in found:
            return OpenMP(*(address for address in found if address is not None))
    return None


def batch_offsets(product: Product, item: int) -> npt.NDArray[np.int64]:
    """Byte offsets of A, B and C for each matrix of the batch, in the order of its loops: int64[count 3]."""
    count, loops = prod(product.batch), len(product.batch)
    indices = np.indices(product.batch, dtype=np.int64).reshape(loops, count).T
    operands = (product.a, product.b, product.c)
    columns = [matrix.offset + indices @ np.array(matrix.batch_strides, np.int64).reshape(loops) for matrix in operands]
    return np.ascontiguousarray(np.stack(columns, axis=1) * item)


def check(product: Product) -> None:
    """Sizes that 32-bit BLAS cannot count are refused by the planner; here that is a fault of ours."""
    sizes = (product.m, product.n, product.k, product.a.leading, product.b.leading, product.c.leading)
    if max(sizes) >= INT32_LIMIT:
        raise InternalError("runtime", f"a product has a size of {max(sizes)}, 32 bits count below {INT32_LIMIT}")
    if product.c.transposed:
        raise InternalError("runtime", "the result of a product is transposed")


def view(matrix: Matrix, rows: int, columns: int, array: Array, batch: Sequence[int]) -> Array:
    """An operand after its transposition as an array of shape batch + (rows, columns)."""
    item = array.itemsize
    inner = (item, matrix.leading * item) if matrix.transposed else (matrix.leading * item, item)
    strides = (*(stride * item for stride in matrix.batch_strides), *inner)
    flat = array.reshape(-1)[matrix.offset :]
    return np.lib.stride_tricks.as_strided(flat, (*batch, rows, columns), strides)


def operands(product: Product, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """The three operands as arrays with the batch loops in front."""
    m, n, k, batch = product.m, product.n, product.k, product.batch
    return view(product.a, m, k, a, batch), view(product.b, k, n, b, batch), view(product.c, m, n, c, batch)


def multiply_with_numpy(product: Product, a: Array, b: Array, c: Array) -> None:
    """The product by its definition: operands rounded if it says so, sums in their own type (float32 for bfloat16)."""
    left, right, result = operands(product, a, b, c)
    if product.rounded:
        left, right = rounded(left), rounded(right)
    with np.errstate(all="ignore"):
        value = np.matmul(left, right)
        np.copyto(result, np.add(result, value) if product.accumulate else value.astype(result.dtype, copy=False))


def rounded(array: Array) -> Array:
    """The values rounded to bfloat16, in float32."""
    with np.errstate(all="ignore"):
        return array.astype(DType.BFLOAT16.numpy, copy=False).astype(np.float32)


def multiply_with_torch(product: Product, a: Array, b: Array, c: Array) -> None:
    """The product through `torch.mm`, matrix by matrix."""
    import torch  # only where BLAS has no symbols of its own: importing torch takes over a second

    left, right, result = operands(product, a, b, c)
    for index in itertools.product(*map(range, product.batch)):
        target = torch.from_numpy(result[index])
        value = torch.mm(torch.from_numpy(left[index]), torch.from_numpy(right[index]))
        if product.accumulate:
            target.add_(value)
        else:
            target.copy_(value)
