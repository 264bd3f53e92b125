"""A strict reader of a report: every element closed in order, and what it shows and refers to."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br"}


class Page(HTMLParser):
    """The page's elements with their attributes, in order; its text by element; its problems."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"{tag} is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.problems.append(f"{tag} has an attribute twice")
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"{tag} is closed and was not open")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """The attributes of the elements of a kind; `class_="line"` and the like choose some of them."""
        return [
            found
            for name, found in self.elements
            if name == tag and all(value in found.get(key.rstrip("_"), "").split() for key, value in attributes.items())
        ]

    def text(self, *, outside: tuple[str, ...] = ("style", "script")) -> str:
        """What a reader sees."""
        return " ".join(data for tag, data in self.texts if tag not in outside)

    def sections(self) -> list[str]:
        return [found["id"] for found in self.all("section")]


def check(text: str) -> Page:
    """The page, sound: closed elements, unique ids, and references only to itself or to data within it."""
    page = Page(text)
    assert page.problems == []
    identifiers = [found["id"] for _, found in page.elements if "id" in found]
    assert len(identifiers) == len(set(identifiers))
    for tag, found in page.elements:
        assert tag not in ("link", "iframe", "object", "base", "form")
        assert "src" not in found or found["src"].startswith("data:image/")
        assert "href" not in found or found["href"][1:] in identifiers
        assert not any(name.startswith("on") for name in found)
    assert len(page.all("script")) == len(page.all("style")) == 1
    return page
