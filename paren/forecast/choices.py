"""What earlier runs chose because it was fastest, remembered in the cache folder: small numbers by a key, such as a
degree of stacking, or how many steps a product and the kernel after it are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from paren.ir.program import Program
from paren.ir.show import show_graph
from paren.text.json import parse_json
from paren.train.files import Files, json_bytes, write_atomically

FILE = "choices.json"
MOST = 1000  # choices that are kept; the oldest go first


def choice_key(program: Program, *device: object) -> str:
    """What a choice holds for: the loss of one microbatch, their number, and the device as far as its speed goes (kind,
    target, threads, versions)."""
    graph = show_graph(program.loss, spans=False)
    return sha256(repr((graph, program.run.microbatches, device)).encode()).hexdigest()


def form_key(form: str, *device: object) -> str:
    """The same for how a form of products is computed: its digest, and the device."""
    return sha256(repr((form, device)).encode()).hexdigest()


def recall(folder: Path, key: str, notice: Callable[[str], None]) -> int | None:
    """The number that was remembered, if there is one. A file that cannot be understood is said, and holds none."""
    return recall_all(folder, [key], notice).get(key)


def recall_all(folder: Path, keys: Collection[str], notice: Callable[[str], None]) -> dict[str, int]:
    """The same for several, those that were remembered by their keys."""
    kept = _read(folder, notice) if keys else {}
    found = {key: kept.get(key) for key in keys}
    return {key: n for key, n in found.items() if isinstance(n, int) and not isinstance(n, bool) and n > 0}


def remember(folder: Path, key: str, number: int) -> None:
    """Adds a choice to the file. What another process adds at the same moment may be lost: it chooses again."""
    kept = {name: value for name, value in _read(folder, _ignore).items() if name != key}
    newest = dict(list(kept.items())[-(MOST - 1) :]) | {key: number}
    with suppress(OSError):  # a folder that cannot be written costs the next start a choice, nothing else
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(Files(), folder / FILE, json_bytes(newest, indent=1), durable=False)


def _read(folder: Path, notice: Callable[[str], None]) -> dict[str, object]:
    path = folder / FILE
    try:
        content = parse_json(path.read_bytes())
        if isinstance(content, dict):
            return content
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        pass
    notice(f"{path} is damaged, so its choices are made again")
    return {}


def _ignore(_: str) -> None:
    """The damage has been told already, when the choice was looked for."""
