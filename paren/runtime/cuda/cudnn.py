"""cuDNN's own graphs, where its package for Python is installed (nvidia-cudnn-frontend): made once for each form of a
step, run on one stream, with a workspace that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from paren.ir.types import DType
from paren.own_files import own_digest
from paren.runtime.cache import GraphCache
from paren.text.errors import first_line

PACKAGE, MODULE = "nvidia-cudnn-frontend", "cudnn"
# What decides about a graph besides its form: these files.
DRAWING = (
    "plan/epilogue.py",
    "runtime/cuda/attention_graphs.py",
    "runtime/cuda/cudnn.py",
    "runtime/cuda/epilogue_graphs.py",
)
Allocate = Callable[[int], int]  # the address of so many bytes, which stay


@dataclass(frozen=True)
class Ready:
    """A graph that can be run, with its workspace."""

    graph: Any  # of the package, which has no types
    workspace: int


class Cudnn:
    """cuDNN on one stream; `package` is its module. What it has compiled is kept in `cache` for a `target`: the card,
    with the versions of the libraries."""

    def __init__(
        self,
        package: ModuleType,
        stream: int,
        allocate: Allocate,
        cache: GraphCache,
        target: str,
    ) -> None:
        self.package = package
        self._handle = package.create_handle()
        package.set_stream(handle=self._handle, stream=stream)
        self._allocate = allocate
        self._cache = cache
        self._target = target
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

    def prepare(self, form: str, draw: Callable[[], Any]) -> Ready:
        """The graph that `draw` gives, which is a function of `form` and of paren's own files, ready to run. Must not
        be inside of a capture. Whatever the package raises says that cuDNN does not compute it."""
        own = own_digest(*DRAWING)
        key = None if own is None else self._cache.key(form, self._target, own)
        graph = None if key is None else self._restored(key)
        if graph is None:
            graph = draw()
            self._build(graph)
            if key is not None:
                self._keep(key, graph)
        size = int(graph.get_workspace_size())
        if size > self._workspace_bytes:  # graphs that were captured go on with the one before
            self._workspace, self._workspace_bytes = self._allocate(size), size
        return Ready(graph, self._workspace)

    def run(self, ready: Ready, places: Mapping[int, int]) -> None:
        """Starts a graph whose tensors lie at these addresses, by their numbers."""
        ready.graph.execute(dict(places), ready.workspace, handle=self._handle)

    def _build(self, graph: Any) -> None:
        """Compiles a graph. Ways whose results differ from run to run are left out."""
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.package.heur_mode.A])
        graph.deselect_numeric_notes([self.package.numerical_note.NONDETERMINISTIC])
        graph.check_support()
        graph.build_plans()

    def _restored(self, key: str) -> Any:
        """The graph that was kept under a key; None if there is none that can be used."""
        kept = self._cache.read(key)
        if kept is None:
            return None
        graph = self.package.pygraph(handle=self._handle)
        try:
            graph.deserialize(self._handle, list(kept))
        except Exception:  # the package has exceptions of its own; what it no longer reads is built again
            return None
        return graph

    def _keep(self, key: str, graph: Any) -> None:
        try:
            kept = bytes(graph.serialize())
        except Exception:  # the same: what it does not write is built again at the next start
            return
        self._cache.write(key, kept)


def cudnn_version(backend: int | None) -> str:
    """The versions of the package and of the library that it calls; empty where the package is not installed."""
    try:
        return f"cuDNN {backend} by {PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return ""


def open_cudnn(load: Callable[[], Cudnn], note: Callable[[str], None]) -> Cudnn | None:
    """cuDNN by its package, None where that is not installed, or cannot be used: then `note` is told why."""
    try:
        return load()
    except Exception as refusal:  # the package has exceptions of its own
        if isinstance(refusal, ModuleNotFoundError) and refusal.name == MODULE:
            return None
        note(f"cuDNN's package cannot be used: {first_line(refusal)}")
        return None
