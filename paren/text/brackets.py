"""Finds the brackets that do not match, and says where the open ones stand.

A text whose brackets match is accepted as it is, whatever its layout. Only in one whose brackets do not match is the
layout used as a hint: a form such as `(def` in the first column begins a new top-level form, so a bracket that is
still open there was left open before it. That keeps one mistake from becoming many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from paren.text.errors import Note, ParenError
from paren.text.size import count_of
from paren.text.source import Source, Span
from paren.text.tokens import CLOSE, OPEN, Token

_CLOSING = {"(": ")", "[": "]"}
_TOP_LEVEL = re.compile(r"^\((?:def|import\b)", re.MULTILINE)


def bracket_errors(source: Source, tokens: list[Token], maximum_depth: int) -> list[ParenError]:
    """The mistakes in the brackets of the tokens: E-TXT-003, E-TXT-004, E-TXT-005, E-TXT-012. None if they match."""
    brackets = [token for token in tokens if token.kind in (OPEN, CLOSE)]
    deepest, matching = _measure(source.text, brackets)
    if not matching:
        return _Diagnosis(source).run(brackets)
    if deepest is not None and deepest[0] > maximum_depth:
        span = Span(source, deepest[1], deepest[1] + 1)
        return [
            ParenError(
                "E-TXT-012",
                f"brackets nest {deepest[0]} deep here, more than {maximum_depth}",
                span,
                fix="name inner parts with `def`, `let` or a function",
            )
        ]
    return []


def _measure(text: str, brackets: list[Token]) -> tuple[tuple[int, int] | None, bool]:
    """The greatest depth with its first place, and whether the brackets match."""
    stack: list[str] = []
    depth, place = 0, 0
    for token in brackets:
        character = text[token.start]
        if token.kind == OPEN:
            stack.append(_CLOSING[character])
            if len(stack) > depth:
                depth, place = len(stack), token.start
        elif not stack or stack.pop() != character:
            return None, False
    return (depth, place), not stack


@dataclass
class _Diagnosis:
    source: Source
    errors: list[ParenError] = field(default_factory=list)

    def run(self, brackets: list[Token]) -> list[ParenError]:
        """One error for each top-level form whose brackets are wrong."""
        restarts = {match.start() for match in _TOP_LEVEL.finditer(self.source.text)}
        stack: list[Token] = []
        last_form: Span | None = None
        # After the first mistake of a top-level form its other brackets are not judged.
        silent = False
        for token in brackets:
            if token.kind == OPEN:
                if stack and token.start in restarts:
                    if not silent:
                        self._unclosed(stack, token)
                    stack.clear()
                if not stack and token.start in restarts:
                    silent = False
                stack.append(token)
            elif not stack:
                if not silent:
                    self._stray(token, last_form)
                silent = True
            else:
                opened = stack.pop()
                if not silent and _CLOSING[self._character(opened)] != self._character(token):
                    self._mismatch(opened, token)
                    silent = True
                if not stack:
                    last_form = Span(self.source, opened.start, token.end)
        if stack and not silent:
            self._unclosed(stack, None)
        return self.errors

    def _character(self, token: Token) -> str:
        return self.source.text[token.start]

    def _span(self, token: Token) -> Span:
        return Span(self.source, token.start, token.end)

    def _unclosed(self, stack: list[Token], following: Token | None) -> None:
        outermost = stack[0]
        closing = "".join(_CLOSING[self._character(token)] for token in reversed(stack[-8:]))
        notes = [Note(f"`{self._character(token)}` inside it is open too", self._span(token)) for token in stack[1:4]]
        if len(stack) > 4:
            notes.append(
                Note(
                    count_of(len(stack) - 4, "further bracket inside it is", "further brackets inside it are")
                    + " open too"
                )
            )
        fix = f"write `{closing}` at its end"
        if following is not None:
            line, _ = self.source.position(following.start)
            fix = f"write `{closing}` before line {line}, where the next form begins"
        if len(stack) > 8:
            fix = f"close its {len(stack)} brackets"
        self.errors.append(
            ParenError(
                "E-TXT-003",
                f"`{self._character(outermost)}` is not closed",
                self._span(outermost),
                notes=notes,
                fix=fix,
            )
        )

    def _stray(self, token: Token, last_form: Span | None) -> None:
        notes = []
        if last_form is not None:
            start, _ = self.source.position(last_form.start)
            last = Span(self.source, last_form.end - 1, last_form.end)
            notes = [Note(f"the form before it, which begins on line {start}, is already closed", last)]
        character = self._character(token)
        self.errors.append(
            ParenError(
                "E-TXT-004",
                f"`{character}` closes nothing",
                self._span(token),
                notes=notes,
                fix="delete it, or write the bracket that opens the form",
            )
        )

    def _mismatch(self, opened: Token, token: Token) -> None:
        opening = self._character(opened)
        self.errors.append(
            ParenError(
                "E-TXT-005",
                f"`{self._character(token)}` does not close `{opening}`",
                self._span(token),
                notes=[Note(f"`{opening}` stands here", self._span(opened))],
                fix=f"close it with `{_CLOSING[opening]}`",
            )
        )
