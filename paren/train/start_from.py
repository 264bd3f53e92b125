"""First weights from an existing safetensors file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

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
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            entries, _, _ = read_header(file, size)
            sources = _match(path, entries, {parameter: name for name, parameter in names}, parameters, span)
            read_places(file, [(entries[name].begin, parameters[parameter]) for parameter, name in sources.items()])
    except OSError as error:
        reason = f"the weights {path} cannot be read ({system_reason(error)})"
        raise ParenError("E-START-001", reason, span, fix=FIX) from error
    except MalformedFile as error:
        raise ParenError("E-START-001", f"{path} is no safetensors file: {error}", span, fix=FIX) from error
    return sorted(entries.keys() - set(sources.values()))


def _match(
    path: Path,
    entries: Mapping[str, Entry],
    renamed: Mapping[str, str],
    parameters: Mapping[str, AnyArray],
    span: Span | None,
) -> dict[str, str]:
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
