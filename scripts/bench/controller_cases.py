"""Cases of the controller's benchmark: each starts a controller afresh and gives its figures."""

import asyncio
import contextlib
import itertools
import math
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kjbod.ids import Uuid
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
)
from scripts.bench.controller_client import (
    PARTITION,
    PARTITION_CHANGE,
    REGISTRATION_CHANGE,
    TIMEOUT_S,
    Observer,
    SimulatedBroker,
    Wire,
    check,
    directories_of,
)
from scripts.bench.controller_rig import ControllerRig, LoadProcess, ReadersProcess, System, close_all
from scripts.rig.rig_error import RigError

Phase = Literal["cold", "warm"]
PARTITIONS_PER_TOPIC: Final = 1_000
PARTITIONS_PER_REQUEST: Final = 9_000
"""A real controller writes at most 10,000 records for a request, one of them for each topic."""
ASSIGNMENTS_PER_REQUEST: Final = 2_250
"""What brokers send at most in one (``AssignmentsManager.MAX_ASSIGNMENTS_PER_REQUEST``)."""
P99_MS_MAX: Final = 50.0
"""At which a number of brokers counts as served."""
PAUSE_BROKERS: Final = 5
PAUSE_INTERVAL_MS: Final = 20.0
BROKERS_PER_PROCESS: Final = 1_000
FAILURES_BEHIND_READS: Final = 15
LEADERS_BEHIND_READS: Final = 10
SNAPSHOTS: Final = 2
"""How many are awaited where the pause of one is measured."""
_FIRST_OTHER = 10_000
"""Ids of brokers that only send heartbeats begin here: behind the controller's own, which no broker may have."""
_SETTLE_S = 0.3
_SNAPSHOT_POLL_S = 0.05
_TELL_S = 0.5
"""How often the simulated brokers learn how far the observer is: as often as a parked Fetch ends."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement, without by whom."""

    part: str
    """Letter of the case."""
    name: str
    unit: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class Sample:
    """A value."""

    row: Row
    system: System
    value: float


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of the measurements."""

    rounds: int
    warm_ups: int
    ladder: tuple[int, ...]
    window_s: float
    snapshot_interval_ms: int
    snapshot_timeout_s: float


class Samples:
    """The values of one system, told as they come."""

    def __init__(self, system: System, say: Say) -> None:
        self.system = system
        self.all: list[Sample] = []
        self._say = say

    def add(self, part: str, name: str, value: float, *, unit: str = "ms", phase: Phase = "cold") -> None:
        self.all.append(Sample(Row(part, name, unit, phase), self.system, value))
        self._say(f"{self.system}: {name}, {phase}: {value:.1f} {unit}")


class Cluster:
    """Broker 1 with many directories, broker 2 with one, an observer, and an administrator's connection."""

    def __init__(self, rig: ControllerRig, observer: Observer, brokers: Sequence[SimulatedBroker], admin: Wire) -> None:
        self.rig = rig
        self.observer = observer
        self.brokers = brokers
        self.admin = admin

    async def create(self, name: str, partitions: int, *, on: tuple[int, ...] = (), factor: int = 2) -> list[Uuid]:
        """Create topics of 1,000 partitions, as many in a request as a real controller takes; their ids.

        ``on``: the replicas of each partition; empty: the controller places ``factor`` replicas.
        """
        found: list[Uuid] = []
        for first in range(0, partitions, PARTITIONS_PER_REQUEST):
            here = min(PARTITIONS_PER_REQUEST, partitions - first)
            topics = tuple(
                _topic(f"{name}-{first + offset}", min(PARTITIONS_PER_TOPIC, here - offset), on, factor)
                for offset in range(0, here, PARTITIONS_PER_TOPIC)
            )
            answer = await self.admin.ask(CreateTopicsRequest(topics=topics, timeout_ms=int(TIMEOUT_S * 1000)))
            for topic in answer.message.topics:
                check(topic.error_code, f"creation of {topic.name}")
            found += [topic.topic_id for topic in sorted(answer.message.topics, key=lambda one: _number(one.name))]
        return found

    async def delete(self, topics: Sequence[Uuid]) -> None:
        """Delete topics."""
        wanted = tuple(DeleteTopicsRequestTopic(topic_id=topic) for topic in topics)
        answer = await self.admin.ask(DeleteTopicsRequest(topics=wanted, timeout_ms=int(TIMEOUT_S * 1000)))
        for topic in answer.message.responses:
            check(topic.error_code, f"deletion of {topic.name}")

    async def assign(self, replicas: Sequence[tuple[Uuid, int]], directory: Uuid, at_once: int) -> tuple[float, float]:
        """Assign broker 1's replicas to a directory, one request after the other; seconds to the last answer, and until
        the observer had all records."""
        broker = self.brokers[0]
        self.observer.watch()
        answers = []
        for first in range(0, len(replicas), at_once):
            request = _assignment(broker, replicas[first : first + at_once], directory)
            answers.append(await broker.wire.ask(request))
        seen = await self.observer.see({PARTITION_CHANGE: len(replicas)})
        for answer in answers:
            check(answer.message.error_code, "assignment")
        began_s = answers[0].at_s - answers[0].seconds
        return answers[-1].at_s - began_s, seen.at_s - began_s

    async def fail(self, directory: Uuid, leaders: int) -> tuple[float, float]:
        """A directory of broker 1 fails; seconds to the answer, and until the observer had all records."""
        broker = self.brokers[0]
        self.observer.watch()
        broker.failed.append(directory)
        answer = await broker.beat(self.observer.offset)
        seen = await self.observer.see({PARTITION_CHANGE: leaders, REGISTRATION_CHANGE: 1})
        return answer.seconds, seen.at_s - (answer.at_s - answer.seconds)


@contextlib.asynccontextmanager
async def cluster_of(rig: ControllerRig, directories: int, *, brokers: int = 2) -> AsyncIterator[Cluster]:
    """Start a controller with an empty log, and register the brokers; all have one directory but the first."""
    await asyncio.to_thread(rig.format)
    rig.start()
    observer, _ = await rig.first_fetch()
    following = asyncio.ensure_future(observer.run())
    wires: list[Wire] = []
    try:
        joined = []
        for broker_id in range(1, brokers + 1):
            wires.append(await rig.wire())
            count = directories if broker_id == 1 else 1
            broker = SimulatedBroker(broker_id, wires[-1], directories_of(broker_id, count))
            await _patiently(broker, rig.cluster_id)
            joined.append(broker)
        wires.append(await rig.wire())
        yield Cluster(rig, observer, joined, wires[-1])
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, RigError):
            await following
        for wire in wires:
            wire.close()


async def _patiently(broker: SimulatedBroker, cluster_id: str) -> None:
    """Join a controller that has only just begun to lead."""
    for attempt in range(200):
        try:
            await broker.join(cluster_id)
            return
        except RigError:
            if attempt == 199 or broker.wire.gone:
                raise
            await asyncio.sleep(0.05)


def _topic(name: str, partitions: int, on: tuple[int, ...], factor: int) -> CreateTopicsRequestTopic:
    if not on:
        return CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=factor)
    placed = tuple(CreateTopicsRequestAssignment(partition_index=index, broker_ids=on) for index in range(partitions))
    return CreateTopicsRequestTopic(name=name, assignments=placed)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _replicas(topics: Sequence[Uuid], partitions: int) -> list[tuple[Uuid, int]]:
    """Topic and partition, all that were created."""
    return [
        (topic, index)
        for number, topic in enumerate(topics)
        for index in range(min(PARTITIONS_PER_TOPIC, partitions - number * PARTITIONS_PER_TOPIC))
    ]


def _assignment(
    broker: SimulatedBroker, replicas: Sequence[tuple[Uuid, int]], directory: Uuid
) -> AssignReplicasToDirsRequest:
    topics: dict[Uuid, list[int]] = {}
    for topic, index in replicas:
        topics.setdefault(topic, []).append(index)
    return AssignReplicasToDirsRequest(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        directories=(
            AssignReplicasToDirsRequestDirectory(
                id_=directory,
                topics=tuple(
                    AssignReplicasToDirsRequestTopic(
                        topic_id=topic,
                        partitions=tuple(AssignReplicasToDirsRequestPartition(partition_index=i) for i in indexes),
                    )
                    for topic, indexes in topics.items()
                ),
            ),
        ),
    )


def _phases(extent: Extent) -> Iterator[tuple[int, Phase | None]]:
    """A number for each round, and what it counts as; None: it only warms up."""
    yield 0, "cold"
    for number in range(1, 1 + extent.warm_ups):
        yield number, None
    for number in range(1 + extent.warm_ups, 1 + extent.warm_ups + extent.rounds):
        yield number, "warm"


# ----------------------------------------------------------------------------------------- (a), (b), (g): big changes


async def changes(rig: ControllerRig, samples: Samples, parts: str, leaders: int, extent: Extent) -> None:
    """Assignments of ``leaders`` replicas, then the failure of the directory that all of them lead in."""
    rounds = 1 + extent.warm_ups + extent.rounds
    async with cluster_of(rig, directories=1 + rounds) as cluster:
        pinger = await LoadProcess.start(rig, _FIRST_OTHER, PAUSE_BROKERS, PAUSE_INTERVAL_MS)
        try:
            if "g" in parts:
                samples.add("g", "heartbeats, nothing else going on: longest", 1000 * await _idle(pinger, extent))
            for number, phase in _phases(extent):
                await _round(cluster, pinger, samples, parts, leaders, number, phase)
        finally:
            await pinger.close()


async def _idle(pinger: LoadProcess, extent: Extent) -> float:
    pinger.reset()
    await asyncio.sleep(extent.window_s)
    return max((await pinger.report())[0])


async def _round(
    cluster: Cluster,
    pinger: LoadProcess,
    samples: Samples,
    parts: str,
    leaders: int,
    number: int,
    phase: Phase | None,
) -> None:
    """Create, assign twice, fail, delete; the pinger looks at the failure alone."""
    common, own = cluster.brokers[0].directories[0], cluster.brokers[0].directories[1 + number]
    topics = await cluster.create(f"r{number}", leaders, on=(1, 2))
    replicas = _replicas(topics, leaders)
    many_s, many_seen_s = await cluster.assign(replicas, common, ASSIGNMENTS_PER_REQUEST)
    await asyncio.sleep(_SETTLE_S)
    # A real controller answers -1 and resigns where the records of one request are a multiple of 10,000.
    one_s, one_seen_s = await cluster.assign(replicas[:-1], own, len(replicas))
    await cluster.assign(replicas[-1:], own, 1)
    await asyncio.sleep(_SETTLE_S)
    pinger.reset()
    answer_s, seen_s = await cluster.fail(own, leaders)
    waits, failures = await pinger.report()
    await cluster.delete(topics)
    if phase is None:
        return
    if "b" in parts:
        each = f"{leaders} assignments, {ASSIGNMENTS_PER_REQUEST} a request"
        samples.add("b", f"{each}: answer", 1000 * many_s, phase=phase)
        samples.add("b", f"{each}: visible", 1000 * many_seen_s, phase=phase)
        samples.add("b", f"{leaders} assignments, one request: answer", 1000 * one_s, phase=phase)
        samples.add("b", f"{leaders} assignments, one request: visible", 1000 * one_seen_s, phase=phase)
    if "a" in parts:
        samples.add("a", f"directory with {leaders} leaders fails: answer", 1000 * answer_s, phase=phase)
        samples.add("a", f"directory with {leaders} leaders fails: visible", 1000 * seen_s, phase=phase)
    if "g" in parts:
        name = f"others' heartbeats while {leaders} leaders move"
        samples.add("g", f"{name}: longest", 1000 * max(waits), phase=phase)
        # Kafka answers REQUEST_TIMED_OUT to a heartbeat that waited for a second.
        samples.add("g", f"{name}: refused", failures, unit="", phase=phase)


# --------------------------------------------------------------------------------------------------------- (j): reads


async def behind_reads(rig: ControllerRig, samples: Samples, partitions: int, clients: tuple[int, ...]) -> None:
    """Directories in which a few partitions are led fail, one after the other, while clients ask for all that there
    is; from the report until its answer."""
    failures = FAILURES_BEHIND_READS
    async with cluster_of(rig, directories=1 + failures * (1 + len(clients))) as cluster:
        broker, own = cluster.brokers[0], itertools.count(1)
        topics = await cluster.create("read", partitions, on=(1, 2))
        replicas = _replicas(topics, partitions)
        await cluster.assign(replicas, broker.directories[0], ASSIGNMENTS_PER_REQUEST)
        few = iter(range(0, len(replicas), LEADERS_BEHIND_READS))
        for count in (0, *clients):
            readers = await ReadersProcess.begin(rig, count, cluster.observer.leader_epoch) if count else None
            try:
                waits = []
                for _ in range(failures):
                    directory, first = broker.directories[next(own)], next(few)
                    await cluster.assign(replicas[first : first + LEADERS_BEHIND_READS], directory, partitions)
                    await asyncio.sleep(_SETTLE_S)
                    waits.append(1000 * (await cluster.fail(directory, LEADERS_BEHIND_READS))[0])
                if readers is not None and (ended := (await readers.read())["ended"]):
                    raise RigError(f"{ended} clients that read were cut off")
            finally:
                if readers is not None:
                    await readers.close()
            name = f"directory fails, {count} clients read {partitions} partitions"
            samples.add("j", f"{name}: median", statistics.median(waits), phase="warm")
            samples.add("j", f"{name}: worst", max(waits), phase="warm")


# -------------------------------------------------------------------------------------------------------- (d): creation


async def creation(rig: ControllerRig, samples: Samples, partitions: int, extent: Extent) -> None:
    """Create so many partitions, which the controller places on three brokers, three replicas each."""
    async with cluster_of(rig, directories=3, brokers=3) as cluster:
        for number, phase in _phases(extent):
            cluster.observer.watch()
            began_s = asyncio.get_running_loop().time()
            topics = await cluster.create(f"c{number}", partitions, factor=3)
            ended_s = asyncio.get_running_loop().time() - began_s
            await cluster.observer.see({PARTITION: partitions})
            await cluster.delete(topics)
            await asyncio.sleep(_SETTLE_S)
            if phase is not None:
                samples.add("d", f"creation of {partitions} partitions, three replicas", 1000 * ended_s, phase=phase)


# ------------------------------------------------------------------------- (e), (f), (g): restart, memory and snapshots


async def restart(rig: ControllerRig, samples: Samples, parts: str, partitions: int, extent: Extent) -> None:
    """Start a controller on a log of so many partitions; its memory; heartbeats while it makes snapshots."""
    async with cluster_of(rig, directories=3) as cluster:
        topics = await cluster.create("kept", partitions, on=(1, 2))
        replicas = _replicas(topics, partitions)
        await cluster.assign(replicas, cluster.brokers[0].directories[0], ASSIGNMENTS_PER_REQUEST)
        await asyncio.sleep(1.0)
        if "f" in parts:
            _memory(rig, samples, partitions, "after their creation")
        offset, epoch = cluster.observer.offset, cluster.observer.last_epoch
        broker_epoch = cluster.brokers[0].epoch
    for number in range(1 + extent.rounds if "e" in parts else 1):
        await asyncio.to_thread(rig.stop)
        began_s = rig.start()
        fetching = asyncio.ensure_future(rig.first_fetch(offset, epoch))
        beaten_s = await rig.first_heartbeat(1, broker_epoch)
        observer, fetched_s = await fetching
        observer.close()
        if "e" in parts:
            phase: Phase = "warm" if number else "cold"
            samples.add(
                "e", f"start with {partitions} partitions: first Fetch", 1000 * (fetched_s - began_s), phase=phase
            )
            served_s = max(fetched_s, beaten_s) - began_s
            samples.add("e", f"start with {partitions} partitions: serves brokers", 1000 * served_s, phase=phase)
    if "f" in parts:
        await asyncio.sleep(2.0)
        _memory(rig, samples, partitions, "after a restart")
    if "g" in parts:
        await asyncio.to_thread(rig.stop)
        await _snapshots(rig, samples, partitions, broker_epoch, extent)


def _memory(rig: ControllerRig, samples: Samples, partitions: int, when: str) -> None:
    memory = rig.memory()
    samples.add("f", f"PSS with {partitions} partitions, {when}", memory.pss_mib, unit="MiB")
    samples.add("f", f"RSS with {partitions} partitions, {when}", memory.rss_mib, unit="MiB")


async def _snapshots(rig: ControllerRig, samples: Samples, partitions: int, broker_epoch: int, extent: Extent) -> None:
    """The longest heartbeat while a few snapshots are made; no figure when none is."""
    rig.configure_controller({"metadata.log.max.snapshot.interval.ms": extent.snapshot_interval_ms})
    rig.start()
    await rig.first_heartbeat(1, broker_epoch)
    pinger = await LoadProcess.start(rig, _FIRST_OTHER, PAUSE_BROKERS, PAUSE_INTERVAL_MS)
    try:
        await asyncio.sleep(_SETTLE_S)
        before = rig.snapshots()
        pinger.reset()
        for _ in range(int(extent.snapshot_timeout_s / _SNAPSHOT_POLL_S)):
            if len(rig.snapshots() - before) >= SNAPSHOTS:
                break
            await asyncio.sleep(_SNAPSHOT_POLL_S)
        made = len(rig.snapshots() - before)
        waits, failures = await pinger.report()
    finally:
        await pinger.close()
    if failures:
        raise RigError(f"{failures} heartbeats were refused while snapshots were made")
    if made:
        name = f"heartbeats while snapshots of {partitions} partitions are made: longest"
        samples.add("g", name, 1000 * max(waits))


# ------------------------------------------------------------------------------------------------------ (c): heartbeats


async def heartbeats(rig: ControllerRig, samples: Samples, extent: Extent, part: str = "c") -> None:
    """More and more brokers, each with a heartbeat every two seconds, until the p99 is too long."""
    most: dict[Phase, int] = {"cold": 0, "warm": 0}
    loads: list[LoadProcess] = []
    async with cluster_of(rig, directories=3) as cluster:
        try:
            registered = 0
            for brokers in extent.ladder:
                while registered < brokers:
                    more = min(BROKERS_PER_PROCESS, brokers - registered)
                    loads.append(await LoadProcess.start(rig, _FIRST_OTHER + registered, more, 2000.0))
                    registered += more
                await asyncio.sleep(_SETTLE_S)
                for number in range(1 + extent.rounds):
                    phase: Phase = "warm" if number else "cold"
                    p99_ms = await _window(rig, cluster, loads, _Window(samples, part, brokers, phase), extent)
                    if p99_ms <= P99_MS_MAX:
                        most[phase] = max(most[phase], brokers)
                if p99_ms > 20 * P99_MS_MAX:
                    break  # a longer queue tells nothing
        finally:
            await close_all(loads)
    for phase, brokers in most.items() if len(extent.ladder) > 1 else ():
        samples.add(part, f"most brokers of {_list(extent.ladder)} at p99 up to {P99_MS_MAX:g} ms", brokers, unit="",
                    phase=phase)  # fmt: skip


async def logins(rig: ControllerRig, samples: Samples, extent: Extent) -> None:
    """TLS handshakes and logins, some at a time, until as many connections are open as were given."""
    count = extent.ladder[-1]
    async with cluster_of(rig, directories=3):
        load = await LoadProcess.start(rig, _FIRST_OTHER, 1, 2000.0)
        try:
            await asyncio.sleep(_SETTLE_S)
            for _, phase in _phases(extent):
                cpu_s = rig.cpu_s
                lasted_s = await load.log_in(count)
                used_s = rig.cpu_s - cpu_s
                if phase is not None:
                    samples.add("i", f"{count} logins: CPU of each", 1e6 * used_s / count, unit="µs", phase=phase)
                    samples.add("i", f"{count} logins: all", lasted_s, unit="s", phase=phase)
                await asyncio.sleep(_SETTLE_S)
        finally:
            await load.close()


@dataclass(frozen=True, slots=True)
class _Window:
    """A window of time, to which figures belong."""

    samples: Samples
    part: str
    brokers: int
    phase: Phase

    def add(self, name: str, value: float, unit: str) -> None:
        """Add one of them."""
        named = f"heartbeats of {self.brokers} brokers: {name}"
        self.samples.add(self.part, named, value, unit=unit, phase=self.phase)


async def _window(
    rig: ControllerRig,
    cluster: Cluster,
    loads: Sequence[LoadProcess],
    window: _Window,
    extent: Extent,
) -> float:
    """A window of time; its p99 in ms, infinite where heartbeats were refused."""
    clock = asyncio.get_running_loop().time
    for load in loads:
        load.reset()
    began_s, cpu_s = clock(), rig.cpu_s
    while (left_s := began_s + extent.window_s - clock()) > 0:
        for load in loads:
            load.tell_offset(cluster.observer.offset)
        await asyncio.sleep(min(_TELL_S, left_s))
    used_s, lasted_s = rig.cpu_s - cpu_s, clock() - began_s
    waits: list[float] = []
    refused = 0
    for load in loads:
        more, failures = await load.report()
        waits += more
        refused += failures
    window.add("p50", 1000 * percentile(waits, 50), "ms")
    window.add("p99", 1000 * percentile(waits, 99), "ms")
    window.add("CPU of each", 1e6 * used_s / len(waits), "µs")
    window.add("CPU", used_s / lasted_s, "cores")
    return math.inf if refused else 1000 * percentile(waits, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many per cent do not exceed."""
    if not values:
        raise RigError("no heartbeat was answered")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(percent / 100 * len(ordered)) - 1))]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
