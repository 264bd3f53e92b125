"""First weights from an existing safetensors file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from paren.ir.types import TensorType
from paren.runtime.array import AnyArray
from paren.text.errors import ParenError, Report, did_you_mean, system_reason
from paren.text.source import Span
from paren.train.tensor_file import FORMAT_NAMES, Entry, MalformedFile, read_header, read_places

FIX = "name a safetensors file, such as best/parameters-STEP.safetensors of a run"


def load_weights(
    path: Path, names: Iterable[tuple[str, str]], parameters: Mapping[str, AnyArray], span: Span | None
) -> list[str]:
    """Fills every parameter from a safetensors file; returns the names in the file that no parameter took.

    `names`: (name in the file, parameter) pairs where they differ. Raises E-START-001 if the file cannot be read,
    else E-START-002 for each parameter or pair that does not fit, all at once, before any parameter is changed.
    """
    with _opened(path, span) as (file, entries):
        sources = _match(path, entries, names, parameters, span)
        read_places(file, [(entries[name].begin, parameters[parameter]) for parameter, name in sources.items()])
    return sorted(entries.keys() - set(sources.values()))


def check_weights(
    path: Path, names: Iterable[tuple[str, str]], types: Mapping[str, TensorType], span: Span | None
) -> None:
    """Raises what `load_weights` would raise for parameters of these types, as far as the file's header shows it."""
    with _opened(path, span) as (_, entries):
        _match(path, entries, names, types, span)


@contextmanager
def _opened(path: Path, span: Span | None) -> Iterator[tuple[BinaryIO, Mapping[str, Entry]]]:
    """The file with what its header lists. Raises E-START-001, also for what is found wrong while it is read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            yield file, read_header(file, size)[0]
    except OSError as error:
        reason = f"the weights {path} cannot be read ({system_reason(error)})"
        raise ParenError("E-START-001", reason, span, fix=FIX) from error
    except MalformedFile as error:
        raise ParenError("E-START-001", f"{path} is no safetensors file: {error}", span, fix=FIX) from error


def _match(
    path: Path,
    entries: Mapping[str, Entry],
    names: Iterable[tuple[str, str]],
    parameters: Mapping[str, AnyArray] | Mapping[str, TensorType],
    span: Span | None,
) -> dict[str, str]:
    """The tensor of the file that each parameter takes."""
    renamed = {parameter: name for name, parameter in names}
    report = Report()
    for parameter in renamed:
        with report.collect():
            if parameter not in parameters:
                raise ParenError(
                    "E-START-002",
                    f"the program has no parameter '{parameter}'{did_you_mean(parameter, parameters)}",
                    span,
                )
    sources = {}
    for parameter, array in parameters.items():
        name = renamed.get(parameter, parameter)
        with report.collect():
            if name not in entries:
                raise ParenError(
                    "E-START-002",
                    f"{path} holds no tensor '{name}' for parameter '{parameter}'{did_you_mean(name, entries)}",
                    span,
                    fix="name the tensor of each parameter that is called otherwise in the file",
                )
            entry = entries[name]
            expected = FORMAT_NAMES[str(array.dtype)]
            if (entry.dtype, entry.shape) != (expected, array.shape):
                raise ParenError(
                    "E-START-002",
                    f"tensor '{name}' of {path} is {entry.dtype}{list(entry.shape)}, "
                    f"and parameter '{parameter}' is {expected}{list(array.shape)}",
                    span,
                )
            sources[parameter] = name
    report.finish()
    return sources
