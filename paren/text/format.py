"""Lays a text out in one stable style: `paren format`.

A form stands on one line if it fits; a `def`-like form, `let`, `fn`, `fold` or `scope` whose body was written on a
line of its own keeps it there. Broken forms indent by two, or align under their first argument; `:key value` pairs
stand one on a line with the values aligned. Comments stay where they are, literals as they were written, and at most
one blank line stands between two lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paren.text.errors import InternalError, ParenError
from paren.text.layout_tree import CLOSING, FILLED, WIDTH, Comment, Item, build_tree, flat_with_comments
from paren.text.reader import read
from paren.text.source import Source
from paren.text.tokens import scan

_INDENT = 2
# Longest name under whose first argument the others are aligned, and the last column where that is done.
_LONGEST_ALIGNED_NAME = 12
_LAST_ALIGNED_COLUMN = 60
_LONGEST_PADDED_NAME = 16


def format_source(source: Source) -> str:
    """The text in paren's style. Reading it gives the same forms; formatting it again changes nothing.

    Raises the reader's errors (E-TXT-003 to E-TXT-012) for a text that cannot be read.
    """
    read(source)
    result = _write(_lay_out_file(build_tree(source, scan(source, []))))
    if _pieces(Source(source.name, result)) != _pieces(source):
        raise InternalError("format", f"the layout of {source.name} changed its content")
    return result


def _pieces(source: Source) -> list[str]:
    errors: list[ParenError] = []
    return [source.text[token.start : token.end].rstrip() for token in scan(source, errors)]


@dataclass
class _Line:
    """`comment` runs to the end of the line; the comments of neighbouring lines are aligned."""

    text: str
    comment: str = ""


@dataclass(frozen=True)
class _Row:
    """Children that stand on one line; keywords with a value behind them are padded to `pad` characters."""

    items: list[Item]
    indent: int
    pad: int = 0


@dataclass
class _Lines:
    lines: list[_Line] = field(default_factory=list)

    @property
    def column(self) -> int:
        return len(self.lines[-1].text)

    def begin(self, indent: int, *, blank: bool) -> None:
        """Starts a line, after an empty one if `blank`; nothing precedes the first line of a file."""
        if blank and self.lines:
            self.lines.append(_Line(""))
        self.lines.append(_Line(" " * indent))

    def add_comments_above(self, comments: list[Comment], indent: int, *, first: bool) -> None:
        for position, comment in enumerate(comments):
            self.begin(indent, blank=comment.blank_before and not (first and position == 0))
            self._add_text(comment.text)

    def add_comments_behind(self, comments: list[Comment]) -> None:
        for comment in comments:
            if comment.to_end_of_line:
                self.lines[-1].comment = comment.text
            else:
                self._add_text(f" {comment.text}")

    def add_item(self, item: Item, tail: int, pad: int) -> None:
        """Appends the item at the current column; `tail` closing brackets will follow on its last line."""
        laid = _lay_out(item, self.column, tail, pad)
        self.lines[-1].text += laid[0].text
        self.lines[-1].comment = laid[0].comment
        self.lines += laid[1:]

    def _add_text(self, text: str) -> None:
        first, *further = text.split("\n")
        self.lines[-1].text += first
        self.lines += [_Line(line) for line in further]


def _lay_out_file(root: Item) -> list[_Line]:
    lines = _Lines()
    previous: Item | None = None
    for item in root.children:
        flat = flat_with_comments(item)
        joins = (
            previous is not None
            and not item.begins_line
            and flat is not None
            and flat_with_comments(previous) is not None
            and lines.column + 2 + len(flat) <= WIDTH
        )
        if joins:
            lines.lines[-1].text += "  "
        else:
            lines.add_comments_above(item.comments_before, 0, first=previous is None)
            lines.begin(0, blank=item.blank_before)
        lines.add_item(item, 0, 0)
        lines.add_comments_behind(item.comments_after)
        previous = item
    lines.add_comments_above(root.comments_inside, 0, first=previous is None)
    return lines.lines


def _lay_out(item: Item, column: int, tail: int, pad: int) -> list[_Line]:
    """The lines of an item that begins at `column`; the first one without its indentation.

    `pad` is the width of the name in a list of pairs whose values are aligned.
    """
    if item.flat is not None:
        flat = item.flat
        if pad:
            name = item.children[0].text
            flat = f"{item.bracket}{name.ljust(pad)}{flat[1 + len(name) :]}"
        if not item.bracket or column + len(flat) + tail <= WIDTH:
            return [_Line(flat)]
    rows = _arrange(item, column, tail)
    # The first line carries spaces for its column, so that columns can be counted; they are cut off at the end.
    lines = _Lines([_Line(" " * column + item.bracket)])
    child_pad = _pair_pad(item)
    indent = column + 1
    behind_comment = False
    for row_number, row in enumerate(rows):
        indent = row.indent
        for position, child in enumerate(row.items):
            first = row_number == 0 and position == 0
            if child.comments_before or behind_comment or (position == 0 and not first):
                lines.add_comments_above(child.comments_before, indent, first=first)
                lines.begin(indent, blank=child.blank_before and not (first and not child.comments_before))
            elif position > 0:
                before = row.items[position - 1]
                gap = row.pad - len(before.text) if before.is_keyword else 0
                if pad and row_number == 0 and position == 1:
                    gap = pad - len(before.text)
                lines.lines[-1].text += " " * (1 + max(0, gap))
            last = row_number == len(rows) - 1 and position == len(row.items) - 1
            lines.add_item(child, tail + 1 if last else 0, child_pad)
            lines.add_comments_behind(child.comments_after)
            behind_comment = bool(child.comments_after) and flat_with_comments(child) is None
            behind_comment = behind_comment or (child.flat is None and position < len(row.items) - 1)
    lines.add_comments_above(item.comments_inside, indent, first=not rows)
    if item.comments_inside or lines.lines[-1].comment:
        lines.begin(indent, blank=False)
    lines.lines[-1].text += CLOSING[item.bracket]
    lines.lines[0].text = lines.lines[0].text[column:]
    return lines.lines


def _arrange(item: Item, column: int, tail: int) -> list[_Row]:
    """Which children stand on which line when the item does not stand on one."""
    children = item.children
    head = item.head
    if not children:
        return []
    if not head:
        if all(child.flat is not None and not child.bracket for child in children):
            return _fill(children, column + 1, tail)
        return _pairs(children, column + 1)
    header = item.header_length()
    if header:
        body, indent = children[header:], column + _INDENT
        rows = _fill(body, indent, tail) if head in FILLED else _pairs(body, indent)
        return [_Row(children[:header], indent), *rows]
    return _arrange_call(item, column)


def _arrange_call(item: Item, column: int) -> list[_Row]:
    children = item.children
    first_keyword = next((index for index, child in enumerate(children) if child.is_keyword), len(children))
    aligned = column + 1 + len(item.head) + 1
    if 1 < first_keyword < len(children) and _fits(children[:first_keyword], column + 1):
        return [_Row(children[:first_keyword], column + _INDENT), *_pairs(children[first_keyword:], column + _INDENT)]
    if len(item.head) > _LONGEST_ALIGNED_NAME or aligned > _LAST_ALIGNED_COLUMN or len(children) == 1:
        return [_Row(children[:1], column + _INDENT), *_pairs(children[1:], column + _INDENT)]
    first, *further = _pairs(children[1:], aligned)
    return [_Row([children[0], *first.items], aligned, first.pad), *further]


def _fits(children: list[Item], column: int) -> bool:
    """Whether the children fit on one line; a comment to the end of the line may stand behind the last."""
    pieces = [*(flat_with_comments(child) for child in children[:-1]), children[-1].flat]
    known = [piece for piece in pieces if piece is not None]
    unbroken = len(known) == len(pieces) and not any(child.comments_before for child in children)
    return unbroken and column + len(" ".join(known)) <= WIDTH


def _pairs(children: list[Item], indent: int) -> list[_Row]:
    """One row for each child, or for each `:key value`; a keyword without a value is a flag."""
    groups: list[list[Item]] = []
    for child in children:
        key = groups[-1][0] if groups and len(groups[-1]) == 1 else None
        if (
            key is not None
            and key.is_keyword
            and not child.is_keyword
            and not key.comments_after
            and not child.comments_before
        ):
            groups[-1].append(child)
        else:
            groups.append([child])
    pad = max((len(group[0].text) for group in groups if len(group) == 2), default=0)
    return [_Row(group, indent, pad) for group in groups]


def _fill(children: list[Item], indent: int, tail: int) -> list[_Row]:
    """As many children on each line as fit."""
    rows: list[_Row] = []
    column = indent
    previous: Item | None = None
    for position, child in enumerate(children):
        flat = flat_with_comments(child)
        reserve = tail + 1 if position == len(children) - 1 else 0
        joins = (
            previous is not None
            and flat is not None
            and flat_with_comments(previous) is not None
            and not child.comments_before
            and column + 1 + len(flat) + reserve <= WIDTH
        )
        if joins:
            rows[-1].items.append(child)
            column += 1 + len(flat or "")
        else:
            rows.append(_Row([child], indent))
            column = indent + len(flat or "")
        previous = child
    return rows


def _pair_pad(item: Item) -> int:
    """The common width of the names in a list of `(name value)` pairs, or 0 where they are not aligned."""
    if item.head or item.bracket != "(" or len(item.children) < 2:
        return 0
    widths = []
    for child in item.children:
        name = child.children[0] if len(child.children) == 2 else None
        if child.bracket != "(" or name is None or not name.text or name.is_keyword or name.comments_after:
            return 0
        widths.append(len(name.text))
    return max(widths) if max(widths) <= _LONGEST_PADDED_NAME else 0


def _write(lines: list[_Line]) -> str:
    """The text of the lines; the comments behind neighbouring lines begin in one column."""
    written: list[str] = []
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and lines[end].comment:
            end += 1
        if end == start:
            written.append(lines[start].text)
            start += 1
            continue
        column = max(len(line.text) for line in lines[start:end]) + 2
        written += [f"{line.text.ljust(column)}{line.comment}" for line in lines[start:end]]
        start = end
    return "".join(f"{line}\n" for line in written)
