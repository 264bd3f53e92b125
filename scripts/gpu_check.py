"""Checks on a real card, from a checkout: python -m scripts.gpu_check [PART ...]; without names, all parts.

It says what the machine has, then each check prints a line that begins with PASS or FAIL. Parts run in processes of
their own (`gpu_processes.py`), so that one run tells as much as it can; the comparisons with peers (`bench/compare.py`)
print tables. The failures come once more at the end. `--json FILE` keeps what is known so far at every moment. The exit
code is the number of failures, at most 99.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

from paren.environment import read_environment
from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Node
from paren.ir.op import Array
from paren.ir.types import DType, TensorType, holds_floats
from paren.parallel.visible import visible_devices
from paren.pipeline import Planning, plan_graph
from paren.plan.plan import Matrix, Product
from paren.plan.traits import CUDA
from paren.runtime.array import DeviceArray
from paren.runtime.cuda.builtin import COPY, COPY_THREADS
from paren.runtime.cuda.device import CudaDevice, open_cuda
from paren.runtime.cuda.products import gemm_calls
from paren.runtime.executor import Executable
from paren.runtime.matrices import multiply
from paren.runtime.task import Cell, Task
from scripts import gpu_runs
from scripts.gpu_epilogues import compare_joined
from scripts.gpu_graphs import KERNELS, SPAN, placed, tensor
from scripts.gpu_processes import Check, Checked, make_checks, run_part

F32, F64, BF16, F16, I32 = DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16, DType.INT32
ROOT = Path(__file__).parent.parent
COMPARED = ("W6", "W1", "W2", "W4", "W5")
SECONDS = 480.0  # of everything
COMPARE_SECONDS = 150.0  # of the comparisons of one workload; torch.compile takes most of it
ONE_SECONDS = 90.0  # of any other check
DOCTOR_SECONDS = 60.0
Said = list[str]


def require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


# Verbs of the device ------------------------------------------------------------------------------------------------


def verbs(device: CudaDevice) -> Iterator[Check]:
    """Every verb of the device by itself, then kernels of each kind, graphs, guards and products."""
    yield Check("transfers", partial(_transfers, device))
    yield Check("memory figures", partial(_figures, device))
    yield Check("copy alone", partial(_copies, device, False))
    yield Check("copy of a guarded sequence", partial(_copies, device, True))
    for name, make in KERNELS.items():
        yield Check(f"kernel: {name}", partial(_kernel, device, make))
    yield Check("capture and replay", partial(_replay, device))
    for limit, times, whole in ((100, 1, 1), (100, 7, 7), (4, 7, 3), (1, 7, 0)):
        yield Check(f"guard: flag at {limit}, {times} times", partial(_guard, device, limit, times, whole))
    for dtypes in ((F32,) * 3, (F64,) * 3, (BF16, BF16, F32), (BF16,) * 3, (F16, F16, F32), (F16,) * 3):
        yield Check(f"products {' '.join(dtype.value for dtype in dtypes)}", partial(_products, device, dtypes))
    yield Check("a product inside a graph, twice the same bits", partial(_product_bits, device))
    for case in ((True, 12, 1, 64), (False, 3, 1, 32), (True, 2, 3, 128), (False, 1, 4, 8)):
        causal, groups, repeat, width = case
        for dtype in (BF16, F16):
            name = f"attention in {dtype}, causal {causal}, {groups} x {repeat} heads of {width}"
            yield Check(name, partial(_attention, device, case, dtype))
    for rows, precision in ((1000, "float16"), (32768, "bfloat16")):
        name = f"products with their kernels in {precision}, {rows} rows"
        yield Check(name, partial(compare_joined, device, rows, precision))


def _figures(device: CudaDevice, said: Said) -> None:
    device.allocate(1 << 20)
    free = device.available()
    said.append(f"{free.bytes >> 20} MiB of {free.total >> 20} MiB, most used {device.used_bytes() >> 20} MiB")
    require(0 < free.bytes < free.total and device.used_bytes() > 0, str(free))


def _transfers(device: CudaDevice, said: Said) -> None:
    zeros = np.asarray(device.allocate(1000))
    require(not zeros.any(), "fresh memory is not 0")
    values = np.random.default_rng(0).normal(size=1 << 24).astype(np.float32)
    array = placed(device, values)
    begin = time.perf_counter()
    array[...] = values
    middle = time.perf_counter()
    require(bool((np.asarray(array) == values).all()), "what was uploaded is not what is downloaded")
    end = time.perf_counter()
    gib = values.nbytes / 2**30
    said.append(f"up {gib / (middle - begin):.1f} GiB/s, down {gib / (end - middle):.1f} GiB/s")
    array[5:9] = 0
    array[100:200] = 0.5
    part = np.asarray(array[3:12])
    require(bool((part[2:6] == 0).all()) and part[1] == values[4] and part[6] == values[9], "a fill misses its range")
    require(bool((np.asarray(array[100:200]) == 0.5).all()), "a fill with a value")
    small = placed(device, np.array(3, np.int32))
    begin = time.perf_counter()
    for _ in range(100):
        small[...] = 4
        require(int(small) == 4, "a scalar")
    said.append(f"{(time.perf_counter() - begin) * 5000:.0f} us for each small transfer")


def _copies(device: CudaDevice, guarded: bool, said: Said) -> None:
    values = np.random.default_rng(1).integers(0, 255, 1 << 20).astype(np.uint8)
    source = placed(device, values)
    for size, shift in ((1 << 20, 0), (1003, 0), (1003, 3), (7, 1), (16, 16)):
        target = device.allocate(1 << 20)
        begin, end = Cell(source[shift:]), Cell(target[shift + (shift == 3) :])
        if guarded:
            function = device._kernels.builtin[COPY]
            word = placed(device, np.array(0, np.int32))
            arguments = (word.address, 0, size, begin.array.address, end.array.address)  # type: ignore[union-attr]
            device.driver.launch(function, 9, COPY_THREADS, arguments)
        else:
            device.copy(begin, end, size).run()
        got = np.asarray(end.array)
        require(bool((got[:size] == values[shift : shift + size]).all()), f"{size} bytes from {shift}")
        require(not got[size:].any(), f"{size} bytes from {shift}: more was written")


# Kernels ------------------------------------------------------------------------------------------------------------


def _values(nodes: dict[str, TensorType]) -> dict[str, Array]:
    generator = np.random.default_rng(7)
    values: dict[str, Array] = {}
    for name, type_ in nodes.items():
        if type_.dtype.is_float:
            values[name] = generator.normal(size=type_.shape).astype(type_.dtype.numpy)
        else:
            values[name] = generator.integers(0, 5000, type_.shape).astype(type_.dtype.numpy)
    return values


def _kernel(device: CudaDevice, make: Callable[[Builder], dict[str, Node]], said: Said) -> None:
    """A graph on the card, call by call and as a graph, against its definition."""
    builder = Builder("check")
    graph = builder.graph(make(builder))
    plan = plan_graph(graph, (), Planning(traits=CUDA))
    executable = Executable(device, plan)
    values = _values({buffer.name: buffer.type for buffer in plan.buffers if buffer.name})
    wanted = evaluate(graph, values)
    state = {name: placed(device, value) for name, value in values.items()}
    arena = device.allocate(max(64, plan.arena_bytes))
    for turn in ("first", "again", "by a graph"):
        arena[...] = 0xFF
        outputs = executable.run(state, state, arena)
        for name, right in wanted.items():
            got = np.asarray(outputs[name])
            if holds_floats(right):
                got, right = got.astype(np.float64), right.astype(np.float64)
                scale = max(1.0, float(np.abs(right).max()))
                worst = float(np.abs(got - right).max())
                require(bool(worst <= 2e-5 * scale), f"{name}, {turn}: off by {worst:.3g} of {scale:.3g}")
            else:
                require(bool((got == right).all()), f"{name}, {turn}: {int((got != right).sum())} differ")
    said.append(f"{len(plan.steps)} launches")


# Sequences ----------------------------------------------------------------------------------------------------------


def _counter(device: CudaDevice, limit: int) -> tuple[list[Task], DeviceArray, DeviceArray]:
    """Tasks that add 1 to `count`, and set `flag` where it is at `limit`."""
    builder = Builder("count")
    count = tensor(builder, "count", 70, dtype=I32)
    more = builder.apply("add", count, 1, span=SPAN)
    part = builder.emit("slice", (more,), {"start": (0,), "stop": (1,), "step": (1,)}, SPAN)
    first = builder.emit("reshape", (part,), {"shape": ()}, SPAN)
    flag = builder.cast(builder.apply("ge", first, limit, span=SPAN), I32)
    plan = plan_graph(builder.graph({"count": more, "flag": flag}), ("flag",), Planning(traits=CUDA))
    executable = Executable(device, plan)
    state = {"count": placed(device, np.zeros(70, np.int32)), "flag": placed(device, np.array(0, np.int32))}
    executable.bind(state, {}, device.allocate(max(64, plan.arena_bytes)))
    return list(executable.tasks), state["count"], state["flag"]


def _guard(device: CudaDevice, limit: int, times: int, whole: int, said: Said) -> None:
    tasks, count, flag = _counter(device, limit)
    later, after, _ = _counter(device, 1000)
    copied = placed(device, np.zeros(70, np.int32))
    run = device.sequence([*tasks, device.stop_if(Cell(flag)), *later, device.copy(Cell(after), Cell(copied), 280)])
    for turn in range(3):
        count[...] = after[...] = copied[...] = 0
        done = run(times)
        device.synchronise()
        found = [int(np.asarray(array)[-1]) for array in (count, after, copied)]
        require([done, *found] == [whole, min(times, limit), whole, whole], f"turn {turn}: {done}, {found}")


def _replay(device: CudaDevice, said: Said) -> None:
    tasks, count, _ = _counter(device, 1 << 30)
    run = device.sequence(tasks * 200)
    begin = time.perf_counter()
    run()
    device.synchronise()
    middle = time.perf_counter()
    run()
    device.synchronise()
    captured = time.perf_counter()
    run(10)
    device.synchronise()
    end = time.perf_counter()
    require(bool((np.asarray(count) == 2400).all()), f"counted to {np.asarray(count)[:3]}, not to 2400")
    launches = 200 * len(tasks)
    said.append(
        f"{launches} launches: {(middle - begin) / launches * 1e6:.1f} us each call by call, "
        f"{(captured - middle) * 1e3:.0f} ms to capture, {(end - captured) / launches * 1e5:.2f} us each in a graph"
    )


# Products -----------------------------------------------------------------------------------------------------------


def _plain(m: int, n: int, k: int, turned_a: bool, turned_b: bool, batch: tuple[int, ...], apart: int) -> Product:
    """Matrices `apart` elements wider than they need, each batch loop outside of the next."""

    def matrix(buffer: int, rows: int, columns: int, turned: bool) -> Matrix:
        stored = (columns, rows) if turned else (rows, columns)
        leading = stored[1] + apart
        step, strides = stored[0] * leading + apart, []
        for size in reversed(batch):
            strides.insert(0, step)
            step = step * size + apart
        return Matrix(buffer, apart, leading, turned, tuple(strides))

    operands = (matrix(0, m, k, turned_a), matrix(1, k, n, turned_b), matrix(2, m, n, False))
    return Product(*operands, m, n, k, batch, False, (), ())


def _room(matrix: Matrix, rows: int, columns: int, batch: tuple[int, ...]) -> int:
    inner = (1, matrix.leading) if matrix.transposed else (matrix.leading, 1)
    strides = (*matrix.batch_strides, *inner)
    return matrix.offset + sum((size - 1) * s for size, s in zip((*batch, rows, columns), strides, strict=True)) + 3


def _products(device: CudaDevice, dtypes: tuple[DType, DType, DType], said: Said) -> None:
    worst, calls, failures = 0.0, 0, []
    cases = [
        (shape, turned_a, turned_b, batch, apart)
        for shape in ((64, 48, 32), (7, 5, 3), (129, 1, 65), (1, 130, 33), (130, 260, 68))
        for turned_a in (False, True)
        for turned_b in (False, True)
        for batch, apart in (((), 0), ((), 8), ((), 1), ((5,), 0), ((3, 4), 0), ((3, 4), 8))
    ]
    for shape, turned_a, turned_b, batch, apart in cases:
        for accumulate in (False, True) if not dtypes[2].is_short else (False,):
            product = replace(_plain(*shape, turned_a, turned_b, batch, apart), accumulate=accumulate)
            m, n, k = shape
            generator = np.random.default_rng(3)
            operands = ((product.a, m, k), (product.b, k, n), (product.c, m, n))
            a, b, c = (
                generator.normal(size=_room(matrix, rows, columns, batch)).astype(dtype.numpy)
                for (matrix, rows, columns), dtype in zip(operands, dtypes, strict=True)
            )
            cells = [Cell(placed(device, array)) for array in (a, b, c)]
            calls += len(gemm_calls(product, dtypes))
            try:
                device.library(product, dtypes, *cells).run()
                got = np.asarray(cells[2].array).astype(np.float64)
            except Exception as error:  # which cases fail tells more than the first of them
                failures.append(f"{shape} {turned_a} {turned_b} {batch} {apart} {accumulate}: {error}")
                continue
            multiply(replace(product, rounded=dtypes[0].is_short), a, b, c)
            difference = float(np.abs(got - c.astype(np.float64)).max()) / max(1.0, k**0.5)
            worst = max(worst, difference)
            if not difference <= {F32: 1e-5, F64: 1e-13, BF16: 4e-2, F16: 5e-3}[dtypes[2]]:
                failures.append(f"{shape} {turned_a} {turned_b} {batch} {apart} {accumulate}: off by {difference:.3g}")
    require(not failures, f"{len(failures)} of {len(cases)} cases fail: {'; '.join(failures[:3])}")
    said.append(f"{calls} calls, off by {worst:.2g} of the root of k at most")


def _product_bits(device: CudaDevice, said: Said) -> None:
    product = _plain(512, 768, 2048, False, True, (), 0)
    generator = np.random.default_rng(0)
    cells = [Cell(placed(device, generator.normal(size=1 << 21).astype(BF16.numpy))) for _ in range(2)]
    results = [Cell(placed(device, np.zeros(512 * 768, np.float32))) for _ in range(2)]
    run = device.sequence([device.library(product, (BF16, BF16, F32), *cells, result) for result in results])
    bits = []
    for _ in range(3):
        run()
        bits += [np.asarray(result.array).tobytes() for result in results]
    require(len(set(bits)) == 1, "the bits differ from run to run")


# Attention ----------------------------------------------------------------------------------------------------------


def _attention(device: CudaDevice, case: tuple[bool, int, int, int], dtype: DType, said: Said) -> None:
    """The result and all gradients against their definition, and the same bits from call to call and by a graph."""
    causal, groups, repeat, width = case
    builder = Builder("attend")
    q, g = (tensor(builder, name, 3, 130, groups, repeat, width, dtype=dtype) for name in "qg")
    k, v = (tensor(builder, name, 3, 130, groups, width, dtype=dtype) for name in "kv")
    attrs = {"causal": causal, "scale": width**-0.5}
    result = builder.emit("attention", (q, k, v), attrs, SPAN)
    kept = builder.emit("attention_statistics", (q, k), attrs, SPAN)
    outputs = {"result": result, "statistics": kept}
    for of in range(3):
        gradient = builder.emit("attention_gradient", (q, k, v, result, kept, g), {**attrs, "of": of}, SPAN)
        outputs[f"gradient of {'qkv'[of]}"] = gradient
    graph = builder.graph(outputs)
    plan = plan_graph(graph, (), Planning(traits=CUDA))
    values = _values({buffer.name: buffer.type for buffer in plan.buffers if buffer.name})
    wanted = evaluate(graph, values)
    state = {name: placed(device, value) for name, value in values.items()}
    executable, arena = Executable(device, plan), device.allocate(max(64, plan.arena_bytes))
    bits: dict[str, set[bytes]] = {name: set() for name in wanted}
    for _ in range(4):
        arena[...] = 0xFF
        found = {name: np.asarray(array) for name, array in executable.run(state, state, arena).items()}
        for name, array in found.items():
            bits[name].add(array.tobytes())
    apart = {
        name: float(np.linalg.norm(found[name].astype(np.float64) - right) / np.linalg.norm(right))
        for name, right in ((name, each.astype(np.float64)) for name, each in wanted.items())
    }
    said.append(", ".join(f"{name} {value:.1e}" for name, value in apart.items()))
    said += device.driver.notes
    require(all(value < 1e-2 for value in apart.values()), f"far from the definition: {apart}")
    require(all(len(each) == 1 for each in bits.values()), f"bits differ: { {n: len(b) for n, b in bits.items()} }")


# All ----------------------------------------------------------------------------------------------------------------


def runs(device: CudaDevice) -> Iterator[Check]:
    """Whole runs, which open the card again."""
    for name, check in gpu_runs.checks().items():
        yield Check(name, lambda said, check=check: said.append(check()))


def ranks(device: CudaDevice) -> Iterator[Check]:
    """Where there are two cards or more: runs on two of them."""
    if visible_devices("cuda").count < 2:
        print("     one card: nothing goes between cards", flush=True)
        return
    for case in gpu_runs.CASES[:2]:
        name = f"{case.name}, on two cards: by NCCL as through the hosts"
        yield Check(name, lambda said, case=case: said.extend(gpu_runs.compare_ways(case)))


def speed(_: CudaDevice | None) -> Iterator[Check]:
    """The workloads against their peers, one round each, most wanted first; the figures are in `bench/results/`. Where
    the time of the first of them goes."""
    for workload in COMPARED:
        given = (workload, "--device", "cuda", "--rounds", "1", "--again", "0", "--patience", "2")
        yield Check(f"comparisons of {workload}", partial(_run, ("bench/compare.py", *given)))
        if workload == COMPARED[0]:
            yield Check("where the time of a step goes", partial(_run, ("-m", "scripts.gpu_profile", "--top", "40")))


def _run(arguments: Sequence[str], said: Said) -> None:
    """What it prints comes as it is printed: little is lost if there is not enough time."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False)
    require(done.returncode == 0, f"{' '.join(arguments[:2])} ended with {done.returncode}")


PARTS: dict[str, Callable[[CudaDevice], Iterator[Check]]] = {
    "verbs": verbs,
    "runs": runs,
    "ranks": ranks,
    "speed": speed,
}
LIMITS = {"verbs": 120.0, "runs": 150.0, "ranks": 60.0, "speed": SECONDS}  # of each part, in seconds


def make_part(given: argparse.Namespace) -> int:
    """In a process of checks: those of one part."""
    (part,) = given.parts
    cache = given.cache if given.cache is not None else read_environment().cache
    compares = part == "speed"  # it leaves the card to others
    device = None if compares else open_cuda(0, cache)
    print("" if device is None else f"     {device.target}", flush=True)

    def ask() -> None:
        if device is not None:
            require(int(placed(device, np.array(7, np.int32))) == 7, "what was uploaded is not what is downloaded")

    limit = COMPARE_SECONDS if compares else ONE_SECONDS
    code = make_checks(PARTS[part](device), given.record, range(given.skip, given.skip + given.most), limit, ask)
    if device is not None:
        print(f"     {device.compiled} kernels compiled, {device.reused} from the cache", flush=True)
    return code


def describe_machine() -> None:
    """What is there: the versions that a fault may depend on."""
    for command in (["nvidia-smi"], [sys.executable, "-m", "paren", "doctor"]):
        try:
            done = subprocess.run(
                command, cwd=ROOT, timeout=DOCTOR_SECONDS, capture_output=True, text=True, check=False
            )
            print(done.stdout + done.stderr, flush=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"     {' '.join(command)}: {error}", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to check")
    parser.add_argument("--cache", type=Path, default=None, help="folder of compiled kernels")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="where to keep what was found")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long all of it may take")
    parser.add_argument("--record", type=Path, default=None, help=argparse.SUPPRESS)  # of a process of checks
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=1 << 30, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    if given.record is not None:
        return make_part(given)
    begin = time.monotonic()
    end = begin + given.seconds
    describe_machine()
    found: dict[str, list[Checked]] = {}
    for part in given.parts or PARTS:
        print(f"{part}, after {time.monotonic() - begin:.0f} s", flush=True)
        command = [sys.executable, "-X", "faulthandler", "-m", "scripts.gpu_check", part]
        command += ["--cache", str(given.cache)] if given.cache is not None else []
        with tempfile.TemporaryDirectory() as folder:
            found[part] = run_part(
                command, Path(folder, part), min(end, time.monotonic() + LIMITS[part]), part != "speed"
            )
        if given.json is not None:
            record = {name: [asdict(each) for each in checked] for name, checked in found.items()}
            given.json.write_text(json.dumps(record, indent=1) + "\n")
    failed = [each for checked in found.values() for each in checked if each.failure]
    print(
        f"{sum(map(len, found.values()))} checks, {len(failed)} failures, {time.monotonic() - begin:.0f} s", flush=True
    )
    print(*(f"FAIL {each.name}: {each.failure.splitlines()[0]}" for each in failed), sep="\n", flush=True)
    return min(len(failed), 99)


if __name__ == "__main__":
    sys.exit(main())
