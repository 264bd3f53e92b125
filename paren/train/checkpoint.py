"""Checkpoints: drafted where nobody sees them, published in one, verified when read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from paren.ir.op import Array
from paren.parallel.carried import ROLE as CARRIED
from paren.runtime.array import AnyArray
from paren.text.errors import Note, ParenError, Report, system_reason
from paren.text.json import Json
from paren.text.size import count_of, show_bytes
from paren.train.manifest import FILE, Damaged, Manifest, OtherFormat, StoredFile, StoredSlot
from paren.train.places.place import Draft, Place
from paren.train.state import LoopState
from paren.train.status import now
from paren.train.tensor_file import (
    FORMAT_NAMES,
    MalformedFile,
    Written,
    file_digest,
    read_header,
    read_tensors,
    write_tensors,
)

LATEST = "latest"
PARAMETERS = "parameters.safetensors"
OPTIMIZER = "optimizer.safetensors"
FINITE_ROLES = ("parameter", "average")
TRANSIENT = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EINTR,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ETIMEDOUT,
    errno.ESTALE,
}


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint: its folder and its manifest."""

    folder: Place
    manifest: Manifest


def _ignore(_: str) -> None:
    """A run without a place for notices."""


@dataclass
class CheckpointStore:
    """The checkpoints of one run in one folder, `root`. `head` is the one that the next continues.

    `run`, `program`, `identity`, `versions` and `directory` go into each manifest. At most `keep` checkpoints stay; old
    ones go only after the new one stands. `notice` is told what a user should know.
    """

    root: Place
    run: str
    program: str
    identity: Mapping[str, Json]
    versions: Mapping[str, str]
    keep: int
    directory: str = ""
    notice: Callable[[str], None] = _ignore
    head: Checkpoint | None = None

    def save(
        self, slots: Mapping[str, AnyArray], roles: Mapping[str, str], state: LoopState, metrics_bytes: int
    ) -> Checkpoint:
        """Publishes the state as `root/STEP`, moves `latest` to it, and deletes checkpoints beyond `keep`.

        A failure that may pass is tried once more. Raises E-CKPT-008 if the disk refuses, E-S3-* if the bucket does,
        E-CKPT-009 if a parameter is not finite; the checkpoints before are then untouched.
        """
        target = self.root.child(f"{state.step:06d}")
        try:
            try:
                checkpoint = self._write(target, slots, roles, state, metrics_bytes)
            except OSError as error:
                if error.errno not in TRANSIENT:
                    raise
                self.notice(f"saving {target} failed ({_reason(error)}), trying once more")
                checkpoint = self._write(target, slots, roles, state, metrics_bytes)
        except OSError as error:
            raise self._not_saved(target, slots, error) from error
        except ParenError as error:
            if not error.code.startswith("E-S3-"):
                raise
            told = f"the checkpoint {target} was not saved: {error.message}"
            raise ParenError(error.code, told, notes=self._previous(), fix=error.fix) from None
        self.follow(checkpoint)
        self._retire(checkpoint)
        return checkpoint

    def follow(self, checkpoint: Checkpoint) -> None:
        """Makes a checkpoint the one that training continues from, and lets `latest` name it.

        `latest` has three lines: its name; the highest sequence number so far, so that whatever is written later
        belongs to the lineage, even if a kill comes before `latest` names it; the names of its ancestors.
        """
        ancestors = self._ancestors(checkpoint)
        self.head = checkpoint
        if checkpoint.folder != self.root.child(checkpoint.folder.name):
            return
        newest = max((each.manifest.sequence for each in self.all()[0]), default=checkpoint.manifest.sequence)
        lines = (checkpoint.folder.name, str(newest), " ".join(ancestors))
        try:
            self.root.write(LATEST, "".join(f"{line}\n" for line in lines).encode())
        except (OSError, ParenError) as error:
            self.notice(f"{self.root.child(LATEST)} could not be written ({_reason(error)})")

    def lineage(self) -> tuple[list[Checkpoint], dict[str, str]]:
        """The checkpoints to resume from, best first, and those that cannot be read (name -> reason).

        First come those written after `latest`, the newest first, then the one it names, then its ancestors.
        Checkpoints of an abandoned branch are not among them. Without a readable `latest`, they come in the order of
        writing, the last one first.
        """
        found, unreadable = self.all()
        pointer = self._pointer()
        if pointer is None:
            return found, unreadable
        name, newest, ancestors = pointer
        line = [each for each in found if each.manifest.sequence > newest]
        by_name = {each.folder.name: each for each in found if each.manifest.sequence <= newest}
        line += [by_name[old] for old in (name, *ancestors) if old in by_name]
        return line, unreadable

    def all(self) -> tuple[list[Checkpoint], dict[str, str]]:
        """Every checkpoint of this run in the folder, the last written first, and the unreadable ones' reasons."""
        found, unreadable = [], {}
        for folder in map(self.root.child, checkpoints_in(self.root)):
            try:
                manifest = Manifest.read(folder)
            except Damaged as damage:
                unreadable[folder.name] = str(damage)
            except OtherFormat as other:
                unreadable[folder.name] = f"format {other}"
            else:
                if manifest.run == self.run:
                    found.append(Checkpoint(folder, manifest))
        return sorted(found, key=lambda each: -each.manifest.sequence), unreadable

    def refuse_strangers(self) -> None:
        """Raises E-RUN-015 if another run's checkpoints are in the folder: this run's would take their places."""
        for folder in map(self.root.child, checkpoints_in(self.root)):
            try:
                run = Manifest.read(folder).run
            except (Damaged, OtherFormat):
                continue
            if run != self.run:
                raise ParenError(
                    "E-RUN-015",
                    f"{self.root} holds the checkpoints of another run ({run})",
                    fix="take another --checkpoints, one for each run; "
                    "with a new --out, --resume latest goes on with that run",
                )

    def _write(
        self,
        target: Place,
        slots: Mapping[str, AnyArray],
        roles: Mapping[str, str],
        state: LoopState,
        metrics_bytes: int,
    ) -> Checkpoint:
        found, _ = self.all()
        with target.draft() as draft:
            stored_slots: dict[str, StoredSlot] = {}
            stored_files: dict[str, StoredFile] = {}
            for file in dict.fromkeys((PARAMETERS, OPTIMIZER, *(file_of(name, roles[name]) for name in slots))):
                part = {name: slots[name] for name in slots if file_of(name, roles[name]) == file}
                written = self._write_file(draft, file, part, roles, state.step)
                stored_files[draft.stored(file)] = StoredFile(written.size, written.digest)
                for name, array in part.items():
                    digest = written.tensors[name]
                    stored_slots[name] = StoredSlot(
                        roles[name], str(array.dtype), array.shape, digest, draft.stored(file)
                    )
            manifest = Manifest(
                run=self.run,
                parent=self.head.manifest.id if self.head else None,
                sequence=1 + max((each.manifest.sequence for each in found), default=0),
                step=state.step,
                samples=state.samples,
                updates=state.updates,
                program=self.program,
                identity=self.identity,
                versions=self.versions,
                written=now(),
                directory=self.directory,
                metrics_bytes=metrics_bytes,
                loop=replace(state),
                slots=stored_slots,
                files=stored_files,
            )
            draft.publish(FILE, manifest.to_bytes())
        return Checkpoint(target, manifest)

    def _write_file(
        self, draft: Draft, file: str, part: Mapping[str, AnyArray], roles: Mapping[str, str], step: int
    ) -> Written:
        def check(name: str, chunk: Array) -> None:
            if roles[name] in FINITE_ROLES and chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
                raise ParenError(
                    "E-CKPT-009",
                    f"{roles[name]} '{name}' is not finite after step {step}, so no checkpoint was published",
                    notes=self._previous(),
                    fix="resume from an earlier checkpoint with a smaller rate or with :clip",
                )

        with draft.create(file, sum(array.nbytes for array in part.values())) as sink:
            return write_tensors(sink, part, {"format": "paren", "step": str(step)}, check)

    def _pointer(self) -> tuple[str, int, list[str]] | None:
        """What `latest` says: name, highest sequence number, names of the ancestors."""
        try:
            name, newest, ancestors = self.root.read(LATEST).decode().splitlines()
            return name, int(newest), ancestors.split()
        except (OSError, ValueError):
            return None

    def _ancestors(self, checkpoint: Checkpoint) -> list[str]:
        """Names of the checkpoints that a checkpoint descends from and that still stand, the newest first.

        They are taken from `latest` where it knows the checkpoint or its parent: the manifests between may be damaged.
        """
        pointer = self._pointer()
        line = [pointer[0], *pointer[2]] if pointer else []
        parent = checkpoint.manifest.parent
        if checkpoint.folder.name in line:
            line = line[line.index(checkpoint.folder.name) + 1 :]
        elif not (self.head and self.head.manifest.id == parent and self.head.folder.name in line[:1]):
            by_id = {each.manifest.id: each for each in self.all()[0]}
            line = []
            while (old := by_id.get(parent or "")) is not None:
                line.append(old.folder.name)
                parent = old.manifest.parent
        standing = self.root.published()
        return [name for name in line if name in standing]

    def _retire(self, newest: Checkpoint) -> None:
        found, _ = self.all()
        others = [each for each in found if each.folder != newest.folder]
        for old in others[max(1, self.keep) - 1 :]:
            try:
                old.folder.remove()
            except (OSError, ParenError) as error:
                self.notice(f"the old checkpoint {old.folder} could not be deleted ({_reason(error)})")

    def _previous(self) -> list[Note]:
        if self.head is None:
            return [Note("there is no earlier checkpoint")]
        return [Note(f"the checkpoint before it, {self.head.folder}, is intact")]

    def _not_saved(self, target: Place, slots: Mapping[str, AnyArray], error: OSError) -> ParenError:
        needed, free = sum(array.nbytes for array in slots.values()), self.root.free()
        left = "an unknown number of bytes" if free is None else show_bytes(free)
        return ParenError(
            "E-CKPT-008",
            f"the checkpoint {target} could not be written ({_reason(error)}): "
            f"it needs {show_bytes(needed)}, and {left} are free",
            notes=self._previous(),
            fix="make room or make the folder writable, then continue with --resume latest",
        )


def file_of(name: str, role: str) -> str:
    """The file that holds a slot; what a node carries has one for each node."""
    if role == CARRIED:
        return f"{CARRIED}-{name.rpartition(' ')[2]}.safetensors"
    return PARAMETERS if role == "parameter" else OPTIMIZER


def newest_run(root: Place) -> str | None:
    """The id of the run that wrote last into a place, as far as its manifests can be read."""
    newest: Manifest | None = None
    for name in checkpoints_in(root):
        try:
            manifest = Manifest.read(root.child(name))
        except (Damaged, OtherFormat):
            continue
        if newest is None or manifest.sequence > newest.sequence:
            newest = manifest
    return newest.run if newest else None


def checkpoints_in(root: Place) -> list[str]:
    """The names of all checkpoints in a place, whatever their run and state."""
    return [name for name in root.published() if name[0].isdigit()]


def restore(checkpoint: Checkpoint, slots: Mapping[str, AnyArray], roles: Mapping[str, str] | None = None) -> None:
    """Fills `slots` from a checkpoint, verifying every byte on the way.

    With `roles`, the checkpoint must hold exactly these slots, beside what nodes carry; without, it must hold at least
    them. Raises E-CKPT-006 for other names, types or shapes, E-S3-* if a bucket refuses, and `Damaged`; the slots then
    hold a mixture and must be filled again.
    """
    _compare(checkpoint, slots, exact=roles is not None)
    for file, stored in checkpoint.manifest.files.items():
        wanted = {name: slots.get(name) for name, slot in checkpoint.manifest.slots.items() if slot.file == file}
        if any(array is not None for array in wanted.values()):
            _read_file(checkpoint, file, stored, wanted)


def _read_file(checkpoint: Checkpoint, file: str, stored: StoredFile, wanted: Mapping[str, AnyArray | None]) -> None:
    try:
        with checkpoint.folder.open(file) as content:
            if content.size != stored.size:
                raise Damaged(f"{file} has {count_of(content.size, 'byte')} instead of {stored.size}")
            entries, _, head = read_header(content, content.size)
            if entries.keys() != wanted.keys():
                raise Damaged(f"{file} holds other tensors than the manifest says")
            slots = checkpoint.manifest.slots
            names = sorted(entries, key=lambda name: (entries[name].begin, entries[name].end))
            for name in names:
                entry, slot = entries[name], slots[name]
                if (entry.dtype, entry.shape) != (FORMAT_NAMES.get(slot.dtype), slot.shape):
                    raise Damaged(f"tensor '{name}' of {file} has another type than the manifest says")
            tensors = read_tensors(content, (_place(wanted[name], slots[name]) for name in names))
    except FileNotFoundError:
        raise Damaged(f"{file} is missing") from None
    except MalformedFile as error:
        raise Damaged(f"{file} is no safetensors file: {error}") from error
    except OSError as error:
        raise Damaged(f"{file} is not readable ({_reason(error)})") from error
    for name, digest in zip(names, tensors, strict=True):
        if digest != slots[name].sha256:
            raise Damaged(f"the bytes of tensor '{name}' of {file} do not match their SHA-256")
    if file_digest(head, tensors) != stored.digest:
        raise Damaged(f"the header of {file} does not match the file's digest")


def _place(array: AnyArray | None, slot: StoredSlot) -> AnyArray:
    """Where the bytes of a slot go: those that nobody wants are only verified."""
    return np.empty(slot.shape, slot.dtype) if array is None else array


def _compare(checkpoint: Checkpoint, slots: Mapping[str, AnyArray], exact: bool) -> None:
    report = Report()
    stored = checkpoint.manifest.slots
    name_of = checkpoint.folder.name
    for name in sorted(slots):
        with report.collect():
            if name not in stored:
                raise ParenError("E-CKPT-006", f"checkpoint {name_of} does not hold slot '{name}'")
            array, slot = slots[name], stored[name]
            if (str(array.dtype), array.shape) != (slot.dtype, slot.shape):
                raise ParenError(
                    "E-CKPT-006",
                    f"slot '{name}' is {slot.dtype}{list(slot.shape)} in checkpoint {name_of} "
                    f"and {array.dtype}{list(array.shape)} in the program",
                )
    unknown = [name for name, slot in stored.items() if name not in slots and slot.role != CARRIED]
    for name in sorted(unknown) if exact else ():
        with report.collect():
            raise ParenError("E-CKPT-006", f"checkpoint {name_of} holds slot '{name}', which the program does not have")
    report.finish()


def _reason(error: OSError | ParenError) -> str:
    if isinstance(error, ParenError):
        return error.message
    return system_reason(error)
