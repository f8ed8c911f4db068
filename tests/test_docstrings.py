"""The first sentence of a docstring names its subject by its noun, or says what a function does."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kjbod", "agent", "controller_stub", "scripts")
PRONOUNS = frozenset(
    [
        "what",
        "who",
        "whoever",
        "whose",
        "whom",
        "which",
        "why",
        "when",
        "where",
        "how",
        "one",
        "same",
        "each",
        "see",
        "this",
        "that",
        "these",
        "those",
        "it",
    ]
)
"""Words that leave the reader to find out what is meant. "Whether" is none: it names a truth value."""


def documented(tree: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Docstrings of a module and of all in it, with where they stand."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(tree)
        if docstring:
            yield name, docstring
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from documented(node, f"{name}:{node.lineno} {node.name}")


def opening(docstring: str) -> str:
    words = [word.strip('.,:;"').lower() for word in docstring.split()[:2]]
    return words[1] if words[0] == "the" and words[1:] == ["same"] else words[0]


def test_no_docstring_opens_with_a_pronoun() -> None:
    sources = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(sources) > 300
    found = [
        f"{name}: {docstring.splitlines()[0]}"
        for path in sources
        for name, docstring in documented(ast.parse(path.read_text()), str(path.relative_to(ROOT)))
        if opening(docstring) in PRONOUNS
    ]
    assert found == []


@pytest.mark.parametrize(
    ("docstring", "word"),
    [
        ("What a checkpoint says.", "what"),
        ("The same, with a pause.", "same"),
        ("One: the first.", "one"),
        ("Contents of a checkpoint.", "contents"),
        ("Whether it is there.", "whether"),
    ],
)
def test_the_opening_is_the_first_word_that_tells(docstring: str, word: str) -> None:
    assert opening(docstring) == word
