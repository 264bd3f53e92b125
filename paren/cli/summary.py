"""The summary of a checked file, as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Longest list of named shapes that `check` prints; `--json` has all of them.
_LONGEST_TABLE = 12

# What is painted on a terminal: `ok`, and the names of the lines.
SUMMARY_STYLES = {r"(?<=: )ok(?=\n)": "bold green", r"(?m)^  \S+:": "cyan"}

# The same for the lowering report: the names of its lines and tables, and whether the plan fits.
REPORT_STYLES = {
    r"(?m)^(memory|stacking|time|compiling|fallbacks|patterns|graphs|regions)\b": "cyan",
    r"(?<=: )fits$": "green",
    r"(?<=: )does not fit$": "bold red",
}


def write_summary(name: str, summary: Mapping[str, object]) -> str:
    """`NAME: ok`, then one line a value; tables (name -> shape) and lists (notes) are indented below theirs."""
    lines = [f"{name}: ok"]
    width = max((len(key) for key in summary), default=0) + 2
    for key, value in summary.items():
        if value is None or value in ((), [], {}):
            continue
        if isinstance(value, Mapping):
            lines += [f"  {key}:", *_table(value)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines += [f"  {key}:", *(f"    {item}" for item in value)]
        else:
            lines.append(f"  {f'{key}:':<{width}}{_show(value)}")
    return "".join(f"{line}\n" for line in lines)


def _table(table: Mapping[object, object]) -> list[str]:
    entries = [(str(name), _show(value)) for name, value in table.items()]
    width = max(len(name) for name, _ in entries) + 2
    lines = [f"    {name:<{width}}{value}" for name, value in entries]
    if len(lines) <= _LONGEST_TABLE + 1:  # a line that says that one is left out takes the place of that one
        return lines
    half = _LONGEST_TABLE // 2
    return [*lines[:half], f"    ... {len(lines) - 2 * half} more ...", *lines[-half:]]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{' '.join(str(item) for item in value)}]"
    return str(value)
