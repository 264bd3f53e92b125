"""The store of an output root: artifacts by the digests of their recipes. Each is built once, whoever asks for it.

OUT/store/KIND/KEY/           a published artifact
OUT/store/KIND/KEY.partial/   a training that goes on or was interrupted
OUT/store/KIND/.temporary-*   what a killed build left; the next build of it, and `prune`, delete that
OUT/store/KIND/.damaged-*     what was found damaged and built again, for whoever wants to look at it
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paren.experiment.layout import PARTIAL, STORE
from paren.experiment.store.artifact import Artifact, Writer, check_name, read_artifact, read_whole, seal, writing
from paren.experiment.store.claims import Claim, waiting_for
from paren.experiment.store.recipe import KEY_DIGITS, Recipe
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.train.files import TEMPORARY, Files, temporary_sibling
from paren.train.signals import TakenOver

DAMAGED = ".damaged-"
KINDS = ("data", "model", "product")
_KEY = re.compile(rf"[0-9a-f]{{{KEY_DIGITS}}}")


@dataclass(frozen=True)
class Store:
    """The artifacts below the output root `root`. `notice` is told in a sentence of a damaged artifact that is built
    again.

    Every method that writes raises E-STORE-003 if the disk refuses, and every method that takes a recipe E-STORE-001
    if its name cannot be that of a folder.
    """

    root: Path
    files: Files = field(default_factory=Files)
    notice: Callable[[str], None] = lambda _: None

    @property
    def folder(self) -> Path:
        return self.root / STORE

    def place(self, recipe: Recipe) -> Path:
        """The folder that the artifact of a recipe has, or will have."""
        if recipe.kind == "product":
            check_name(recipe.name, "a product")
            if recipe.name in KINDS:
                raise ParenError(
                    "E-STORE-001",
                    f"a product cannot be called {recipe.name}, which is a kind of artifact",
                    fix="give it another name",
                )
        return self.folder / recipe.folder / recipe.key

    def find(self, recipe: Recipe) -> Artifact | None:
        """The artifact of a recipe, if it was published. The sizes of its files are checked. Raises E-STORE-002."""
        return read_artifact(self.place(recipe))

    def keys(self, kind: str) -> set[str]:
        """The keys of all published artifacts of a kind (data, model or a product's name). They are not read."""
        try:
            with os.scandir(self.folder / kind) as entries:
                return {entry.name for entry in entries if _KEY.fullmatch(entry.name)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def kinds(self) -> list[str]:
        """The folders that artifacts lie in, sorted: data, model and names of products."""
        try:
            with os.scandir(self.folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def build(self, recipe: Recipe, make: Callable[[Writer], Json]) -> Artifact:
        """The artifact of a recipe, made by `make` if there is none; what `make` returns is its metadata.

        Whoever asks for it meanwhile waits and gets this one. If `make` raises, nothing is left. A damaged artifact is
        moved aside, and built again.
        """
        return self._use_or(recipe, lambda held: self._build(recipe, make, held))

    def _build(self, recipe: Recipe, make: Callable[[Writer], Json], held: Claim) -> Artifact | None:
        place = self.place(recipe)
        for left in place.parent.glob(f"{TEMPORARY}{place.name}-*"):
            _delete(left)
        folder = temporary_sibling(place)
        try:
            with writing(folder):
                folder.mkdir()
            writer = Writer(folder, self.files)
            metadata = make(writer)
            return self._publish(recipe, folder, held, metadata, writer.finish())
        except BaseException:
            _delete(folder)
            raise

    def partial(self, recipe: Recipe) -> Path:
        """The folder in which a model is trained until it is published; it may not be there."""
        place = self.place(recipe)
        return place.with_name(f"{place.name}{PARTIAL}")

    def train(self, recipe: Recipe, make: Callable[[Path, Claim], Json]) -> Artifact:
        """Like `build`, in the folder `partial(recipe)`, which stays if `make` is interrupted, so that it can go on.
        Where `make` sees that its claim is another's now, it raises `TakenOver`."""

        def train(held: Claim) -> Artifact | None:
            folder = self.partial(recipe)
            with writing(folder):
                folder.mkdir(exist_ok=True)
            try:
                return self._publish(recipe, folder, held, make(folder, held))
            except TakenOver:
                return None

        return self._use_or(recipe, train)

    def _use_or(self, recipe: Recipe, make: Callable[[Claim], Artifact | None]) -> Artifact:
        """The artifact, made under its claim if it is not there; whoever waited for the claim looks again, and so does
        who lost it."""
        while (found := self._use(recipe)) is None:
            with self._claimed(recipe) as held:
                made = self._find_to_build(recipe) or make(held)
            if made is not None:
                return made
        return found

    @contextlib.contextmanager
    def _claimed(self, recipe: Recipe) -> Iterator[Claim]:
        """The claim of an artifact for the length of a block, once nobody else builds it."""
        place = self.place(recipe)
        with writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        with waiting_for(self.root, claim_name(recipe.folder, recipe.key)) as held:
            yield held

    def find_whole(self, recipe: Recipe) -> Artifact | None:
        """The artifact of a recipe, if it was published and is not found damaged."""
        return read_whole(self.place(recipe))

    def _use(self, recipe: Recipe) -> Artifact | None:
        """The artifact, if it is whole: reading one needs no claim."""
        found = self.find_whole(recipe)
        return found if found is not None and found.mark_as_used() else None

    def _find_to_build(self, recipe: Recipe) -> Artifact | None:
        """The artifact; a damaged one is moved aside. The caller has its claim."""
        try:
            found = self.find(recipe)
            if found is not None:
                found.mark_as_used()
            return found
        except ParenError as error:
            if error.code != "E-STORE-002":
                raise
            place = self.place(recipe)
            self.notice(f"{error.message}; it is built again")
            number = len(list(place.parent.glob(f"{DAMAGED}{place.name}*")))
            with writing(place):
                self.files.rename(place, place.with_name(f"{DAMAGED}{place.name}" + (f"-{number}" if number else "")))
            return None

    def _publish(
        self, recipe: Recipe, folder: Path, held: Claim, metadata: Json, allocated: Collection[str] = ()
    ) -> Artifact | None:
        """Hashes a folder of the store and gives it its name, by one rename. `allocated` are arrays made by
        `Writer.allocate`. None where another host took this one for dead, and the claim with it: the folder of a
        training is that host's now."""
        place = self.place(recipe)
        artifact = None if _is_anothers(place, held) else seal(folder, recipe, metadata, self.files, allocated)
        with writing(place):
            if artifact is None or _is_anothers(place, held):
                if not folder.name.endswith(PARTIAL):
                    _delete(folder)
                return None
            self.files.rename(folder, place)
            if recipe.kind == "model":
                self.files.sync_folder(place.parent)
        return Artifact(place, artifact.recipe, artifact.created, artifact.metadata, artifact.files)


def claim_name(kind: str, key: str) -> str:
    """The name under which the building of an artifact is claimed."""
    return f"{STORE}/{kind}/{key}"


def _is_anothers(place: Path, held: Claim) -> bool:
    """Whether another host took this one for dead, and has the claim, or is done already."""
    return held.is_lost() or place.is_dir()


def _delete(folder: Path) -> None:
    """Deletes a folder of this process' own making, as far as the system lets it: prune does the rest."""
    shutil.rmtree(folder, ignore_errors=True)
