"""The tests that a change concerns, nearest first, as many as fit into a minute: ``scripts/test --changed``.

How near a test is: 0 in a test file that was changed itself, and one more for each import between a changed file and
the test file. Tests that start processes import little of what they run, so those of the folder that is named as the
changed package (:data:`FOLDERS`) stand behind all that import it. What did not fit is counted.
"""

import ast
import json
import os
import subprocess
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stamp import noted_durations, seedless

ROOT = Path(__file__).parents[1]
BUDGET_S = 110
"""Seconds of one worker, of which several work side by side; by what tests took when that was last noted."""
SHORT_S = 0.03
"""What a test takes of which nothing is noted."""
FAR = 9
"""How near tests are that a change concerns by their folder alone."""
VARIABLE = "KJBOD_CHANGED"
"""Environment variable by which pytest-xdist's workers learn how near each test file is, as JSON."""
SOURCE_ROOTS = ("agent/", "controller_stub/")
FOLDERS = {
    "agent/kjbod_host/storage/": ("tests/agent/storage/",),
    "agent/kjbod_host/health/": ("tests/agent/health/",),
    "agent/kjbod_guard/": ("tests/guard/", "tests/systemd/test_guard_acts.py"),
    "agent/": ("tests/agent/", "tests/system/"),
    "controller_stub/": ("tests/controller/",),
    "kjbod/cli/": ("tests/cli/",),
    "kjbod/config/": ("tests/config/", "tests/system/test_bad_input.py"),
    "kjbod/faults/": ("tests/faults/", "tests/scripts/test_faults.py"),
    "kjbod/fleet/": ("tests/fleet/",),
    "kjbod/metadata/": ("tests/metadata/", "tests/cli/test_metadata.py"),
    "kjbod/runtime/": ("tests/runtime/",),
    "kjbod/storage_tool.py": ("tests/storage_tool/",),
    "kjbod/wire/": ("tests/wire/",),
    "scripts/": ("tests/scripts/",),
    "scripts/story/": ("tests/system/test_demo.py",),
    "systemd/": ("tests/systemd/",),
}


def module_of(path: str) -> str:
    """The dotted name under which a source file, relative to the root, is imported."""
    for root in SOURCE_ROOTS:
        path = path.removeprefix(root)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(source: str) -> set[str]:
    """All names that could be modules, of what a source imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def importers(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """For each of these files, by its path, the files that import it."""
    by_module = {module_of(path): path for path in sources}
    found: dict[str, set[str]] = {path: set() for path in sources}
    for path, source in sources.items():
        for name in imported(source):
            if name in by_module:
                found[by_module[name]].add(path)
    return found


def distances(sources: Mapping[str, str], changed: Iterable[str]) -> dict[str, int]:
    """How near each test file is to what was changed; those that are not concerned are left out."""
    changed = list(changed)
    users = importers(sources)
    near = {path: 0 for path in changed if path in sources}
    waiting = deque(near)
    while waiting:
        path = waiting.popleft()
        for user in users[path]:
            if user not in near:
                near[user] = near[path] + 1
                waiting.append(user)
    for path in changed:
        tests = [test for start, tests in FOLDERS.items() if path.startswith(start) for test in tests]
        for source in sources:
            if source.startswith(tuple(tests)):
                near.setdefault(source, FAR)
        if path.startswith("tests/") and path.endswith("conftest.py"):
            folder = path.removesuffix("conftest.py")
            near |= {source: min(near.get(source, FAR), 1) for source in sources if source.startswith(folder)}
    return {path: near[path] for path in near if "/test_" in path and path.startswith("tests/")}


def choose(tests: Mapping[str, int], seconds: Mapping[str, float], budget_s: float) -> set[str]:
    """The ids, of tests and how near they are, that fit into ``budget_s``: the nearest, and of these the shortest."""
    chosen, left = set(), budget_s
    for test in sorted(tests, key=lambda test: (tests[test], seconds.get(test, SHORT_S), test)):
        left -= seconds.get(test, SHORT_S)
        if left < 0:
            break
        chosen.add(test)
    return chosen


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_files() -> list[str]:
    """Files that differ from the last commit, new ones too; where none do, those of the last commit."""
    files = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return files or _git("diff", "--name-only", "HEAD~1", "HEAD")


class ChangedPlugin:
    """Leaves of the tests those that were chosen."""

    def __init__(self, near: dict[str, int]) -> None:
        self._near = near
        self._left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what is not concerned, and what does not fit."""
        ids = {item: seedless(item.nodeid) for item in items}
        tests = {name: self._near[file] for name in ids.values() if (file := name.partition("::")[0]) in self._near}
        chosen = choose(tests, noted_durations(), BUDGET_S)
        left_out = len(tests) - len(chosen)
        config.hook.pytest_deselected(items=[item for item in items if ids[item] not in chosen])
        items[:] = [item for item in items if ids[item] in chosen]
        self._left_out = left_out
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from a worker what it has left out, which is the same for all of them."""
        self._left_out = getattr(node, "workeroutput", {}).get("left_out", self._left_out)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say how much was not run."""
        if self._left_out:
            terminalreporter.write_line(f"{self._left_out} further tests are concerned: scripts/test runs all")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.addoption(
        "--changed", action="store_true", help="the tests that the changes in the tree concern, in a minute"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find out how near each test file is, once, and choose."""
    if not config.getoption("--changed"):
        return
    if VARIABLE not in os.environ:
        paths = _git("ls-files", "--cached", "--others", "--exclude-standard", "*.py")
        sources = {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}
        os.environ[VARIABLE] = json.dumps(distances(sources, changed_files()))
    config.pluginmanager.register(ChangedPlugin(json.loads(os.environ[VARIABLE])), "kjbod-changed")
