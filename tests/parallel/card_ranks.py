"""Ranks of a run on cards that are not there, which exchange gradients through a library in place of NCCL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fake_nccl import fake_library
from ordered_card import OrderedCard, ordered_device

import paren
from paren import engine, run
from paren.parallel import exchange, join
from paren.parallel.cards import CardGroup
from paren.parallel.combination import Combination, Read
from paren.parallel.topology import Visible
from paren.runtime.array import AnyArray
from paren.runtime.cuda import nccl
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.executor import Executable
from paren.train.progress import Silent

Weight = Callable[[Read], float]
Moves = Sequence[tuple[int, int, int]]
BUCKET = 32  # elements, so that a small network has several


@dataclass(frozen=True)
class How:
    """How the ranks of a run exchange: by `cards`, or through the hosts; beside the backward, in `stages`, or after it.
    They are those of so many `nodes`, and send `gradients` between them. `set`, `steps`, `resume`: of the run. Rank 1
    is killed, or raises an error, as it moves bytes the time `killed` or `raises`; the connection breaks at `lost`.
    `joins`: whether cards join products with their kernels, which is the faster way then."""

    cards: bool = True
    stages: bool = True
    nodes: int = 1
    gradients: str = "f32"
    set: dict[str, object] = field(default_factory=dict)
    steps: int | None = None
    resume: str | None = None
    killed: int = 0
    raises: int = 0
    lost: int = 0
    joins: bool = False


@dataclass(frozen=True)
class Seen:
    """What was seen of a rank: the stages of a step, whether cards summed, the bytes that the exchange has of the card
    and those that are planned for it, the lines that were said, and whether products were joined."""

    stages: int
    on_cards: bool
    bytes: int
    planned: int
    notices: list[str]
    joined: bool


class Heard(Silent):
    """Keeps the lines of a run."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def train_rank(rank: int, port: int, ranks: int, file: str, out: str, how: How) -> Seen:
    """Trains as one of the ranks, on a card that does everything as late as it may, and keeps account of what comes
    before what."""
    here = ranks // how.nodes
    launched = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here}
    os.environ.update({name: str(value) for name, value in launched.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PAREN_NODE_GRADIENTS=how.gradients)
    os.environ.update(PAREN_CACHE=str(Path(file).parent / "cache"), FAKE_NCCL_LOSES=str(how.lost or ""))
    exchange.BUCKET = BUCKET
    nccl.find_nccl = fake_library if how.cards else lambda: "libnccl-of-nobody.so.2"
    device, card = ordered_device(lazy=True)
    keep_account_of_swaps(card)
    if how.joins:
        card.able = None
        CudaDevice.compare_joined = lambda *_: (2.0, 1.0)  # type: ignore[method-assign]
    run.open_device = lambda *_: device  # type: ignore[assignment]
    run.visible_devices = lambda name: Visible("cuda", 8, "")  # type: ignore[assignment]
    combinations: list[tuple[Combination, int]] = []
    taken: list[int] = []
    prepare = Combination.prepare

    def prepared(
        made: Combination, gradients: AnyArray, weight: Callable[[Read], float], stages: Sequence[int]
    ) -> None:
        combinations.append((made, max(stages)))
        before = card.used
        prepare(made, gradients, weight, stages)
        taken.append(card.used - before)

    Combination.prepare = prepared  # type: ignore[method-assign]
    if not how.stages:
        Executable.last_steps = lambda self, arrays: [len(self.tasks)] * len(arrays)  # type: ignore[method-assign]
    if rank == 1:
        engine.STAGES = 2
        strike(how)
    if how.lost:
        join.GRACE = 0.5
    experiment = paren.load(file, set=how.set)
    view = Heard()
    experiment.run(out=out, device="cuda", stacking=1, steps=how.steps, resume=how.resume, progress=view)
    (made, stages) = combinations[-1]
    parts = json.loads((Path(out) / "report" / "lowering.json").read_text())["memory"]["parts"]
    planned = parts.get("exchange", 0) + parts.get("carried", 0)
    return Seen(stages, made.on_cards, taken[-1], planned, view.notices, "join" in card.started)


def keep_account_of_swaps(card: OrderedCard) -> None:
    """What the library moves, it moves in the second stream."""
    swap = nccl.Communicator.swap

    def account(made: nccl.Communicator, sent: Moves, received: Moves, stream: int) -> None:
        card.second.swapped(*([(at, at + size) for _, at, size in moves] for moves in (sent, received)))
        swap(made, sent, received, stream)

    nccl.Communicator.swap = account  # type: ignore[method-assign]


def strike(how: How) -> None:
    """Brings a fault about in the middle of an exchange of this process."""
    moved, swap = [0], CardGroup.swap

    def swap_or_end(group: CardGroup, sent: Sequence[AnyArray], received: Sequence[AnyArray]) -> None:
        moved[0] += 1
        if moved[0] == how.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if moved[0] == how.raises:
            raise ValueError("provoked by a test")
        swap(group, sent, received)

    CardGroup.swap = swap_or_end  # type: ignore[method-assign]


def start_rank(rank: int, port: int, ranks: int, file: Path, out: Path, how: How) -> subprocess.Popen[str]:
    """The same as a process that may fail, whose store another one serves."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    given = json.dumps([rank, port, ranks, str(file), str(out), asdict(how)])
    return subprocess.Popen([sys.executable, __file__, given], env=variables, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    *given, how = json.loads(sys.argv[1])
    try:
        train_rank(*given, How(**how))
    except paren.ParenError as error:
        sys.exit(str(error))
