"""The project's pages in Markdown: headings and their anchors, links, and the command lines that they show."""

import fnmatch
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^ {0,3}```(?P<language>[^`\n]*)\n(?P<text>.*?)^ {0,3}```[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)[ #]*$", re.MULTILINE)
_LINK = re.compile(
    r"\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+(?:\([^()]*\))?)\)|<img src=\"(?P<picture>[^\"]+)\""
)
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?P<text>.+?)(?<!`)\1(?!`)", re.DOTALL)
_PROMPT = "$ "


def files() -> frozenset[str]:
    """Files of the project, relative to its root: all but hidden ones and what ``.gitignore`` names."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    found: set[str] = set()
    for folder, folders, names in os.walk(ROOT):
        for each in (folders, names):
            each[:] = [name for name in each if not name.startswith(".") and not _matches(name, ignored)]
        found.update(str((Path(folder) / name).relative_to(ROOT)) for name in names)
    return frozenset(found)


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Command:
    """A command line that a page shows, without its prompt and comment; continued lines are one."""

    page: str
    line: int
    text: str
    section: str = ""
    """Anchor of the heading above it."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


class Page:
    """One page."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (ROOT / name).read_text()

    @property
    def prose(self) -> str:
        """The text without fenced blocks; lines stay where they are."""
        return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), self.text)

    def anchors(self) -> set[str]:
        """What GitHub makes of the headings."""
        found: dict[str, int] = {}
        for heading in _HEADING.finditer(self.prose):
            slug = slug_of(heading["text"])
            found[slug] = found.get(slug, -1) + 1
            if found[slug]:
                found[f"{slug}-{found[slug]}"] = 0
        return set(found)

    def links(self) -> Iterator[str]:
        """Targets of links and pictures."""
        for found in _LINK.finditer(_CODE.sub("`code`", self.prose)):
            yield found["target"] or found["picture"]

    def code(self) -> Iterator[Command]:
        """What stands in backquotes within the prose."""
        prose = self.prose
        for found in _CODE.finditer(prose):
            text = " ".join(found["text"].split()).replace("\\|", "|")
            yield Command(self.name, prose.count("\n", 0, found.start()) + 1, text)

    def languages(self) -> set[str]:
        """Of the fenced blocks."""
        return {found["language"] for found in _FENCE.finditer(self.text)}

    def blocks(self, language: str) -> Iterator[tuple[int, list[str]]]:
        """Number of the first line, and lines, of each fenced block of a language."""
        for found in _FENCE.finditer(self.text):
            if found["language"] == language:
                yield self.text.count("\n", 0, found.start()) + 2, found["text"].splitlines()

    def commands(self) -> Iterator[Command]:
        """Lines of ``sh`` blocks, and what follows a prompt in ``console`` blocks, which show output too."""
        for first, lines in self.blocks("sh"):
            yield from self._joined(first, lines)
        for first, lines in self.blocks("console"):
            yield from self._joined(first, [_behind_prompt(lines, number) for number in range(len(lines))])

    def _joined(self, first: int, lines: list[str]) -> Iterator[Command]:
        text, start = "", first
        for number, line in enumerate(lines, first):
            start = start if text else number
            text += line.strip()
            if text.endswith("\\"):
                text = text[:-1]
                continue
            if text and not text.startswith("#"):
                yield Command(self.name, start, text, self._section(start))
            text = ""

    def _section(self, line: int) -> str:
        above = "\n".join(self.prose.splitlines()[: line - 1])
        headings = _HEADING.findall(above)
        return slug_of(headings[-1]) if headings else ""


def _behind_prompt(lines: list[str], number: int) -> str:
    """The command in a line of a console block, or its continuation; empty: output."""
    line = lines[number]
    if line.startswith(_PROMPT):
        return line.removeprefix(_PROMPT)
    return line if number and _behind_prompt(lines, number - 1).endswith("\\") else ""


def slug_of(heading: str) -> str:
    """The anchor of a heading: lower case, without punctuation and markup, blanks as hyphens."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def pages() -> list[Page]:
    """All of them, README.md first."""
    names = sorted((name for name in files() if name.endswith(".md")), key=lambda name: (name.count("/"), name))
    return [Page(name) for name in sorted(names, key=lambda name: name != "README.md")]


def shown(page: str, *sections: str) -> list[Command]:
    """The command lines of a page, of some of its sections where they are named, in their order."""
    found = [command for command in Page(page).commands() if not sections or command.section in sections]
    assert found, f"{page}: no command lines"
    assert {command.section for command in found} >= set(sections), f"{page}: sections without command lines"
    return found
