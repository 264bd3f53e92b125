"""What the jobs of one process train with: the device is opened once, data sets and plans are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from paren.data.checks import check_data
from paren.data.dataset import Dataset
from paren.environment import read_environment
from paren.experiment.job_data import DATA, check_unchanged, data_recipe, make_data, read_data
from paren.experiment.jobs import Job
from paren.experiment.launch import Launch
from paren.experiment.python.functions import Functions
from paren.experiment.store.artifact import Artifact
from paren.experiment.store.claims import Claim
from paren.experiment.store.declared_files import digest_of_content
from paren.experiment.store.recipe import Recipe, as_json
from paren.experiment.store.store import Store
from paren.experiment.worker_places import own_place
from paren.forecast.stacking import check_degree
from paren.ir.program import DataForm
from paren.parallel.topology import Patience, Topology
from paren.run import How, Run, device_identity, package_versions, shared_program, start_ranks, train_program
from paren.runtime.device import Device, open_device
from paren.runtime.memory import Available, usable_memory
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.train.experiment import RunOptions, first_weights
from paren.train.loop import COMPLETE
from paren.train.progress import ProgressView, Silent
from paren.train.run import NOTHING_TO_DO, Outcome
from paren.train.signals import StopSignals
from paren.train.start_from import check_weights

MODEL = "model"
OTHER_EXPERIMENT = "E-RUN-002"
MOST_LOADED = 400  # pieces of code; a small network has about twenty, of 20 KB
ONE_RANK = Topology(1, 0, (0,), None, Patience(), "f32", None)


class Stopped(Exception):
    """A signal ended a training; it goes on from its checkpoint the next time."""


@dataclass
class Trainer:
    """Trains the models of jobs into the store. `functions`: the Python files beside the file; `how.device` may name a
    card, `cuda:1`; `share`: the workers that use that device at once; `keeps_code`: whether compiled kernels are kept
    in the cache folder. With several ranks in the `topology`, each training is started on them."""

    store: Store
    functions: Functions
    how: How
    share: int = 1
    keeps_code: bool = True
    tensorboard: bool = False
    topology: Topology = ONE_RANK
    _keys: dict[str, str] = field(default_factory=dict)  # of data made by functions, by the job's folder
    _identities: dict[str, str] = field(default_factory=dict)  # of other data, by what their form says
    _last: tuple[str, Dataset] | None = None

    @cached_property
    def device(self) -> Device:
        """The device, opened when it is first asked for."""
        cache = read_environment().cache if self.keeps_code else None
        return open_device(self.how.device, self.how.threads, cache, self.how.tf32)

    @cached_property
    def free(self) -> Available:
        """The memory that each of the workers on the device may take."""
        free = usable_memory(self.device.available(), self.how.memory or read_environment().memory)
        if self.share == 1 or self.how.memory is not None:
            return free
        # Others may hold their parts already, so a part is one of the whole.
        part = (read_environment().memory or free.total) // self.share
        return replace(free, bytes=min(free.bytes, part), limit=f"{free.limit}, for {self.share} workers")

    @cached_property
    def _how(self) -> How:
        """With this worker's part of the memory."""
        return self.how if self.share == 1 else replace(self.how, memory=self.free.bytes)

    @cached_property
    def root(self) -> Path | None:
        """The folder that relative paths of data start from, if not the file's."""
        return Path(self.how.data_root) if self.how.data_root is not None else read_environment().data

    def data_key(self, job: Job) -> str:
        """What identifies the data of a job. Functions are not run for it; other data are read."""
        if job.folder in self._keys:
            return self._keys[job.folder]
        recipe = data_recipe(job.program, self.root, self.functions.sources)
        if recipe is not None:
            self._keys[job.folder] = recipe.key
            return recipe.key
        same = said_of(job.program.data)
        if same not in self._identities:
            self._identities[same] = self._read(job, self.store.notice).identity
        return self._identities[same]

    def data(self, job: Job, view: ProgressView) -> Dataset:
        """The data of a job, checked. Raises what is wrong with them."""
        program, sources = job.program, self.functions.sources
        recipe = data_recipe(program, self.root, sources)
        data = (
            self._read(job, view.notice)
            if recipe is None
            else make_data(program, recipe, self.store, self.root, sources)
        )
        check_data(data, program.bounds, program.run, cache=read_environment().cache / "data")
        return data

    def check(self, job: Job) -> None:
        """Raises what a training of the job would refuse, as far as that is known before any is planned, and before a
        function makes data."""
        program = shared_program(job.program, self.topology)
        if self.how.stacking is not None:
            check_degree(program, self.how.stacking)
        if program.data.kind != "python":
            self.data(job, Silent())
        if (weights := first_weights(program.path, program.run)) is not None:
            types = {slot.name: slot.type for slot in program.parameters}
            check_weights(weights, program.run.start_names, types, program.run.spans.get("from"))

    def _read(self, job: Job, notice: Callable[[str], None]) -> Dataset:
        """Data that no function makes. The last ones stay open: the next job often has the same."""
        same = said_of(job.program.data)
        if self._last is None or self._last[0] != same:
            self._last = None
            self._last = same, read_data(job.program, self.root, notice)
        return self._last[1]

    def renew_device(self) -> None:
        """Lets the CPU be opened anew where many different networks have left their code in its memory."""
        device: Device | None = self.__dict__.get("device")
        if device is not None and not device.own_memory and device.compiled + device.reused > MOST_LOADED:
            del self.device

    def close_data(self) -> None:
        """Gives the memory of data back."""
        self._last = None

    def data_folder(self, key: str) -> Path | None:
        """The folder of an artifact of data; None for data that have none."""
        folder = self.store.folder / DATA / key
        return folder if folder.is_dir() else None

    def recipe(self, job: Job, data_key: str) -> Recipe:
        """What the model of a job is made from."""
        how = self.how
        computing = device_identity(self.device, how.patterns, self.topology)
        if how.tf32:
            computing["tf32"] = True
        if how.stacking is not None:
            computing["stacking"] = how.stacking
        parts: dict[str, Json] = {
            "program": job.identity,
            "data": data_key,
            "device": computing,
            "versions": self._versions(),
        }
        weights = first_weights(job.program.path, job.program.run)
        if weights is not None and weights.is_file():  # `check` says what is wrong with it
            parts["weights"] = digest_of_content(weights)
        settings = {name: as_json(value) for name, value in job.settings.items()}
        return Recipe(MODEL, MODEL, parts, {"settings": settings})

    def train(self, job: Job, recipe: Recipe, data: Dataset, view: ProgressView, signals: StopSignals) -> Artifact:
        """The model of a recipe, trained if it is not there yet; a training that was interrupted goes on. Raises
        `Stopped` if a signal ends it, and what `train_program` raises."""

        def start(options: RunOptions) -> Run | Outcome:
            for note in self.device.notes:  # of a job, the report stands in its folder only
                view.notice(note)
            if self.topology.starts_ranks:
                return start_ranks(job.program, job.texts, options, self.how, self.topology, signals, view.notice)
            return train_program(
                job.program, options, self._how, view, signals, ONE_RANK, None, device=self.device, data=data
            )

        def train(folder: Path, held: Claim) -> Json:
            options = RunOptions(folder, resume="auto", tensorboard=self.tensorboard, versions=package_versions())
            with signals.only_while(held.prove):
                try:
                    outcome = start(options)
                except ParenError as error:
                    if error.code != OTHER_EXPERIMENT:
                        raise
                    # The recipe is the same, so what a function made of it is not: it gives other data each time.
                    view.notice(f"{job.name} begins anew: its data are others than those of the interrupted training")
                    outcome = start(replace(options, resume=None, overwrite=True))
            if outcome.ended not in (COMPLETE, NOTHING_TO_DO):
                raise Stopped
            check_unchanged(job.program, self.root, data)
            return {"step": outcome.step}

        return self.store.train(recipe, train)

    def _versions(self) -> dict[str, Json]:
        """Of what decides about bits."""
        computing = "torch" if self.device.own_memory else "llvmlite"
        return {name: package_versions()[name] for name in ("paren", "numpy", computing)}


def said_of(form: DataForm) -> str:
    """What a data form says, wherever it stands."""
    fields = [(each.name, str(each.type)) for each in form.fields]
    return repr((form.kind, form.arguments, sorted(form.options.items()), fields))


def make_trainer(
    launch: Launch, topology: Topology, store: Store, functions: Functions, keeps_code: bool = True
) -> Trainer:
    """The trainer of a process that looks at jobs, and works on them unless others are started for that."""
    place = own_place(launch.how.device, topology)
    how = launch.how if topology.starts_ranks and not launch.apart else replace(launch.how, device=place.device)
    share = place.share if topology.member is not None else 1
    ranks = ONE_RANK if launch.apart else topology
    return Trainer(store, functions, how, share, keeps_code, launch.tensorboard, ranks)
