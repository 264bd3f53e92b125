"""Runs a plan: buffers bound to addresses once, then one call for all steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from paren.ir.graph import Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType, holds_floats
from paren.plan.epilogue import epilogues_of
from paren.plan.kernel import Kernel
from paren.plan.memory import launches_of
from paren.plan.plan import Attention, Buffer, Copy, Launch, Loop, Place, Plan, Product, Step
from paren.runtime.array import AnyArray, AnyBytes, DeviceArray
from paren.runtime.device import Device
from paren.runtime.memory import ALIGNMENT
from paren.runtime.origin import originates, originating_node
from paren.runtime.task import Cell, Task, address_of
from paren.text.errors import InternalError
from paren.text.source import Span


@dataclass(frozen=True)
class NonFinite:
    """A step that stored a value which is not finite. `operation` and `span`: the node that made it, as far as the
    search could tell, and its place in the program."""

    step: int
    nodes: tuple[str, ...]
    spans: tuple[Span, ...]
    buffer: str
    operation: str
    span: Span


class Observer(Protocol):
    """Asked before each call whether its steps are to be run one by one, and told when each began and ended."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def wants(self) -> bool: ...

    def regions(self, times: list[tuple[float, float]]) -> None: ...


def load_plans(device: Device, plans: Iterable[Plan]) -> None:
    """Makes everything that plans run ready on a device. Together that takes less time than one by one."""
    kernels: list[Kernel] = []
    by_rows: list[Kernel] = []
    products: list[tuple[Product, Sequence[DType]]] = []
    for plan in plans:
        kernels += [step.kernel for step in plan.steps if isinstance(step, Launch)]
        by_rows += [launch.kernel for step in plan.steps if isinstance(step, Loop) for launch in launches_of([step])]
        products += plan.products()
    device.load(kernels, by_rows, products)


class Executable:
    """A plan on a device.

    `run` binds the arrays it is given; those that are the same objects as at the call before stay bound, so state and
    arena cost nothing after the first run. Inputs are read where they lie, which does not show in bits. `joined`: forms
    of epilogues that the device is to run as one step with their products.
    """

    def __init__(self, device: Device, plan: Plan, joined: Collection[str] = ()) -> None:
        self.device = device
        self.plan = plan
        load_plans(device, [plan])
        self._cells = {buffer.id: Cell(lasting=buffer.place is not Place.ARENA) for buffer in plan.buffers}
        self._buffers = {buffer.id: buffer for buffer in plan.buffers}
        self._named = {
            place: [buffer for buffer in plan.buffers if buffer.place is place] for place in (Place.STATE, Place.INPUT)
        }
        self._bound: dict[int, AnyArray] = {}
        self._arena: AnyBytes | None = None
        self._alone = [self._task(step) for step in plan.steps]
        self._tasks = list(self._alone)
        self._joined = {n: each for n, each in epilogues_of(plan).items() if each.form in joined}
        for number, epilogue in self._joined.items():
            self._tasks[number : number + 2] = device.join(epilogue, self._cells)
        self._run = device.sequence(self._tasks)
        self.observer: Observer | None = None

    def run(
        self, state: Mapping[str, AnyArray], inputs: Mapping[str, AnyArray], arena: AnyBytes
    ) -> dict[str, AnyArray]:
        """Runs all steps. Gives the outputs as views of the arena or the state, valid until the next run.

        `state` and `inputs` map names to C-contiguous arrays of the buffers' types (more names than needed are fine);
        `arena` is uint8[plan.arena_bytes] or longer, on 64 bytes. Raises `InternalError` if an array does not fit.
        """
        self.bind(state, inputs, arena)
        if self.observer is not None and self.observer.wants():
            self.run_alone(self.observer)
        else:
            self._run()
            self.device.synchronise()
        return {name: self._cells[buffer].array for name, buffer in self.plan.outputs.items()}

    def run_alone(self, observer: Observer) -> None:
        """Runs all steps, as they are bound, each alone: the same bits, and the time of each for the observer."""
        calls = [self.device.sequence([task]) for task in self._tasks]
        clock, times = observer.clock, []
        for call in calls:
            begin = clock()
            seconds = self.device.timed(call)
            times.append((begin, clock() if seconds is None else begin + seconds))
        observer.regions(times)

    def first_nonfinite(
        self, state: Mapping[str, AnyArray], inputs: Mapping[str, AnyArray], arena: AnyBytes, graph: Graph | None = None
    ) -> NonFinite | None:
        """Runs step by step, changing the state as `run` does, to the first step that originates a value that is not
        finite; if none does (a parameter or an input was not finite), the first step that stored one.

        With the `graph` that was planned, the node within the step is found; it needs a copy of what a step overwrites,
        and where arrays do not lie in host memory, of all that the step reads and writes.
        """
        self.bind(state, inputs, arena)
        first: NonFinite | None = None
        finite: set[int] = set()
        for number, tasks in self._searched():
            if number + 1 in finite:  # a product whose launch came first
                continue
            step = self.plan.steps[number]
            read = {id_: np.array(self._cells[id_].array) for id_ in self._overwritten(step)}
            for task in tasks:
                self.device.sequence([task])()
            self.device.synchronise()
            written = {self._buffers[id_].name: np.asarray(self._cells[id_].array) for id_ in step.writes}
            bad = [name for name, array in written.items() if holds_floats(array) and not np.isfinite(array).all()]
            if not bad:
                finite.add(number)
                continue
            read |= {id_: np.asarray(self._cells[id_].array) for id_ in step.reads if id_ not in read}
            stored = {self._buffers[id_].name: array for id_, array in read.items()}
            found = NonFinite(number, step.nodes, step.spans, bad[0], step.nodes[-1].rpartition(" ")[2], step.spans[-1])
            node = _origin(graph, step, stored)
            if node is not None:
                return replace(found, operation=node.op.name, span=node.span)
            if originates(list(written.values()), list(stored.values())):
                return found
            first = first or found
        return first

    def _searched(self) -> Iterator[tuple[int, tuple[Task, ...]]]:
        """The steps in the order in which a search goes through them, with what it runs to have their results. A launch
        comes before the product that is one step with it, if nobody else wants that product's result: the step neither
        leaves nor rounds it, so it is looked at only where the launch's are not finite."""
        for number, alone in enumerate(self._alone):
            one = self._tasks[number]
            if number not in self._joined:
                if number - 1 not in self._joined:
                    yield number, (alone,)
            elif self._joined[number].keeps:
                yield number, (one,)
                yield number + 1, (one,)
            else:
                yield number + 1, (alone, one)
                yield number, (alone,)

    def _overwritten(self, step: Step) -> list[int]:
        """The buffers that a step reads and that do not outlast it: what it writes lies in the same place."""
        ranges = {id_: self._range(id_) for id_ in {*step.reads, *step.writes}}
        written = [ranges[id_] for id_ in step.writes]
        return [id_ for id_ in step.reads if any(_meet(ranges[id_], other) for other in written)]

    def last_steps(self, arrays: Sequence[AnyArray]) -> list[int]:
        """For each of some arrays, as everything is bound now, the number of steps up to the last that touches it: from
        there on it is left alone. 0 for one that no step touches."""
        begins = [address_of(array) for array in arrays]
        found = [0] * len(arrays)
        for number, step in enumerate(self.plan.steps, 1):
            for begin, end in {self._range(id_) for id_ in (*step.reads, *step.writes)}:
                for place, array in enumerate(arrays):
                    if begin < begins[place] + array.nbytes and begins[place] < end:
                        found[place] = number
        return found

    def _range(self, id_: int) -> tuple[int, int]:
        address = address_of(self._cells[id_].array)
        return address, address + self._buffers[id_].type.bytes

    def _task(self, step: Step) -> Task:
        match step:
            case Launch(kernel, buffers):
                return self.device.launch(kernel, [self._cells[id_] for id_ in buffers])
            case Product(a, b, c):
                left, right, result = (self._buffers[matrix.buffer].type.dtype for matrix in (a, b, c))
                cells = (self._cells[a.buffer], self._cells[b.buffer], self._cells[c.buffer])
                return self.device.library(step, (left, right, result), *cells)
            case Attention():
                return self.device.attend(step, self._cells)
            case Copy(source, target):
                size = self._buffers[target].type.bytes
                return self.device.copy(self._cells[source], self._cells[target], size)
            case Loop():
                return self.device.loop(step, self._cells)

    @property
    def tasks(self) -> Sequence[Task]:
        """The steps, for a sequence that is made of several plans. They run on what was bound last."""
        return self._tasks

    def bind(self, state: Mapping[str, AnyArray], inputs: Mapping[str, AnyArray], arena: AnyBytes) -> None:
        """Makes the steps work on these arrays, as `run` does before it runs them."""
        if arena is not self._arena:
            self._bind_arena(arena)
        for buffer in self._named[Place.STATE]:
            self._bind_named(buffer, state)
        for buffer in self._named[Place.INPUT]:
            self._bind_named(buffer, inputs)

    def _bind_arena(self, arena: AnyBytes) -> None:
        if arena.dtype != np.uint8 or arena.ndim != 1 or arena.size < self.plan.arena_bytes:
            raise InternalError("runtime", f"the arena is {arena.size} bytes, {self.plan.arena_bytes} are planned")
        if address_of(arena) % ALIGNMENT:
            raise InternalError("runtime", f"the arena does not lie on {ALIGNMENT} bytes")
        for buffer in self.plan.buffers:
            if buffer.place is Place.ARENA:
                part = arena[buffer.offset : buffer.offset + buffer.type.bytes]
                self._cells[buffer.id].array = part.view(buffer.type.dtype.numpy).reshape(buffer.type.shape)
        self._arena = arena

    def _bind_named(self, buffer: Buffer, arrays: Mapping[str, AnyArray]) -> None:
        try:
            array = arrays[buffer.name]
        except KeyError:
            raise InternalError("runtime", f"no array for {buffer.place.value} {buffer.name} was given") from None
        if self._bound.get(buffer.id) is array:
            return
        self._check(buffer, array)
        if buffer.place is Place.STATE and address_of(array) % ALIGNMENT:
            raise InternalError("runtime", f"state {buffer.name} does not lie on {ALIGNMENT} bytes")
        self._bound[buffer.id] = array
        self._cells[buffer.id].array = array

    def _check(self, buffer: Buffer, array: AnyArray) -> None:
        type_ = buffer.type
        if array.dtype != type_.dtype.numpy or array.shape != type_.shape:
            shape = " ".join(map(str, array.shape))
            place = f"{buffer.place.value} {buffer.name}"
            raise InternalError("runtime", f"{place} is {array.dtype}[{shape}], the plan needs {type_}")
        if isinstance(array, DeviceArray) is not self.device.own_memory:
            raise InternalError("runtime", f"{buffer.place.value} {buffer.name} is not in the memory of the device")
        if not isinstance(array, DeviceArray) and not array.flags.c_contiguous:
            raise InternalError("runtime", f"{buffer.place.value} {buffer.name} is not contiguous")


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _origin(graph: Graph | None, step: Step, read: Mapping[str, Array]) -> Node | None:
    if graph is None or not isinstance(step, Launch):
        return None
    return originating_node(graph, [int(name[1:].partition(" ")[0]) for name in step.nodes], read)
