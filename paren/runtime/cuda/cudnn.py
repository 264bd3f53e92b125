"""cuDNN's own graphs, where its package for Python is installed (nvidia-cudnn-frontend): made once for each form of a
step, run on one stream, with a workspace that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from paren.ir.types import DType
from paren.text.errors import first_line

PACKAGE = "nvidia-cudnn-frontend"
Allocate = Callable[[int], int]  # the address of so many bytes, which stay


@dataclass(frozen=True)
class Ready:
    """A graph that can be run, with its workspace."""

    graph: Any  # of the package, which has no types
    workspace: int


class Cudnn:
    """cuDNN on one stream; `package` is its module."""

    def __init__(self, package: ModuleType, stream: int, allocate: Allocate) -> None:
        self.package = package
        self._handle = package.create_handle()
        package.set_stream(handle=self._handle, stream=stream)
        self._allocate = allocate
        self._workspace, self._workspace_bytes = 0, 0

    def dtype(self, dtype: DType) -> Any:
        """The package's word for a type of floats."""
        types = self.package.data_type
        return {DType.FLOAT32: types.FLOAT, DType.FLOAT16: types.HALF, DType.BFLOAT16: types.BFLOAT16}[dtype]

    def begin(self, name: str, short: DType) -> Any:
        """An empty graph between tensors of a short type, which computes in float32."""
        single = self.dtype(DType.FLOAT32)
        return self.package.pygraph(
            name=name,
            io_data_type=self.dtype(short),
            intermediate_data_type=single,
            compute_data_type=single,
            handle=self._handle,
        )

    def build(self, graph: Any) -> Ready:
        """Makes a graph ready, which must not be inside of a capture. Whatever the package raises says that cuDNN does
        not compute it. Ways whose results differ from run to run are left out."""
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.package.heur_mode.A])
        graph.deselect_numeric_notes([self.package.numerical_note.NONDETERMINISTIC])
        graph.check_support()
        graph.build_plans()
        size = int(graph.get_workspace_size())
        if size > self._workspace_bytes:  # graphs that were captured go on with the one before
            self._workspace, self._workspace_bytes = self._allocate(size), size
        return Ready(graph, self._workspace)

    def run(self, ready: Ready, places: Mapping[int, int]) -> None:
        """Starts a graph whose tensors lie at these addresses, by their numbers."""
        ready.graph.execute(dict(places), ready.workspace, handle=self._handle)


def cudnn_version(backend: int | None) -> str:
    """The versions of the package and of the library that it calls; empty where the package is not installed."""
    try:
        return f"cuDNN {backend} by {PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return ""


def open_cudnn(
    load: Callable[[], ModuleType], stream: int, allocate: Allocate, note: Callable[[str], None]
) -> Cudnn | None:
    """cuDNN by its package, None where that is not installed, or cannot be used: then `note` is told why."""
    try:
        package = load()
    except ImportError:
        return None
    try:
        return Cudnn(package, stream, allocate)
    except Exception as refusal:  # the package has exceptions of its own
        note(f"cuDNN's package cannot be used: {first_line(refusal)}")
        return None
