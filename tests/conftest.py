"""What every test can rely on: namespaces of its own, real disks, real processes, real Kafka.

Run as root, the whole session moves into private mount and pid namespaces, and each of pytest-xdist's workers into
further ones, so that nothing a test mounts or starts can outlive it and no test meets the processes of another; what is
left at the end is named and fails the run. What the machine cannot run is skipped with the reason; where ``CI`` is set
it fails instead. Which tests those are follows from the fixtures that they use: :mod:`tests.world`.
"""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import RealDisk
from kjbod.faults.faults_error import FaultsError
from kjbod.metadata import live
from scripts.rig import namespaces
from scripts.rig.kafka import NEWEST, KafkaKit
from scripts.rig.processes import Processes
from scripts.rig.rig_error import RigError
from tests import changed, stamp
from tests.kafka_pair import KafkaPair
from tests.world import LOCK_VARIABLE, WorldPlugin, skip_unless

pytest_plugins = ("tests.depth",)
_SHARED = pytest.StashKey[str]()
"""The directory that a session with workers shares with them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    stamp.pytest_addoption(parser)
    changed.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    if os.geteuid() == 0 and not namespaces.inside():
        _enter_namespaces(config)
    config.pluginmanager.register(WorldPlugin(), "kjbod-world")
    stamp.pytest_configure(config)
    changed.pytest_configure(config)


def _enter_namespaces(config: pytest.Config) -> None:
    try:
        namespaces.require_namespaces()
    except RigError:
        return  # tests that need root say why they cannot run
    if capture := config.pluginmanager.getplugin("capturemanager"):
        capture.stop_global_capturing()  # gives the terminal's descriptors back
    namespaces.reexec()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Start each worker in namespaces of its own, within ours."""
    if not namespaces.inside():
        return
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-P", "-m", namespaces.__name__, sys.executable])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Name the files that workers lock, and in which their namespaces say what was left in them."""
    if not session.config.pluginmanager.hasplugin("dsession"):
        return
    directory = session.config.stash[_SHARED] = tempfile.mkdtemp(prefix="kjbod-tests-")
    os.environ[LOCK_VARIABLE] = f"{directory}/lock"
    os.environ[namespaces.LEFT_VARIABLE] = f"{directory}/left"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a worker has left something."""
    directory = session.config.stash.get(_SHARED, None)
    if directory is None:
        return
    file = Path(directory) / "left"
    left = file.read_text() if file.exists() else ""
    shutil.rmtree(directory)
    if left:
        sys.stderr.write(f"\n{left}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def world() -> Iterator[None]:
    """Lets a test start processes; it is marked ``world`` for that."""
    # Not above: pytest imports what it uses as a plugin first.
    from tests.preloading import end_preloaded, preload_disks

    preload_disks()
    yield
    end_preloaded()


@pytest.fixture(scope="session")
def as_root(world: None) -> None:
    """Root's rights over disks, mounts and namespaces of our own; the test is marked ``root``."""


@pytest.fixture(scope="session")
def alone(world: None) -> None:
    """No other test of the world runs meanwhile."""


@pytest.fixture(scope="session")
def with_spark(world: None) -> None:
    """PySpark and a Java, for commands that start Spark; the test is marked ``spark``."""


@pytest.fixture(scope="session")
def kafka_kit(world: None) -> Iterator[KafkaKit]:
    """Real Apache Kafka's tools and servers; the test is marked ``kafka``."""
    kit = KafkaKit.find()
    with kit.one_java():
        yield kit


@pytest.fixture(scope="session")
def newest_kit(kafka_kit: KafkaKit) -> KafkaKit:
    """Apache Kafka of the newest version, whose controller and tools kjbod's are held to."""
    found: list[KafkaKit] = []
    skip_unless(lambda: found.append(KafkaKit.find(NEWEST)))
    return found[0]


@pytest.fixture(scope="session")
def kafka_pair(kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPair]:
    """A controller and a broker of real Kafka, running; for tests that only look at them."""
    from tests.preloading import preloaded

    base = tmp_path_factory.mktemp("kafka-pair")
    with Processes(base / "logs", preloaded=preloaded()) as started:
        yield KafkaPair(base, started, kafka_kit)


@pytest.fixture
def machine_can() -> Callable[[Callable[[], None]], None]:
    """Skips the test, or fails it where ``CI`` is set, when the function given raises a :class:`KjbodError`."""
    return skip_unless


@pytest.fixture
def processes(world: None, tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes; they are killed and reaped at the end of the test."""
    from tests.preloading import preloaded

    with Processes(tmp_path / "logs", preloaded=preloaded()) as started:
        yield started


@pytest.fixture
def real_disk(as_root: None, request: pytest.FixtureRequest) -> Iterator[Callable[..., RealDisk]]:
    """Makes :class:`RealDisk`, with its arguments; gone at the end of the test."""
    made: list[RealDisk] = []
    with ExitStack() as disks:

        def make(*args: Any, **kwargs: Any) -> RealDisk:
            made.append(disks.enter_context(RealDisk(*args, **kwargs)))
            return made[-1]

        yield make
        # Each disk waits 2 s for who holds it: they end first, and none of them is stuck in a request.
        processes = request.node.funcargs.get("processes")
        if processes is not None and processes.running():
            for disk in made:
                with suppress(FaultsError, OSError):
                    disk.kill()
                    disk.thaw()
            processes.close()


@pytest.fixture
def endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait for a controller for an hour: who does not recognise that nothing will come never ends."""
    monkeypatch.setattr(live, "CATCH_UP_TIMEOUT_S", 3600.0)
