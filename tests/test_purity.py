"""Purity is the rule: only the modules that ``[tool.kjbod.purity]`` in pyproject.toml lists as shells may touch the
event loop, files, clocks, randomness, threads, logging or other processes, or keep state of their own.

What a pure module imports is on a list too, so that a library that nobody has thought of yet makes a shell of it.
Imports for the type checker alone do not count.
"""

import ast
import fnmatch
import functools
import graphlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "agent"
SOURCES = {
    "kjbod": ROOT,
    "kjbod_agent": AGENT,
    "kjbod_guard": AGENT,
    "kjbod_host": AGENT,
    "kjbod_controller_stub": ROOT / "controller_stub",
}
PURE_LIBRARIES = frozenset(
    [
        "__future__",
        "abc",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "copy",
        "csv",
        "datetime",
        "difflib",
        "enum",
        "errno",
        "functools",
        "hashlib",
        "heapq",
        "hmac",
        "html",
        "ipaddress",
        "itertools",
        "json",
        "marshal",
        "math",
        "msgspec",
        "operator",
        "re",
        "shlex",
        "stat",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "unicodedata",
        "uuid",
        "zlib",
        "bcrypt",
        "crc32c",
        "javaproperties",
        "joserfc",
        "kio",
        "numpy",
        "prometheus_client",
        "scipy",
        "yaml",
    ]
)
"""Libraries that compute and do nothing else, as far as pure modules use them."""
IMMUTABLE = frozenset({"Mapping", "Sequence", "Set", "frozenset", "tuple"})
"""Types through which the type checker lets nobody change a value."""
MUTABLE_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CLASSES = frozenset(
    [
        "list",
        "dict",
        "set",
        "bytearray",
        "deque",
        "Counter",
        "OrderedDict",
        "defaultdict",
        "WeakKeyDictionary",
        "WeakValueDictionary",
        "count",
    ]
)
CACHES = frozenset({"cache", "lru_cache"})
EFFECTS = frozenset({"open", "input", "print", "exec", "eval"})
CLOCKS = frozenset({"now", "utcnow", "today"})
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})


@functools.cache
def settings() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["kjbod"]["purity"]
    return found


@functools.cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *SOURCES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def modules() -> list[str]:
    return sorted(module for module in graph().modules if module.partition(".")[0] in SOURCES)


def is_listed(module: str) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in settings()["shells"])


def source(module: str) -> Path:
    path = SOURCES[module.partition(".")[0]].joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports(module: str) -> Iterator[str]:
    """Imports that make a shell: of what touches the world, and of shells."""
    for imported in sorted(graph().find_modules_directly_imported_by(module)):
        if imported.partition(".")[0] in SOURCES:
            if is_listed(imported):
                yield imported
        elif imported == "pathlib":
            lines = graph().get_import_details(importer=module, imported=imported)
            if any(each["line_contents"] != "from pathlib import PurePath" for each in lines):
                yield imported
        elif imported not in PURE_LIBRARIES:
            yield imported


def is_immutable(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation).removeprefix("Final[")
    return text.partition("[")[0] in IMMUTABLE


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_CLASSES
    return isinstance(value, MUTABLE_DISPLAYS)


def state_of(tree: ast.Module) -> Iterator[str]:
    """Names of a module, or of a class in it, whose values can change; and caches."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (each for body in bodies for each in body):
        for assignment in plain(statement):
            match assignment:
                case ast.Assign(targets=[ast.Name("__all__")]):
                    pass
                case ast.Assign(targets=[target], value=value) if is_mutable(value):
                    yield ast.unparse(target)
                case ast.AnnAssign(target=target, annotation=kind, value=ast.expr() as value):
                    if is_mutable(value) and not is_immutable(kind):
                        yield ast.unparse(target)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if ast.unparse(called).rpartition(".")[2] in CACHES:
                    yield node.name


def plain(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Assignments in a statement at the top of a module: below its ``if``, ``for``, ``try`` and ``with``."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from (node for node in ast.walk(statement) if isinstance(node, ast.Assign | ast.AnnAssign))


def effects_of(tree: ast.Module) -> Iterator[str]:
    """Calls that touch the world without an import, or through what was handed in."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(name)) if name in EFFECTS:
                yield f"{name}()"
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in CLOCKS and ast.unparse(
                value
            ).rpartition(".")[2] in ("datetime", "date"):
                yield f"{ast.unparse(value)}.{name}()"
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in LOG_METHODS and ast.unparse(
                value
            ).rpartition(".")[2] in ("log", "_log", "logger", "_logger"):
                yield f"{ast.unparse(value)}.{name}()"


def test_no_modules_import_each_other_not_even_for_their_types() -> None:
    found = grimp.build_graph(*SOURCES, cache_dir=None)
    imports_of = {module: found.find_modules_directly_imported_by(module) for module in found.modules}
    graphlib.TopologicalSorter(imports_of).prepare()  # raises CycleError, which names them


BARE: tuple[str, ...] = (
    "kjbod.cli.broker_scan",
    "kjbod_guard.helper",
    "kjbod_host.files.file_worker",
    "kjbod_host.health.sources.fanotify_mark",
    "kjbod_host.smart.asker",
    "kjbod_host.storage.replica_worker",
    "kjbod_host.storage.worker",
)
"""Processes of their own, which are started without the folder of packages (``helpers.start``)."""


@pytest.mark.parametrize("module", BARE)
def test_a_process_that_is_started_without_packages_needs_none(module: str) -> None:
    found = grimp.build_graph(
        *SOURCES, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    for kept in ("kjbod_host.files.metadata_files", "kjbod_host.files.metadata_image"):
        found.remove_module(kept)  # the file process that has their work is given the folder
    met = {name.partition(".")[0] for name in found.find_upstream_modules(module)}
    assert met - {*SOURCES, "crc32c"} <= sys.stdlib_module_names  # that one is loaded by its path


def test_a_module_that_is_not_a_shell_touches_nothing() -> None:
    exempt = settings()["kept"]
    found = [
        f"{module} -> {each}"
        for module in modules()
        if not is_listed(module)
        for each in (*imports(module), *effects_of(ast.parse(source(module).read_text())))
    ]
    assert [each for each in found if each not in exempt] == []


def test_a_module_that_is_not_a_shell_keeps_no_state_of_its_own() -> None:
    found = [
        f"{module}.{name}"
        for module in modules()
        if not is_listed(module)
        for name in state_of(ast.parse(source(module).read_text()))
    ]
    assert [each for each in found if each not in settings()["kept"]] == []


def test_no_exemption_is_kept_that_nothing_needs() -> None:
    needed: set[str] = set()
    for module in modules():
        if not is_listed(module):
            tree = ast.parse(source(module).read_text())
            needed |= {f"{module} -> {each}" for each in (*imports(module), *effects_of(tree))}
            needed |= {f"{module}.{name}" for name in state_of(tree)}
    assert sorted(settings()["kept"].keys() - needed) == []
    assert all(reason for reason in settings()["kept"].values())


def test_no_module_is_listed_as_a_shell_that_is_none() -> None:
    idle = {
        pattern
        for pattern in settings()["shells"]
        if not any(fnmatch.fnmatchcase(module, pattern) and any(imports(module)) for module in modules())
    }
    assert idle == set()


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("a = {}", ["a"]),
        ("a: dict[str, int] = {}", ["a"]),
        ("a: Final = [1]", ["a"]),
        ("a = collections.OrderedDict()", ["a"]),
        ("if x:\n    a = set()", ["a"]),
        ("class A:\n    a = []", ["a"]),
        ("@functools.lru_cache(maxsize=4)\ndef a(): pass", ["a"]),
        ("class A:\n    @cache\n    def a(self): pass", ["a"]),
        ("def f():\n    global a\n    a = 1", ["a"]),
        ("a: Mapping[str, int] = {}", []),
        ("a: Final[Mapping[str, int]] = {}", []),
        ("a = frozenset({1})", []),
        ("a = ()", []),
        ("__all__ = []", []),
        ("def f():\n    a = {}", []),
        ("class A:\n    def f(self):\n        self.a = {}", []),
    ],
)
def test_state_is_found_where_it_is(code: str, names: list[str]) -> None:
    assert list(state_of(ast.parse(code))) == names


@pytest.mark.parametrize(
    ("code", "effects"),
    [
        ("open('x')", ["open()"]),
        ("self._log.warning('x')", ["self._log.warning()"]),
        ("datetime.datetime.now()", ["datetime.datetime.now()"]),
        ("datetime.fromtimestamp(1, UTC)", []),
        ("lines.append(error('x'))", []),
    ],
)
def test_effects_are_found_where_they_are(code: str, effects: list[str]) -> None:
    assert list(effects_of(ast.parse(code))) == effects
