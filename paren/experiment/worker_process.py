"""`python -m paren.experiment.worker_process`: a worker that another process has started.

It reads its order from the first line of its standard input, and tells of its jobs in lines of JSON on its standard
output. When its standard input ends, whoever started it is gone, and it stops as after SIGTERM.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from pathlib import Path

from paren.experiment.events import Event
from paren.experiment.job_analysis import functions_of
from paren.experiment.jobs import make_jobs
from paren.experiment.store.claims import let_go_of_all
from paren.experiment.store.store import Store
from paren.experiment.training import Trainer
from paren.experiment.worker import Worker
from paren.experiment.worker_pool import Order
from paren.lang.elaborate import elaborate
from paren.train.signals import StopSignals


def main() -> int:
    """Works, and gives the exit code: 0, or 130 or 143 after a signal."""
    faulthandler.enable(2)  # as in the process that started it
    with StopSignals(quiet=True, at_once=let_go_of_all) as signals:
        order = Order.from_line(sys.stdin.readline())
        # What user code prints belongs to people, and standard output to whoever started this.
        said = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

        def tell(event: Event) -> None:
            try:
                said.write(event.to_line() + "\n")
                said.flush()
            except BrokenPipeError:
                signals.request()

        def watch() -> None:
            while os.read(0, 1):
                continue
            signals.request()

        threading.Thread(target=watch, daemon=True).start()

        def read_file(path: Path) -> bytes:
            return order.texts[str(path)].encode()

        program = elaborate(order.path, variant=order.variant, overrides=order.overrides, read_file=read_file)
        jobs = [job for job in make_jobs(program, order.overrides) if job.order in order.jobs]
        root = Path(order.root)
        trainer = Trainer(Store(root), functions_of(program), order.how, order.share, tensorboard=order.tensorboard)
        Worker(root, jobs, trainer, order.trains, order.analyzes, order.before, tell, signals, apart=True).run()
        return signals.exit_code if signals.stop_asked else 0


if __name__ == "__main__":
    sys.exit(main())
