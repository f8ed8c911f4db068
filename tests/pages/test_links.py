"""Links between pages, and the files that they name: whoever follows one gets there."""

import posixpath
import re
from pathlib import Path

import pytest

from tests.pages.markdown import ROOT, Page, files, pages, slug_of

README_BYTES_MAX = 9_000
PICTURE_BYTES_MAX = 100_000
INSTALLED = ("kjbod/", "agent/", "controller_stub/kjbod_controller_stub/", "systemd/")
PAGES = pages()
FILES = files()
FOLDERS = frozenset(str(parent) for name in FILES for parent in Path(name).parents)
RESULT = "tests/deep-result.md"
"""What scripts/deep writes: nothing may link to what is there only after a night."""
_ABSOLUTE = re.compile(r"[a-z]+:")
_OF_THE_PROJECT = re.compile(r"(?:\./)?(?P<path>(?:agent|controller_stub|kjbod|scripts|systemd|tests)/[\w./@+-]*)")


def resolved(page: Page, target: str) -> tuple[str, str]:
    """The file that a relative link leads to, from the root, and the anchor in it."""
    path, _, anchor = target.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(page.name), path)) if path else page.name), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_of_the_project_and_to_a_heading_in_it(page: Page) -> None:
    anchors = {each.name: each.anchors() for each in PAGES}
    broken = []
    for target in page.links():
        if _ABSOLUTE.match(target):
            continue
        path, anchor = resolved(page, target)
        if path not in FILES | FOLDERS or (anchor and anchor not in anchors.get(path, ())):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Page) -> None:
    """In backquotes, from the root of the project or from the page's own folder."""
    missing = []
    for code in page.code():
        if found := _OF_THE_PROJECT.match(code.text.removeprefix("sudo ")):
            path = found["path"].partition("::")[0].rstrip("/.")
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(page.name), path))
            if not {path, beside} & (FILES | FOLDERS):
                missing.append(str(code))
    assert missing == []


def test_every_page_is_reached_from_the_first_one() -> None:
    by_name = {page.name: page for page in PAGES}
    reached, new = {"README.md"}, ["README.md"]
    while new:
        page = by_name[new.pop()]
        targets = {resolved(page, target)[0] for target in page.links() if not _ABSOLUTE.match(target)}
        more = (targets | {f"{target}/README.md" for target in targets}) & by_name.keys() - reached
        reached |= more
        new.extend(more)
    assert by_name.keys() - reached <= {RESULT}


def test_the_first_page_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES_MAX


def test_pictures_are_small_and_are_not_installed() -> None:
    pictures = {name for name in FILES if name.endswith((".svg", ".png"))}
    assert {"scripts/story/status.svg", "scripts/story/fleet.png"} <= pictures
    shown = {resolved(page, target)[0] for page in PAGES for target in page.links()}
    for name in pictures - {name for name in pictures if name.startswith("tests/")}:
        assert name in shown
        assert (ROOT / name).stat().st_size <= PICTURE_BYTES_MAX
        assert not name.startswith(INSTALLED)


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("KIP text or shipped Kafka?", "kip-text-or-shipped-kafka"),
        ("Directories, moves and strays", "directories-moves-and-strays"),
        ("Rules: `kjbod.controller.rules`", "rules-kjbodcontrollerrules"),
        ("`kjbod metadata shell` and [dump](x.md)", "kjbod-metadata-shell-and-dump"),
    ],
)
def test_anchors_are_those_of_github(heading: str, slug: str) -> None:
    assert slug_of(heading) == slug
