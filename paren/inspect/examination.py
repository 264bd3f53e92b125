"""What the doctor found: rows, as a table or as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

PASS, FAIL, NOTE = "PASS", "FAIL", "NOTE"


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    `state` is PASS, FAIL (paren cannot train on this machine) or NOTE (it can, with less); the last two have a code.
    """

    name: str
    state: str
    detail: str
    code: str | None = None


@dataclass(frozen=True)
class Examination:
    """All rows, in the order of the table."""

    rows: tuple[Row, ...]

    @property
    def usable(self) -> bool:
        """Whether the CPU can be used for training."""
        return all(row.state != FAIL for row in self.rows)

    @property
    def data(self) -> dict[str, object]:
        """The rows as plain values, for JSON."""
        return {"usable": self.usable, "rows": [asdict(row) for row in self.rows]}

    def table(self) -> Table:
        """The rows as a table; what did not pass is named by its code, which `paren help CODE` explains."""
        from rich.table import Table  # drawn on request only
        from rich.text import Text

        table = Table("check", "result", "detail", box=None, pad_edge=False)
        colours = {PASS: "green", FAIL: "red", NOTE: "yellow"}
        for row in self.rows:
            table.add_row(row.name, Text(row.code or row.state, colours[row.state]), Text(row.detail))
        return table
