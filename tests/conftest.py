"""What every test can rely on: namespaces of its own, real disks, real processes, real Kafka.

Run as root, the whole session moves into private mount and pid namespaces, so that nothing a test mounts or starts can
outlive it; what is left at its end is named and fails the run. A test marked ``root``, ``kafka`` or ``spark`` is
skipped where the machine cannot run it, with the reason; where ``CI`` is set it fails instead.
"""

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from kjbod.errors import KjbodError
from kjbod.faults.disks import RealDisk, require_real_disks
from kjbod.faults.errors import RigError
from kjbod.fleet.java import find_java
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes

# How long a machine under load takes to draw an example says nothing about the code.
settings.register_profile("kjbod", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kjbod")


def pytest_configure(config: pytest.Config) -> None:
    if os.geteuid() != 0 or namespaces.inside():
        return
    try:
        namespaces.require_namespaces()
    except RigError:
        return  # tests marked root say why they cannot run
    if capture := config.pluginmanager.getplugin("capturemanager"):
        capture.stop_global_capturing()  # gives the terminal's descriptors back
    namespaces.reexec()


def _require_root() -> None:
    namespaces.require_namespaces()
    require_real_disks("ext4")


def _require_kafka() -> None:
    KafkaKit.find()


def _require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise RigError("pyspark: not installed: run scripts/setup --fleet")
    find_java(os.environ)


_REQUIREMENTS: dict[str, Callable[[], None]] = {
    "root": _require_root,
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


def _skip_unless(requirement: Callable[[], None]) -> None:
    if reason := _missing(requirement):
        if os.environ.get("CI"):
            pytest.fail(f"CI is set and this machine cannot run the test: {reason}", pytrace=False)
        pytest.skip(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, requirement in _REQUIREMENTS.items():
        if item.get_closest_marker(marker):
            _skip_unless(requirement)


@pytest.fixture
def machine_can() -> Callable[[Callable[[], None]], None]:
    """Skips the test, or fails it where ``CI`` is set, when the function given raises a :class:`KjbodError`."""
    return _skip_unless


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes; they are killed and reaped at the end of the test."""
    with Processes(tmp_path / "logs") as started:
        yield started


@pytest.fixture
def real_disk() -> Iterator[Callable[..., RealDisk]]:
    """Makes :class:`RealDisk`, with its arguments; gone at the end of the test. For tests marked ``root``."""
    with ExitStack() as disks:

        def make(*args: Any, **kwargs: Any) -> RealDisk:
            return disks.enter_context(RealDisk(*args, **kwargs))

        yield make


@pytest.fixture(scope="session")
def kafka_kit() -> KafkaKit:
    """Real Apache Kafka's tools and servers. For tests marked ``kafka``."""
    return KafkaKit.find()
