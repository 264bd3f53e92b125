"""What only compiling needed is given back, and nothing else is lost."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from paren.runtime.memory import read_lines
from paren.runtime.release import LARGE, release_unused, unchanged_parts

LINUX = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")


def part(header: str, anonymous: int = 0, swap: int = 0) -> str:
    return f"{header}\nSize: 4096 kB\nAnonymous: {anonymous:8} kB\nSwap: {swap:8} kB\nVmFlags: rd mr mw me \n"


def test_only_unchanged_parts_of_files_are_found() -> None:
    begin, end = 0x7F0000000000, 0x7F0000000000 + LARGE
    place = f"{begin:x}-{end:x}"
    kept = part(f"{place} r-xp 00365000 fe:00 123 /lib/libllvmlite.so")
    constants = part(f"{place} r--p 00365000 fe:00 123 /lib/with a blank.so")
    others = [
        part(f"{place} rw-p 00000000 fe:00 123 /lib/data.so"),
        part(f"{place} r--s 00000000 fe:00 123 /shared"),
        part(f"{place} r--p 00000000 fe:00 123 /lib/relocated.so", anonymous=4),
        part(f"{place} r--p 00000000 fe:00 123 /lib/relocated-and-swapped.so", swap=4),
        part(f"{place} r--p 00000000 00:00 0"),
        part(f"{begin:x}-{end - 4096:x} r-xp 00000000 fe:00 123 /lib/small.so"),
    ]
    assert list(unchanged_parts("".join([*others, kept, *others, constants]))) == [(begin, LARGE)] * 2


def resident_file_bytes() -> int:
    return sum(1024 * int(line.split()[1]) for line in read_lines(Path("/proc/self/status")) if line[:7] == "RssFile")


@LINUX
def test_the_compiler_works_again_after_it_was_given_back() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "define i32 @three() {\nentry:\n  ret i32 3\n}\n"
    for number in range(3):
        module = llvm.parse_assembly(text, llvm.create_context())
        machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="jitdefault")
        built = bytes(machine.emit_object(module))
        jit = llvm.create_lljit_compiler()
        library = llvm.JITLibraryBuilder().add_object_img(built).add_current_process().export_symbol("three")
        tracker = library.link(jit, f"three.{number}")
        before = resident_file_bytes()
        release_unused()
        assert resident_file_bytes() < before
        assert ctypes.CFUNCTYPE(ctypes.c_int32)(tracker["three"])() == 3
