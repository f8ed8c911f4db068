"""Which tests are of the *world*: those that start a process, mount a disk, run Kafka or Spark.

A test says so by the fixture that it uses, and its markers follow from that: ``world``, and ``root``, ``kafka`` and
``spark`` for what the machine must have. All others are *machines*: a process that one of them starts fails it, so that
``-m "not world"`` is what it says, a minute of pure Python.

Tests of the world run side by side. Those few that change what all of a machine's agents share use the fixture
``alone``: they wait until no other one runs, and others wait for them.
"""

import contextlib
import fcntl
import functools
import gc
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from kjbod.errors import KjbodError
from kjbod.faults.disks import require_real_disks
from kjbod.fleet.java import find_java
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.rig.rig_error import RigError
from tests.stamp import CPU_S, KINDS, MARKED, durations, noted_durations

FIXTURES = {"world": "world", "as_root": "root", "kafka_kit": "kafka", "with_spark": "spark"}
"""The marker that a test has because it uses a fixture; each of these fixtures uses the first."""
_FORKING = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
"""Audit events of a process that starts another (Python's audit events table). uvloop raises none: see `_children`."""

GROUPS = {
    "spark": "spark",
    "kafka_pair": "kafka-pair",
    "kafka_controller": "kafka-controller",
    "take_over_controller": "take-over",
}
"""The group of pytest-xdist of the tests that use a fixture: one session, one server or one pair for all of them."""
ALONE = "alone"
"""Fixture, and group of pytest-xdist, of the tests that no other test of the world may run beside."""
SPARK_TIMEOUT_S = 600
LOCK_VARIABLE = "KJBOD_TESTS_LOCK"
"""Environment variable with the file that workers lock; where it is not set, tests run one after the other."""

Report = Generator[None, pytest.TestReport, pytest.TestReport]

_guarded: str | None = None
"""The machine that runs now, which may start no process."""


class StartedProcessError(AssertionError):
    """A test that is of no world started a process."""


def _audit(event: str, _arguments: tuple[object, ...]) -> None:
    if _guarded is not None and event in _FORKING:
        raise StartedProcessError(f"{_guarded} starts a process ({event}): let it use the fixture `world`")


def _children() -> tuple[float, int, int]:
    """CPU seconds and page faults of all children that were waited for: more tells of one that raised no event."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime, used.ru_minflt, used.ru_majflt


def _used_s() -> float:
    """CPU seconds of this process and of all children that were waited for."""
    return time.process_time() + _children()[0]


def require_root() -> None:
    """Raise :class:`KjbodError` where this machine lets us have no namespaces or no disks of our own."""
    namespaces.require_namespaces()
    require_real_disks("ext4")


def _require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise RigError("pyspark: not installed: run scripts/setup --fleet")
    find_java(os.environ)


def _require_kafka() -> None:
    KafkaKit.find()


_REQUIREMENTS: dict[str, Callable[[], None]] = {
    "root": require_root,
    "kafka": _require_kafka,
    "spark": _require_spark,
}


@functools.cache
def _missing(requirement: Callable[[], None]) -> str | None:
    """Why what raises a :class:`KjbodError` here cannot be had; None if it can."""
    try:
        requirement()
    except KjbodError as error:
        return str(error)
    return None


def skip_unless(requirement: Callable[[], None]) -> None:
    """Skip the test, or fail it where ``CI`` is set, when ``requirement`` raises a :class:`KjbodError`."""
    if reason := _missing(requirement):
        if os.environ.get("CI"):
            pytest.fail(f"CI is set and this machine cannot run the test: {reason}", pytrace=False)
        pytest.skip(reason)


def kinds(item: pytest.Item) -> set[str]:
    """The markers of this module that a test has, by the fixtures that it uses."""
    used: Iterable[str] = getattr(item, "fixturenames", ())
    found = {FIXTURES[name] for name in used if name in FIXTURES}
    found |= {name for name in _REQUIREMENTS if item.get_closest_marker(name)}  # one of several parameters
    return found | {"world"} if found else found


def _turn_of(item: pytest.Item, seconds: float) -> int:
    """The world first, then the longest machines. When one worker comes to those of the world that wait for all others,
    these have ended, and nobody waits for them: there are machines left."""
    if ALONE in getattr(item, "fixturenames", ()):
        return 2
    if item.get_closest_marker("world"):
        return 0
    return 1 if seconds else 3


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # without types
    """Scheduler of pytest-xdist's ``--dist loadgroup``: tests of one ``xdist_group`` go to one worker.

    Its own writes the group into a test's id, which pytest 9.2 does not take: here a worker writes down which test is
    of which group.
    """

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)

    @functools.cached_property
    def _groups(self) -> dict[str, str]:
        return dict(json.loads(_groups_file().read_text()))


def _groups_file() -> Path:
    return Path(os.environ[LOCK_VARIABLE]).with_name("groups.json")


class WorldPlugin:
    """Gives tests their markers, and keeps machines from starting processes."""

    def __init__(self) -> None:
        self._used = 0.0
        sys.addaudithook(_audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Collect no garbage among what is made to stay: that is a seventh of the time, and more with each worker."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()
            gc.enable()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Mark by fixtures, so that ``-m`` can select; where several workers share them, begin with the longest."""
        for item in items:
            for kind in kinds(item):
                item.add_marker(kind)
            if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
                # A session is shared: one that is interrupted in the middle of a word fails all tests after it.
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
            for fixture in GROUPS.keys() & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.xdist_group(GROUPS[fixture]))
            if ALONE in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(ALONE))
        if hasattr(config, "workerinput"):
            marks = {item.nodeid: item.get_closest_marker("xdist_group") for item in items}
            groups = {name: mark.args[0] for name, mark in marks.items() if mark}
            seconds = durations([item.nodeid for item in items], groups, noted_durations())
            items.sort(key=lambda item: (_turn_of(item, seconds[item.nodeid]), -seconds[item.nodeid]))
            if config.workerinput["workerid"] == "gw0":
                _groups_file().write_text(json.dumps(groups))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> GroupScheduling | None:
        """Schedule by groups."""
        return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what this machine cannot run."""
        for marker, requirement in _REQUIREMENTS.items():
            if item.get_closest_marker(marker):
                skip_unless(requirement)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """No process is started by a machine, its fixtures included."""
        global _guarded
        self._used = _used_s()
        _guarded = None if item.get_closest_marker("world") else item.nodeid
        path = os.environ.get(LOCK_VARIABLE)
        try:
            if _guarded or path is None:
                return (yield)
            with _turn(path, alone=ALONE in getattr(item, "fixturenames", ())):
                return (yield)
        finally:
            _guarded = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Report:
        """Say what the test cost: a complete run takes as long as its CPU seconds do."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((CPU_S, round(_used_s() - self._used, 2)))
            report.user_properties.append((MARKED, [kind for kind in KINDS if item.get_closest_marker(kind)]))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """A process that no audit event told of has used some CPU or a page, as one may that an earlier test left."""
        left, before = _living_children(), _children()
        result = yield
        if _guarded is not None and not left and (_children() != before or _living_children()):
            raise StartedProcessError(f"{item.nodeid} started a process: let it use the fixture `world`")
        return result


@contextlib.contextmanager
def _turn(path: str, *, alone: bool) -> Iterator[None]:
    """Run beside others, or beside nobody. Who waits to be alone holds the gate, so that nobody passes it meanwhile."""
    mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with open(path, "ab") as lock:
        with open(f"{path}.gate", "ab") as gate:
            fcntl.flock(gate, mode)
            fcntl.flock(lock, mode)
        yield


def _living_children() -> str:
    """The process ids of this process' children, with spaces between them."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()
