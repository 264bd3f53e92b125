"""One start of a run: from the lock on its directory to its final status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from paren.ir.op import Array
from paren.parallel.carried import ROLE
from paren.parallel.company import ALONE
from paren.parallel.ranks import START, STATE, Ranks
from paren.runtime.memory import available_memory
from paren.text.errors import Note, ParenError
from paren.text.json import Json
from paren.text.size import count_of, show_bytes
from paren.train import metrics, run_directory, status
from paren.train.best import KEPT_ROLES, BestStore
from paren.train.checkpoint import Checkpoint, CheckpointStore, newest_run
from paren.train.engine import Engine
from paren.train.event_files import EventFiles, require_tensorboard
from paren.train.experiment import (
    Experiment,
    Prepared,
    RunOptions,
    TrainingData,
    evaluate_every,
    steps_to_do,
    total_steps,
)
from paren.train.files import Files
from paren.train.lock import RunLock
from paren.train.loop import AT_SIGNAL, COMPLETE, train
from paren.train.metrics import MetricsWriter
from paren.train.places.disk import DiskFolder
from paren.train.places.place import Place
from paren.train.profile import Profile
from paren.train.progress import ProgressView
from paren.train.restore_carried import restore_carried
from paren.train.resume import Candidates, find_checkpoints, is_in, restore_newest, stored_identity
from paren.train.run_directory import Found
from paren.train.saving import Saver
from paren.train.session import Session
from paren.train.signals import StopSignals, TakenOver
from paren.train.start_from import load_weights
from paren.train.state import LoopState
from paren.train.status import StatusFile

NOTHING_TO_DO = "done"
TELLING = 16 << 20  # bytes; below, the loop's own objects and threads outweigh a plan


@dataclass(frozen=True)
class Outcome:
    """`ended`: `complete`, `steps` (at `--steps`), `signal`, or `done` (nothing was left to do, nothing was computed).

    `exit_code`: 0, or 130 or 143 after a signal. `step`: positions done in total.
    """

    ended: str
    exit_code: int
    step: int
    out: Path


@dataclass
class Start:
    """Trains in `options.out`, anew or from a checkpoint, and leaves the directory with a final status.

    `prepare` is called under the lock, with the identity of the checkpoint that the start goes on from (None for a new
    run), and decides what is left open until then. Its engine compiles and allocates; it is made after everything that
    can be refused without it. `signals` is entered by the caller, around everything slow; `progress` is ended by
    whoever made it.
    """

    experiment: Experiment
    options: RunOptions
    data: TrainingData
    prepare: Callable[[Mapping[str, Json] | None], Prepared]
    progress: ProgressView
    signals: StopSignals
    files: Files = field(default_factory=Files)
    profile: Profile | None = None
    ranks: Ranks | None = None  # which this start leads

    def run(self) -> Outcome:
        """Raises ParenError for all that can go wrong; the status then says `failed`, with the code."""
        options, run = self.options, self.experiment.run
        if options.overwrite and options.resume is not None:
            raise ParenError("E-RUN-008", "--overwrite and --resume contradict each other", fix="give one of them")
        if options.tensorboard:
            require_tensorboard()
        total = total_steps(run, self.data.steps_per_epoch)
        stop = steps_to_do(options.steps, total)
        every = evaluate_every(run, self.data)
        run_directory.refuse_others(options.out)
        run_directory.make_folder(options.out)
        with RunLock(options.out) as lock, self.signals.only_while(lock.prove), ExitStack() as held:
            run_directory.refuse_others(options.out)
            run_directory.clean(options.out)
            found = run_directory.decide(options, self.experiment)
            if found.kind == "done":
                ended = status.read_status(options.out)
                step = ended.step if ended else total
                self._tell(START, {"ended": True, "step": step})
                return self._nothing(step, f"holds this run, complete after {count_of(step, 'step')}")
            root, best = self._places(held)
            found = self._adopt(root, found)
            store = self._store(root, found)
            prepared = self.prepare(self._stored_identity(store, found))
            store.identity = prepared.identity
            self._tell(START, {**prepared.identity, "ended": False})
            candidates = self._candidates(store, found)
            if found.kind == "fresh":
                run_directory.write_run_file(self.files, options, self.experiment, found, total, prepared.identity)
            file = StatusFile(options.out, total, self.files)
            try:
                return self._train(prepared, store, BestStore(best), candidates, file, total, stop, every)
            except TakenOver:
                raise  # the status is another's to write
            except BaseException as error:
                with suppress(ParenError):  # the disk may be what failed; the error itself is on its way to the user
                    if isinstance(error, ParenError):
                        file.final(status.FAILED, code=error.code, message=error.message)
                    else:
                        file.final(status.FAILED, message=f"{type(error).__name__}: {error}")
                raise

    def _train(
        self,
        prepared: Prepared,
        store: CheckpointStore,
        best: BestStore,
        candidates: Candidates,
        file: StatusFile,
        total: int,
        stop: int,
        every: int | None,
    ) -> Outcome:
        out = self.options.out
        if candidates.checkpoints:
            at = candidates.checkpoints[0].manifest
            file.progress(at.step, at.samples)
        if self.signals.stop_asked:
            self._tell(STATE, {"ended": True, "step": file.status.step})
            return self._stopped(file)
        if self.ranks is not None:
            self.ranks.heart.endings.append(partial(_note_failure, file))
        self._doing(file, "compiling")
        with ExitStack() as closing:
            closing.callback(self.progress.phase, "")
            engine = prepared.make_engine()
            closing.callback(engine.close)
            if self.signals.stop_asked:
                self._tell(STATE, {"ended": True, "step": file.status.step})
                return self._stopped(file)
            if candidates.checkpoints:
                self._doing(file, "restoring")
            resumed = self._fill(store, candidates, engine)
            state = replace(resumed.manifest.loop) if resumed else LoopState()
            file.progress(state.step, state.samples)
            if self.ranks is not None:
                self.ranks.at(state.step)
            if resumed and stop <= state.step < total and not state.stopped_early:
                file.final(status.STOPPED)
                self._tell(STATE, {"ended": True, "step": state.step})
                return self._nothing(state.step, f"is at step {state.step} already")
            self._check_space(store, engine, total - state.step)
            own = resumed is not None and resumed.manifest.directory == store.directory
            best.follow(state.best, self.progress.notice)
            size = resumed.manifest.metrics_bytes if resumed and own else metrics.length(out / metrics.FILE, state.step)
            lines = closing.enter_context(MetricsWriter(out / metrics.FILE, size if resumed else 0))
            if not lines.size:
                saves = engine.copies_state
                lines.annotate(state.step, "memory", **engine.memory(), **prepared.peak, saves_while_training=saves)
                for kind, values in prepared.annotations.items():
                    lines.annotate(state.step, kind, **values)
            for size in prepared.retried():
                again = "and succeeded once memory in reserve was given back"
                self.progress.notice(f"memory: allocation failed ({show_bytes(size)}), {again}")
                lines.annotate(state.step, "allocation-failed", bytes=size)
            if resumed and not own:
                lines.annotate(state.step, "resumed", checkpoint=str(resumed.folder))
            if self.ranks is not None:
                self._tell(STATE, {**state.to_json(), "ended": False, "owes": engine.owes})
                self.ranks.hand_on([*engine.slots().values(), *(engine.owe().values() if engine.owes else ())])
            saver = Saver(
                store,
                best,
                state,
                {**engine.slots(), **self._carried},
                {**engine.roles, **dict.fromkeys(self._carried, ROLE)},
                self.progress.notice,
                copies=engine.copies_state,
            )
            session = Session(
                experiment=self.experiment,
                engine=engine,
                data=prepared.data,
                state=state,
                total=total,
                stop=stop,
                evaluate_every=every,
                saver=saver,
                best=best,
                metrics=lines,
                events=closing.enter_context(EventFiles(out, state.step)) if self.options.tensorboard else None,
                status=file,
                progress=self.progress,
                signals=self.signals,
                company=self.ranks if self.ranks is not None else ALONE,
                profile=self.profile,
            )
            try:
                ended = train(session)
            except MemoryError as error:
                raise ran_out(error, engine.memory().get("planned", 0), state.step) from error
            outcome = self._end(session, file, saver, ended)
            session.company.any(False)  # the other ranks wait until all is written
            return outcome

    def _doing(self, file: StatusFile, phase: str) -> None:
        self.progress.phase(phase)
        file.running(phase)
        if self.ranks is not None:
            self.ranks.doing(phase)

    def _tell(self, key: str, value: Mapping[str, Json]) -> None:
        """Lets the other ranks know, if there are any."""
        if self.ranks is not None:
            self.ranks.tell(key, value)

    @property
    def _carried(self) -> Mapping[str, Array]:
        """What nodes carry because sums between them are rounded, by slot."""
        return self.ranks.carried.slots if self.ranks is not None and self.ranks.carried is not None else {}

    def _fill(self, store: CheckpointStore, candidates: Candidates, engine: Engine) -> Checkpoint | None:
        """Gives every slot its value: from a checkpoint, which is returned, or the first one."""
        if candidates.checkpoints:
            carried = partial(restore_carried, slots=self._carried, owe=engine.owe)
            return restore_newest(store, candidates, engine.slots(), engine.roles, carried)
        self._initialize(engine)
        return None

    def _end(self, session: Session, file: StatusFile, saver: Saver, ended: str) -> Outcome:
        state = session.state
        file.progress(state.step, state.samples)
        planned = session.engine.memory().get("planned", 0)
        if planned and session.peak_bytes:
            self.progress.notice(f"memory: {describe_peak(session.peak_bytes, planned)}")
        if session.exchanged.steps:
            self.progress.notice(f"exchange: {session.exchanged}")
        if told := saver.describe():
            self.progress.notice(f"checkpoints: {told}")
        if ended == AT_SIGNAL:
            return self._stopped(file)
        if state.updates == 0:
            raise ParenError(
                "E-RUN-009",
                f"no optimizer update was made in {count_of(state.step, 'step')}: "
                f"{count_of(state.padding, 'batch')} had no weight, "
                f"{count_of(state.skipped, 'step was', 'steps were')} not finite",
                fix="look at the loss weights and at the data",
            )
        file.final(status.COMPLETE if ended == COMPLETE else status.STOPPED)
        self._tell_end(session, ended)
        return Outcome(ended, 0, state.step, self.options.out)

    def _places(self, held: ExitStack) -> tuple[Place, Place]:
        """Where checkpoints and the best parameters go, seen to be writable, and locked if it is not the directory."""
        options = self.options
        root, best = run_directory.open_places(options.out, options.checkpoints, self.files)
        own = DiskFolder(options.out, self.files)
        own.probe()
        root.probe()
        if options.checkpoints is not None and root != own:
            held.enter_context(root.lock(self.progress.notice))
        return root, best

    def _adopt(self, root: Place, found: Found) -> Found:
        """A start in a fresh directory that is to resume goes on with the run whose checkpoints are in the place that
        it was given: the directory of that run may be lost."""
        wanted = self.options.resume
        if found.kind != "fresh" or self.options.checkpoints is None or wanted is None or not is_in(root, wanted):
            return found
        run = newest_run(root)
        return found if run is None else replace(found, run=run, adopted=True)

    def _store(self, root: Place, found: Found) -> CheckpointStore:
        store = CheckpointStore(
            root,
            found.run,
            self.experiment.digest,
            {},
            self.options.versions,
            self.experiment.run.keep_checkpoints,
            found.directory,
            self.progress.notice,
        )
        store.refuse_strangers()
        root.clean()
        return store

    def _stored_identity(self, store: CheckpointStore, found: Found) -> Mapping[str, Json] | None:
        wanted = self.options.resume
        if wanted is None or (wanted == "auto" and found.kind == "fresh" and not found.adopted):
            return None
        return stored_identity(store, wanted)

    def _candidates(self, store: CheckpointStore, found: Found) -> Candidates:
        wanted = self.options.resume
        if wanted is None or (wanted == "auto" and found.kind == "fresh" and not found.adopted):
            return Candidates([], {}, fallback=False)
        candidates = find_checkpoints(store, wanted, self.options.allow_new_layout)
        for checkpoint in candidates.checkpoints:
            if found.kind == "resume" and checkpoint.manifest.run != found.run:
                raise ParenError(
                    "E-CKPT-011",
                    f"the checkpoint {checkpoint.folder} was written by another run than the one in {self.options.out}",
                    fix="resume it into a new --out",
                )
        return candidates

    def _initialize(self, engine: Engine) -> None:
        """First values: the program's initializers, or the file of `:from`; averages start at the parameters."""
        run = self.experiment.run
        weights = self.experiment.weights
        if weights is None:
            engine.initialize(run.seed)
            return
        slots, roles = engine.slots(), engine.roles
        parameters = {name: array for name, array in slots.items() if roles[name] == "parameter"}
        unused = load_weights(weights, run.start_names, parameters, run.spans.get("from"))
        for name in slots:
            if roles[name] == "average":
                slots[name][...] = slots[name.rpartition("/")[0]]
        if unused:
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            self.progress.notice(f"{weights} holds tensors that are not used: {', '.join(unused[:5])}{more}")

    def _check_space(self, store: CheckpointStore, engine: Engine, steps: int) -> None:
        run, slots = self.experiment.run, engine.slots()
        every = run.checkpoint_every
        saves = 1 if every is None else -(-steps // every)
        here = len(store.all()[0])
        count = max(1, min(saves, run.keep_checkpoints + 1 - here))
        best = sum(array.nbytes for name, array in slots.items() if engine.roles[name] in KEPT_ROLES)
        kept = 0 if run.keep_best is None else best * (run.keep_checkpoints + 1)
        run_directory.check_space(store.root, sum(array.nbytes for array in slots.values()), count, kept)

    def _stopped(self, file: StatusFile) -> Outcome:
        file.final(status.STOPPED)
        step = file.status.step
        how = "the same command" if self.options.resume == "auto" else "--resume latest"
        self.progress.notice(f"saved at step {step}: {how} goes on from there" if step else "stopped before step 1")
        return Outcome(AT_SIGNAL, self.signals.exit_code, file.status.step, self.options.out)

    def _tell_end(self, session: Session, ended: str) -> None:
        state = session.state
        best = state.best
        if best is not None:
            self.progress.notice(f"best: {best.metric} {best.value:.5g} at step {best.step}")
        if ended == COMPLETE:
            self.progress.notice(f"complete after {count_of(state.step, 'step')}")
        else:
            self.progress.notice(f"saved at step {state.step} of {session.total}: --resume latest goes on from there")

    def _nothing(self, step: int, why: str) -> Outcome:
        self.progress.notice(f"{self.options.out} {why}: nothing to do")
        return Outcome(NOTHING_TO_DO, 0, step, self.options.out)


def note_failure(out: Path, error: ParenError) -> None:
    """Says why a run failed, where the process that kept its status did not live to say so. Nothing is changed of a run
    that another process is at."""
    found = status.read_status(out)
    if found is None or found.state != status.RUNNING:
        return
    with suppress(ParenError), RunLock(out):
        file = StatusFile(out, found.steps)
        file.status = found
        file.final(status.FAILED, code=error.code, message=error.message)


def _note_failure(file: StatusFile, error: ParenError) -> None:
    """The run ends because another rank failed."""
    with suppress(ParenError):  # the disk may be what failed
        file.final(status.FAILED, code=error.code, message=error.message)


def ran_out(error: MemoryError, planned: int, step: int) -> ParenError:
    """E-MEM-002 for memory that the system refused to Python itself."""
    free = available_memory()
    return ParenError(
        "E-MEM-002",
        f"memory ran out after step {step}: {show_bytes(free.bytes)} are free, {show_bytes(planned)} were planned",
        notes=[Note(f"the limit is the {free.limit}"), Note(f"the system said: {error or 'no memory'}")],
        fix="end other programs, or make the model or the microbatch smaller, then continue with --resume latest",
    )


def describe_peak(peak: int, planned: int) -> str:
    """What was used beside what was planned; how far they are apart only where the plan is the larger part of it."""
    text = f"peak {show_bytes(peak)} of {show_bytes(planned)} planned"
    return f"{text} ({100 * (peak / planned - 1):+.0f} %)" if planned >= TELLING else text
