"""Finding the checkpoint to go on from, and going on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paren.runtime.array import AnyArray
from paren.text.brevity import tell_apart
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.json import Json
from paren.train.checkpoint import Checkpoint, CheckpointStore, checkpoints_in, restore
from paren.train.manifest import FILE, FORMAT, Damaged, Manifest, OtherFormat
from paren.train.places.open import open_place
from paren.train.places.place import Place

EXCHANGE = "gradients between nodes"
LAYOUT = ("ranks", "nodes", EXCHANGE)  # what identities say about ranks


@dataclass(frozen=True)
class Candidates:
    """Checkpoints to try in this order. `fallback`: whether the next may stand in for a damaged one.

    `unreadable`: name -> reason, of those that are no candidates because their manifest says nothing.
    """

    checkpoints: Sequence[Checkpoint]
    unreadable: Mapping[str, str]
    fallback: bool
    allow_new_layout: bool = False


def find_checkpoints(store: CheckpointStore, wanted: str, allow_new_layout: bool) -> Candidates:
    """What `--resume WANTED` may continue from; empty only for `auto`.

    Raises E-CKPT-001 if there is none, E-CKPT-002 if the named one does not exist, E-CKPT-003 if its manifest is
    damaged, E-CKPT-004 for another program, E-CKPT-005 for another format, E-CKPT-007 for another device or layout,
    E-CKPT-010 if all are damaged, E-DP-002 for other ranks.
    """
    if wanted not in ("auto", "latest"):
        checkpoint = _named(store, wanted)
        _check_fit(store, checkpoint, allow_new_layout)
        return Candidates([checkpoint], {}, False, allow_new_layout)
    found, unreadable = store.lineage()
    if not found and unreadable:
        raise all_damaged(store, unreadable)
    if not found and wanted == "latest":
        raise ParenError(
            "E-CKPT-001",
            f"{store.root} holds no checkpoint to resume from",
            fix="--resume auto starts if there is nothing to resume, --overwrite starts anew",
        )
    if found:
        _check_fit(store, found[0], allow_new_layout)
    return Candidates(found, unreadable, True, allow_new_layout)


def stored_identity(store: CheckpointStore, wanted: str) -> Mapping[str, Json] | None:
    """The identity of the checkpoint that `--resume WANTED` would go on from, None if there is none. Raises what
    `find_checkpoints` does for a named one."""
    if wanted not in ("auto", "latest"):
        return _named(store, wanted).manifest.identity
    found, _ = store.lineage()
    return found[0].manifest.identity if found else None


def restore_newest(
    store: CheckpointStore,
    candidates: Candidates,
    slots: Mapping[str, AnyArray],
    roles: Mapping[str, str],
    also: Callable[[Checkpoint], None] = lambda _: None,
) -> Checkpoint:
    """Fills the slots from the first candidate that is whole, and says which were not. `also` reads what else it holds.

    Raises E-CKPT-003 (the named one) or E-CKPT-010 (all of them) if none is, E-CKPT-006 for other slots, E-CKPT-007 if
    the one that is left is of another device or layout.
    """
    broken = {}
    for checkpoint in candidates.checkpoints:
        name = checkpoint.folder.name
        try:
            restore(checkpoint, slots, roles)
            also(checkpoint)
        except Damaged as damage:
            if not candidates.fallback:
                raise damaged(checkpoint.folder, str(damage)) from damage
            broken[name] = str(damage)
            continue
        for other, reason in sorted({**candidates.unreadable, **broken}.items()):
            if other > name:
                store.notice(f"checkpoint {other} is damaged ({reason}), going back to {name}")
        if checkpoint is not candidates.checkpoints[0]:
            _check_fit(store, checkpoint, candidates.allow_new_layout)
        store.follow(checkpoint)
        return checkpoint
    raise all_damaged(store, {**candidates.unreadable, **broken})


def is_in(root: Place, wanted: str) -> bool:
    """Whether `--resume WANTED` means a checkpoint in a place."""
    if wanted in ("auto", "latest") or wanted.isdigit():
        return True
    named = open_place(wanted)
    return named == root.child(named.name)


def _named(store: CheckpointStore, wanted: str) -> Checkpoint:
    folder = store.root.child(f"{int(wanted):06d}") if wanted.isdigit() else open_place(wanted)
    there = folder.exists()
    if not there or not any(name == FILE or name.endswith(".safetensors") for name in folder.files()):
        present = checkpoints_in(store.root)
        near = did_you_mean(folder.name, present)
        raise ParenError(
            "E-CKPT-002",
            f"{folder} is no checkpoint" if there else f"there is no checkpoint {folder}{near}",
            notes=[Note(f"{store.root} holds {', '.join(present) if present else 'none'}")],
        )
    try:
        return Checkpoint(folder, Manifest.read(folder))
    except Damaged as damage:
        raise damaged(folder, str(damage)) from damage
    except OtherFormat as other:
        raise ParenError(
            "E-CKPT-005",
            f"the checkpoint {folder} is of format {other}, and this paren reads format {FORMAT}",
            fix="resume it with the version of paren that wrote it",
        ) from other


def _check_fit(store: CheckpointStore, checkpoint: Checkpoint, allow_new_layout: bool) -> None:
    manifest = checkpoint.manifest
    if manifest.program != store.program:
        raise ParenError(
            "E-CKPT-004",
            f"the checkpoint {checkpoint.folder} is of another experiment "
            f"({manifest.program[:12]} instead of {store.program[:12]})",
            fix="resume with the file, settings and data it was trained with; "
            "to start from its weights, use :from with its parameters.safetensors",
        )
    if manifest.identity == store.identity:
        return
    differences = ", ".join(tell_differences(manifest.identity, store.identity, "there", "here"))
    if not allow_new_layout:
        layout = [name for name in LAYOUT if manifest.identity.get(name) != store.identity.get(name)]
        if layout:
            same = "with the same PAREN_NODE_GRADIENTS" if layout == [EXCHANGE] else "on as many ranks and nodes"
            raise ParenError(
                "E-DP-002",
                f"going on from {checkpoint.folder} would not be bit-exact: {differences}",
                fix=f"resume {same}, or accept other bits with --allow-new-layout",
            )
        raise ParenError(
            "E-CKPT-007",
            f"going on from {checkpoint.folder} would not be bit-exact: {differences}",
            fix="resume on the same device and layout, or accept other bits with --allow-new-layout",
        )
    store.notice(f"not bit-exact: {differences}")


def tell_differences(one: Mapping[str, Json], other: Mapping[str, Json], there: str, here: str) -> Iterator[str]:
    """What differs between two identities, by name: `stacking 8 there and 4 here`; of what consists of parts, each
    part that differs."""
    for name in sorted(one.keys() | other.keys()):
        values = one.get(name), other.get(name)
        if values[0] == values[1]:
            continue
        if all(value is None or isinstance(value, dict) for value in values):
            parts, others = (value if isinstance(value, dict) else {} for value in values)
            yield from (f"{name}: {text}" for text in tell_differences(parts, others, there, here))
        else:
            shown = tell_apart(_show(name, one), _show(name, other))
            yield f"{name} {shown[0]} {there} and {shown[1]} {here}"


def _show(name: str, identity: Mapping[str, Json]) -> str:
    """A part of an identity in words; one of one node does not say so."""
    return str(identity.get(name, 1 if name == "nodes" else "none"))


def damaged(folder: Place, reason: str) -> ParenError:
    """E-CKPT-003 for a checkpoint that was asked for."""
    return ParenError(
        "E-CKPT-003",
        f"the checkpoint {folder} is damaged: {reason}",
        fix="resume from another one; --resume latest takes the newest that is whole",
    )


def all_damaged(store: CheckpointStore, reasons: Mapping[str, str]) -> ParenError:
    """E-CKPT-010, with the reason for each checkpoint (by name)."""
    return ParenError(
        "E-CKPT-010",
        f"no checkpoint in {store.root} is whole",
        notes=[Note(f"{name}: {reason}") for name, reason in sorted(reasons.items())],
        fix="--overwrite starts anew",
    )
