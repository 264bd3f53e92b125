"""What stands for an imported package that is not beside the experiment: its version, or where none tells, its code."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata, util
from pathlib import Path

from paren.text.json import parse_json

_CODE = (".py", ".so", ".pyd")


@cache
def version_of(package: str) -> str | None:
    """The version of a package, by the name it is imported by. None for the standard library, and for what is not
    there. An installation that may be edited, or a module on the search path that was never installed, has a digest of
    its code, and of what that imports in the same way.

    It is found once in a process, as modules are imported once.
    """
    if package in sys.stdlib_module_names:
        return None
    named = _distributions(package)
    versions = [each.version for each in named]
    if not named or any(map(_is_edited, named)):
        versions += _code(package)
    return ", ".join(versions) or None


def _distributions(package: str) -> list[metadata.Distribution]:
    """Those that a name is installed by; several for one that packages share."""
    with suppress(metadata.PackageNotFoundError):
        return [metadata.distribution(package)]
    return [metadata.distribution(name) for name in sorted(set(_installed().get(package, ())))]


@cache
def _installed() -> dict[str, list[str]]:
    return {name: list(found) for name, found in metadata.packages_distributions().items()}


def _is_edited(distribution: metadata.Distribution) -> bool:
    """Whether it was installed as a link to a folder that is worked in (`pip install -e`)."""
    try:
        return bool(parse_json(distribution.read_text("direct_url.json") or "{}")["dir_info"]["editable"])
    except (ValueError, KeyError, TypeError):
        return False


def _code(package: str) -> list[str]:
    """A digest of the code of a package and of all that it imports and no version stands for; empty without code."""
    content = hashlib.sha256()
    waiting, seen = [package], {package}
    while waiting:
        for name, path in _files(waiting.pop(0)):
            text = path.read_bytes()
            content.update(f"{name}\n{len(text)}\n".encode() + text)
            for each in sorted(_imported(path, text) - seen - sys.stdlib_module_names):
                seen.add(each)
                if not _distributions(each):
                    waiting.append(each)
    return [content.hexdigest()[:24]] if content.digest() != hashlib.sha256().digest() else []


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """The files of a package's code, with their names from the place where it is found."""
    try:
        spec = util.find_spec(package)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and Path(spec.origin).is_file():
            yield Path(spec.origin).name, Path(spec.origin)
        return
    for place in sorted(spec.submodule_search_locations):
        for path in sorted(Path(place).rglob("*")):
            if path.suffix in _CODE and path.is_file():
                yield f"{package}/{path.relative_to(place).as_posix()}", path


def _imported(path: Path, text: bytes) -> set[str]:
    """The first names of the modules that a file imports."""
    if path.suffix != ".py":
        return set()
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.partition(".")[0] for name in named}
