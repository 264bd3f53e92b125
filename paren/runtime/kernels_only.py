"""What a device answers whose plans have products and kernels only: no step of a library beyond them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paren.plan.epilogue import Epilogue
from paren.plan.plan import Attention
from paren.runtime.task import Cell, Task
from paren.text.errors import InternalError


class KernelsOnly:
    """The steps of libraries for a device whose traits say that it has none, and that holds no memory in reserve."""

    retried: Sequence[int] = ()

    def attend(self, step: Attention, cells: Mapping[int, Cell]) -> Task:
        raise InternalError("runtime", f"{step.nodes[0]} has no step on this device")

    def joins(self, epilogue: Epilogue) -> bool:
        return False

    def join(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[Task, Task]:
        raise _not_joined(epilogue)

    def compare_joined(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[float, float]:
        raise _not_joined(epilogue)


def _not_joined(epilogue: Epilogue) -> InternalError:
    return InternalError("runtime", f"{epilogue.product.nodes[0]} is not joined on this device")
