"""Loaded by the ranks or workers of a test, whose PYTHONPATH names this folder: brings about the faults that FAULT
asks for. Workers all have rank 0.

FAULT is `KIND@RANK:PLACE`, several with spaces between. PLACE: `load` (before paren is loaded), `join`, `data`,
`compile`, `restore`, `evaluate`, `save`, `write` (of a checkpoint), a step such as `step3`, or all `steps`. KIND:
`kill`, `stop`, `sleep` (for ever), `sleepN` (N seconds), `hold` (until the file that GATE names is there), `heed`
(until this process hears of a stop signal), `raise`, `memory`, `system` (exit code 3), `nan` (in a batch), `flip` (a
bit of the state).

With SEEN, a folder, each rank writes there what it computes: `RANK.trained` holds a line of `POSITION ID ID...` for
each step, `RANK.evaluated` the labels of the examples of each call of an evaluation.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

heard: list[int] = []  # stop signals of this process


def strike(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind.startswith("sleep"):
        time.sleep(float(kind[5:] or 3600))
    elif kind == "hold":
        while not Path(os.environ["GATE"]).exists():
            time.sleep(0.02)
    elif kind == "heed":
        while not heard:
            time.sleep(0.02)
    elif kind == "raise":
        raise ValueError("provoked by a test")
    elif kind == "memory":
        raise MemoryError("provoked by a test")
    elif kind == "system":
        os._exit(3)
    else:
        raise AssertionError(f"no fault {kind}")


def before(owner: Any, name: str, act: Any) -> None:
    """Calls `act` with the arguments before each call of a function."""
    wrapped = getattr(owner, name)

    def wrapper(*given: Any, **named: Any) -> Any:
        act(*given, **named)
        return wrapped(*given, **named)

    setattr(owner, name, wrapper)


def install(kind: str, place: str) -> None:
    if place == "load":
        strike(kind)
        return

    import numpy as np

    import paren.parallel.join
    import paren.prepare
    import paren.run
    import paren.train.checkpoint
    import paren.train.follow
    import paren.train.loop
    import paren.train.run
    from paren.engine import CompiledEngine
    from paren.train.signals import StopSignals

    if kind == "heed":
        before(StopSignals, "_note", lambda signals, number, frame: heard.append(number))
    places: dict[str, list[tuple[Any, str]]] = {
        "join": [(paren.parallel.join, "_open_stores")],
        "data": [(paren.run, "open_program_data")],
        "compile": [(paren.prepare.Preparation, "_make_engine")],
        "restore": [(paren.train.run, "restore_newest")],
        "evaluate": [(paren.train.loop, "weighted_means")],
        "save": [(paren.train.loop, "save")],
        "write": [(paren.train.checkpoint.CheckpointStore, "save")],
    }
    for owner, name in places.get(place, []):
        before(owner, name, lambda *given, **named: strike(kind))
    if not place.startswith("step"):
        return
    step = None if place == "steps" else int(place[4:])

    def act(engine: CompiledEngine, batch: Any, number: int) -> None:
        if step is not None and batch.position + 1 != step:
            return
        if kind == "nan":
            batch.microbatches[0].fields["x"][...] = np.nan
        elif kind == "flip":
            array = next(iter(engine.slots().values()))
            array.reshape(-1)[:1].view(np.uint32)[...] ^= 1
        else:
            strike(kind)

    before(CompiledEngine, "step", act)


def record(folder: Path, rank: str) -> None:
    from paren.engine import CompiledEngine

    def note(engine: CompiledEngine, batch: Any, number: int) -> None:
        rows = [batch.indices[each.rows[each.valid > 0]] for each in batch.microbatches]
        write("trained", [batch.position, *(index for part in rows for index in part)])

    def note_evaluated(engine: CompiledEngine, microbatch: Any) -> None:
        write("evaluated", microbatch.fields["label"][microbatch.valid > 0].reshape(-1))

    def write(kind: str, values: Any) -> None:
        with (folder / f"{rank}.{kind}").open("a") as file:
            file.write(" ".join(str(value) for value in values) + "\n")

    before(CompiledEngine, "step", note)
    before(CompiledEngine, "evaluate", note_evaluated)


def main() -> None:
    launches = "RANK" not in os.environ and {"PAREN_DEVICES", "PAREN_NODES"} & os.environ.keys()
    if launches:
        return
    rank = os.environ.get("RANK", "0")
    for fault in os.environ.get("FAULT", "").split():
        kind, _, rest = fault.partition("@")
        chosen, _, place = rest.partition(":")
        if chosen == rank:
            install(kind, place)
    if "SEEN" in os.environ:
        record(Path(os.environ["SEEN"]), rank)


main()
