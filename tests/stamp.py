"""The stamp that a complete green run leaves: ``.kjbod-tested``, and the counts by marker that it is held to.

``scripts/test`` without arguments runs everything, with ``--stamp``. At its end the counts are compared with those of
``tests/counts.json``: fewer tests of a marker fail the run, unless a line of the newest section of the change log says
so, as ``Tests: 410 → 388 kafka: ...``. When all is green and no file was changed meanwhile, the stamp says for which
tree: ``scripts/check`` reads it.

``tests/durations.json`` says which tests take longest, so that a run begins with them; ``--note-durations`` writes it
anew. A wrong figure there costs time and nothing else.
"""

import heapq
import json
import os
import re
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
STAMP = ROOT / ".kjbod-tested"
COUNTS = ROOT / "tests" / "counts.json"
DURATIONS = ROOT / "tests" / "durations.json"
KINDS = ("world", "root", "kafka", "spark")
SLOWEST = 50
CPU_S = "cpu_s"
"""User property of a test's last report: CPU seconds of its worker and of all processes that it waited for."""
MARKED = "marked"
"""User property of a test's last report: its :data:`KINDS`. (The keywords of a report have parameters too.)"""
NOTED_S = 1.0
"""Tests below this are not worth a line in ``tests/durations.json``."""


def tree_of(root: Path) -> str | None:
    """The git tree of the files below ``root`` as they are now, without ignored ones; None without a repository."""
    with tempfile.TemporaryDirectory(prefix="kjbod-index-") as directory:
        environment = {**os.environ, "GIT_INDEX_FILE": f"{directory}/index"}
        for command in (["git", "add", "-A", "."], ["git", "write-tree"]):
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                return None
    return done.stdout.strip()


def plain(nodeid: str) -> str:
    """A test's id without pytest-xdist's group."""
    return nodeid[: nodeid.rfind("@")] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def seedless(nodeid: str) -> str:
    """A test's id that is the same whatever seed it draws by (:mod:`tests.depth`)."""
    return re.sub(r"\bseed=\d+", "seed", plain(nodeid))


def fewer(counts: dict[str, int], before: dict[str, int], newest_changes: str) -> list[str]:
    """One line for each kind of which there are fewer tests than before, and no line of the change log says why."""
    lines = []
    for kind, least in before.items():
        count = counts.get(kind, 0)
        said = re.search(rf"Tests: {least} → {count} {re.escape(kind)}: \S", newest_changes)
        if count < least and not said:
            lines.append(
                f"{count} tests are {kind} and {least} were: say why in CHANGELOG.md, as "
                f"'Tests: {least} → {count} {kind}: ...', or bring them back"
            )
    return lines


def newest_section(changes: str) -> str:
    """The first section of a change log."""
    sections = re.split(r"^## ", changes, flags=re.MULTILINE)
    return sections[1] if len(sections) > 1 else ""


class StampPlugin:
    """Collects what the stamp says; part of the process that reports, not of pytest-xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tree = tree_of(ROOT)
        self._started = time.monotonic()
        self._kinds: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test when it is over, and add up what it took."""
        name = plain(report.nodeid)
        self._seconds[name] += report.duration
        if report.when == "teardown":
            told: dict[str, Any] = dict(report.user_properties)
            self._cpu_s[name] = told.get(CPU_S, 0.0)
            self._kinds.update(["all", *told.get(MARKED, ())])
        if report.skipped:
            longrepr: Any = report.longrepr
            self._skipped[name] = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hold the counts to what they were; write the stamp when all is green."""
        lines = fewer(self._kinds, json.loads(COUNTS.read_text()), newest_section((ROOT / "CHANGELOG.md").read_text()))
        if lines and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if session.exitstatus == pytest.ExitCode.OK:
            lines = [self._write()]
        self._said = lines

    def _write(self) -> str:
        if self._tree is None or tree_of(ROOT) != self._tree:
            return "no stamp: files were changed while the tests ran, or this is no git repository"
        stamp = {
            "tree": self._tree,
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._started),
            "tests": dict(self._kinds),
            "skipped": self._skipped,
            "cpu_seconds": round(sum(self._cpu_s.values())),
            "slowest": _most(self._seconds),
            "dearest": _most(self._cpu_s),
        }
        STAMP.write_text(json.dumps(stamp, indent=1, ensure_ascii=False) + "\n")
        return f"complete and green: the stamp is in {STAMP.name}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what became of the stamp."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self._kinds.items())
        counts += f", {sum(self._cpu_s.values()):.0f} CPU seconds"
        terminalreporter.section("complete run")
        for line in (counts, *self._said):
            terminalreporter.write_line(line)


def _most(seconds: dict[str, float]) -> list[tuple[float, str]]:
    """The tests that took most, of seconds by their names."""
    return heapq.nlargest(SLOWEST, ((round(each, 1), name) for name, each in seconds.items()))


class DurationsPlugin:
    """Writes ``tests/durations.json``."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a test's time."""
        self._seconds[seedless(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write all that take long."""
        found = {name: round(seconds) for name, seconds in self._seconds.items() if seconds >= NOTED_S}
        DURATIONS.write_text(json.dumps(dict(sorted(found.items())), indent=0, ensure_ascii=False) + "\n")


def noted_durations() -> dict[str, int]:
    """Seconds that tests took when it was last noted, by their ids."""
    try:
        return dict(json.loads(DURATIONS.read_text()))
    except (OSError, ValueError):
        return {}


def durations(ids: Sequence[str], groups: Mapping[str, str], noted: Mapping[str, int]) -> dict[str, int]:
    """Seconds that each test is expected to keep its worker; of a group, those of all its tests.

    Which of a group pays for what they share, and by what name, depends on what the seed has drawn: counted are all
    noted tests of the functions that the group has.
    """
    functions: dict[str, set[str]] = {}
    for name, group in groups.items():
        functions.setdefault(group, set()).add(_function(name))
    together = {
        group: sum(seconds for name, seconds in noted.items() if _function(name) in members)
        for group, members in functions.items()
    }
    return {one: together[groups[one]] if one in groups else noted.get(seedless(one), 0) for one in ids}


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--stamp", action="store_true", help="this is a complete run: count, and leave .kjbod-tested")
    parser.addoption("--note-durations", action="store_true", help="write tests/durations.json anew")


def pytest_configure(config: pytest.Config) -> None:
    """Take part in the process that reports."""
    if hasattr(config, "workerinput"):
        return
    if config.getoption("--stamp"):
        config.pluginmanager.register(StampPlugin(config), "kjbod-stamp")
    if config.getoption("--note-durations"):
        config.pluginmanager.register(DurationsPlugin(), "kjbod-durations")


def verdict(stamp: dict[str, Any] | None, tree: str | None, differing: int | None) -> str:
    """What the stamp says of a tree, in one line; ``differing``: files that are not as in the tree of the stamp."""
    if stamp is None:
        return "complete run: none was green here yet (scripts/test)"
    what = f"{stamp['tests']['all']} tests in {stamp['seconds']} s, {len(stamp['skipped'])} skipped, {stamp['ended']}"
    if stamp["tree"] == tree:
        return f"complete run: green for this tree ({what})"
    ago = "of an unknown tree" if differing is None else f"{differing} files ago"
    return f"complete run: last green {ago}, for tree {stamp['tree'][:12]} ({what})"


def _differing(tree: str, other: str) -> int | None:
    command = ["git", "diff", "--name-only", tree, other]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else len(done.stdout.splitlines())


def main() -> None:
    """Print what the stamp says of the tree at hand."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        stamp = None
    tree = tree_of(ROOT)
    print(verdict(stamp, tree, _differing(stamp["tree"], tree) if stamp and tree else None))


if __name__ == "__main__":
    main()
