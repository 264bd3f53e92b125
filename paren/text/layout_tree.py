"""What the formatter lays out: forms as written, with their comments and line breaks attached."""

from __future__ import annotations

from dataclasses import dataclass, field

from paren.text.source import Source
from paren.text.tokens import BLOCK_COMMENT, CLOSE, COMMENT, OPEN, Token

WIDTH = 100
CLOSING = {"(": ")", "[": "]"}

# How many arguments stand on the first line, behind the name, when the form is broken over lines.
HEADERS = {
    "defmodel": 2,
    "defrun": 0,
    "defsweep": 0,
    "defcohort": 0,
    "defgrid": 0,
    "let": 1,
    "fn": 1,
    "fold": 2,
    "scope": 1,
}
# Forms whose body is a row of short settings: several stand on one line.
FILLED = ("defvariant", "defsweep", "defcohort", "defgrid")


@dataclass(frozen=True)
class Comment:
    text: str
    to_end_of_line: bool
    blank_before: bool

    @property
    def fits_on_a_line(self) -> bool:
        """True where something may follow it on its line."""
        return not self.to_end_of_line and "\n" not in self.text


@dataclass
class Item:
    """An atom, a string or a bracketed form; `bracket` is empty for the first two, `text` for the last.

    `flat` is the whole item on one line, or None if it must not or cannot stand on one.
    """

    text: str = ""
    bracket: str = ""
    children: list[Item] = field(default_factory=list)
    comments_before: list[Comment] = field(default_factory=list)
    comments_after: list[Comment] = field(default_factory=list)
    comments_inside: list[Comment] = field(default_factory=list)
    newline_before: bool = False
    blank_before: bool = False
    flat: str | None = None

    @property
    def head(self) -> str:
        """The name a form begins with, or nothing."""
        if self.bracket != "(" or not self.children:
            return ""
        first = self.children[0].text
        return first if first[:1] not in (":", '"', "") and not first[:1].isdigit() else ""

    @property
    def is_keyword(self) -> bool:
        return self.text[:1] == ":"

    @property
    def begins_line(self) -> bool:
        return self.newline_before or bool(self.comments_before)

    def header_length(self) -> int:
        """How many children stand on the first line of a `def`-like form, its name included; 0 for other forms."""
        head = self.head
        if head not in HEADERS and not head.startswith("def"):
            return 0
        length = 1 + HEADERS.get(head, 1)
        for position, child in enumerate(self.children[:length]):
            if child.is_keyword:
                return position
        return min(length, len(self.children))


def build_tree(source: Source, tokens: list[Token]) -> Item:
    """The top-level items as children of one item without brackets. The brackets of the text are known to match."""
    text = source.text
    current = Item()
    stack: list[Item] = []
    pending: list[Comment] = []
    end = 0
    for token in tokens:
        newlines = text.count("\n", end, token.start)
        written = text[token.start : token.end]
        if token.kind in (COMMENT, BLOCK_COMMENT):
            line = token.kind == COMMENT
            comment = Comment(written.rstrip() if line else written, line, newlines >= 2)
            if newlines == 0 and current.children and not pending:
                current.children[-1].comments_after.append(comment)
            else:
                pending.append(comment)
        elif token.kind == CLOSE:
            current.comments_inside, pending = pending, []
            current.flat = _flatten(current)
            current = stack.pop()
        else:
            item = Item(comments_before=pending, newline_before=newlines > 0, blank_before=newlines >= 2)
            pending = []
            current.children.append(item)
            if token.kind == OPEN:
                item.bracket = written
                stack.append(current)
                current = item
            else:
                item.text = item.flat = written
        end = token.end
    current.comments_inside = pending
    return current


def flat_with_comments(item: Item) -> str | None:
    """The item on one line with the comments that stand behind it, or None."""
    if item.flat is None or not all(comment.fits_on_a_line for comment in item.comments_after):
        return None
    return " ".join([item.flat, *(comment.text for comment in item.comments_after)])


def _flatten(item: Item) -> str | None:
    if item.comments_inside or any(child.comments_before for child in item.children):
        return None
    header = item.header_length()
    if 0 < header < len(item.children) and item.head not in FILLED and item.children[header].begins_line:
        return None
    pieces = []
    for child in item.children:
        piece = flat_with_comments(child)
        if piece is None:
            return None
        pieces.append(piece)
    flat = f"{item.bracket}{' '.join(pieces)}{CLOSING[item.bracket]}"
    return flat if len(flat) <= WIDTH else None
