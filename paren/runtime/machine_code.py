"""LLVM IR to machine code, through llvmlite alone: in this process, or in workers, which start in a tenth of a second.

llvmlite holds one lock around every call, so threads compile no faster than one of them; processes do. And what LLVM
needs for it, some 50 MiB, goes away with them.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import llvmlite.binding as llvm

LEAST = 24  # modules that take about as long as the workers' start
SERVE = "import sys; sys.path[:] = sys.argv[1:]; from paren.runtime.machine_code import serve; serve()"
MADE = b"objects of paren\n"  # begins what a worker gives: where Python is embedded, sys.executable is another program

Modules = Mapping[str, tuple[str, bool]]  # key -> text of a module, whether it is to be optimised


class Machine:
    """The host's processor, and what makes code for it."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.processor = llvm.get_host_cpu_name()
        self.has = llvm.get_host_cpu_features()
        self.features = self.has.flatten()
        self._machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=self.processor, features=self.features, opt=3, reloc="pic", codemodel="jitdefault"
        )

    def emit(self, text: str, optimise: bool) -> bytes:
        """The object of a module. Without `optimise`, for text that is written as it should run, only instructions are
        chosen and ordered, in a third of the time."""
        return bytes(self._machine.emit_object(self._module(text, optimise)))

    def assembly(self, text: str, optimise: bool) -> str:
        """The machine code of a module as text."""
        return str(self._machine.emit_assembly(self._module(text, optimise)))

    def _module(self, text: str, optimise: bool) -> llvm.ModuleRef:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
        if not optimise:
            return module
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.loop_interleaving = True
        # Unrolling and joining straight lines doubled the compile time and made no kernel faster (bench/NOTES.md).
        options.slp_vectorization = False
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return module


def emit_aside(modules: Modules, workers: int) -> dict[str, bytes]:
    """The objects of modules by their keys, made by so many worker processes; nothing for fewer than `LEAST`. Those of
    a worker that could not do it are missing: whoever makes them in this process meets the reason."""
    if len(modules) < LEAST or workers < 2 or not sys.executable:
        return {}
    shares: list[dict[str, tuple[str, bool]]] = [{} for _ in range(workers)]
    lengths = [0] * workers
    for key, module in sorted(modules.items(), key=lambda item: -len(item[1][0])):
        shortest = lengths.index(min(lengths))
        shares[shortest][key] = module
        lengths[shortest] += len(module[0])
    started = [_start(share) for share in shares]
    found: dict[str, bytes] = {}
    try:
        for worker in started:
            if worker is not None:
                found |= _objects(worker)
    finally:
        for worker in started:
            if worker is not None:
                worker.kill()
                worker.wait()
    return found


def _start(modules: Modules) -> subprocess.Popen[bytes] | None:
    """A worker that has all it needs; None where the system starts none. It finds the same packages as this process."""
    paths = [str(Path(__file__).parents[2]), *sys.path]
    try:
        worker = subprocess.Popen(
            [sys.executable, "-S", "-c", SERVE, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's interrupt is for the process that waits
        )
    except OSError:
        return None
    assert worker.stdin is not None
    try:
        with worker.stdin as given:
            pickle.dump(dict(modules), given)
    except BrokenPipeError:
        pass  # it has ended, and gives nothing
    return worker


def _objects(worker: subprocess.Popen[bytes]) -> dict[str, bytes]:
    assert worker.stdout is not None
    with worker.stdout as made:
        content = made.read()
    done = worker.wait() == 0 and content.startswith(MADE)
    return pickle.loads(content.removeprefix(MADE)) if done else {}


def serve() -> None:
    """A worker: modules from standard input, all of them before the first is compiled, objects to standard output."""
    modules: Modules = pickle.load(sys.stdin.buffer)
    machine = Machine()
    made = {key: machine.emit(text, optimise) for key, (text, optimise) in modules.items()}
    sys.stdout.buffer.write(MADE + pickle.dumps(made))
    sys.stdout.buffer.flush()
