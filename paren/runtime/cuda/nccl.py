"""NCCL by ctypes: bytes from card to card. Names and constants are those of nccl.h."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, c_int, c_size_t, c_void_p
from pathlib import Path

from paren.runtime.cuda.native import Library, loaded_library
from paren.runtime.link import LinkLost
from paren.text.errors import InternalError

NAME = "libnccl.so.2"
_BYTES = 1  # ncclUint8
_UNDER_WAY = 7  # ncclInProgress


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is handed over by value."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


_MOVE = (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)  # address, count, type, peer, communicator, stream
_FUNCTIONS = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, UniqueId, c_int),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclCommDestroy": (c_void_p,),
    "ncclCommAbort": (c_void_p,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": _MOVE,
    "ncclRecv": _MOVE,
}


def find_nccl() -> str:
    """The library that torch has loaded, so that a process holds one; else that of the package nvidia-nccl, else the
    system's."""
    with suppress(InternalError):
        return loaded_library("libnccl.so")
    with suppress(ModuleNotFoundError):
        found = importlib.util.find_spec("nvidia.nccl")
        for folder in found.submodule_search_locations or () if found is not None else ():
            if (path := Path(folder, "lib", NAME)).exists():
                return str(path)
    return NAME


class Nccl(Library):
    """The library. Its failures are `LinkLost`."""

    def __init__(self) -> None:
        try:
            super().__init__(find_nccl(), _FUNCTIONS)
        except InternalError as error:
            raise LinkLost(f"NCCL cannot be loaded: {error.__cause__}") from error
        for name in ("ncclGetErrorString", "ncclGetLastError"):
            getattr(self._library, name).restype = ctypes.c_char_p

    @property
    def version(self) -> str:
        """As `NCCL 2.28.9`."""
        number = c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return f"NCCL {number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def call(self, name: str, *arguments: object) -> None:
        result = self._functions[name](*arguments)
        if result:
            raise LinkLost(f"{name}: {self.describe(result)}")

    def describe(self, result: int) -> str:
        words = (self._library.ncclGetErrorString(result), self._library.ncclGetLastError(None))
        return ": ".join(each.decode(errors="replace").strip() for each in words if each)


def new_identity(library: Nccl) -> bytes:
    """What the ranks of one communicator all begin with."""
    made = UniqueId()
    library.call("ncclGetUniqueId", ctypes.byref(made))
    return bytes(made)


class Communicator:
    """This process among `count`, by an identity that one of them made; made when all have come."""

    def __init__(self, library: Nccl, identity: bytes, count: int, rank: int) -> None:
        self._library = library
        self._handle = c_void_p()
        given = UniqueId.from_buffer_copy(identity)
        library.call("ncclCommInitRank", ctypes.byref(self._handle), count, given, rank)

    def swap(self, sent: Sequence[tuple[int, int, int]], received: Sequence[tuple[int, int, int]], stream: int) -> None:
        """Moves bytes in one group: (rank, address, size) each, in the order of a stream."""
        self._library.call("ncclGroupStart")
        try:
            for name, moves in (("ncclSend", sent), ("ncclRecv", received)):
                for rank, address, size in moves:
                    self._library.call(name, address, size, _BYTES, rank, self._handle, stream)
        finally:
            self._library.call("ncclGroupEnd")

    def check(self) -> None:
        """Raises `LinkLost` for what failed since it was started."""
        result = c_int()
        self._library.call("ncclCommGetAsyncError", self._handle, ctypes.byref(result))
        if result.value not in (0, _UNDER_WAY):
            raise LinkLost(self._library.describe(result.value))

    def destroy(self) -> None:
        """Leaves, when nothing is under way."""
        self._library.call("ncclCommDestroy", self._handle)

    def abort(self) -> None:
        """Leaves at once; what is under way ends, on any thread."""
        self._library.call("ncclCommAbort", self._handle)
