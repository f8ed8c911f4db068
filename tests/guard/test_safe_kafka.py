"""Stories in which a guard that acts must not make things worse than real Kafka alone: it waits, and says why."""

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import system_random
from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from kjbod.ids import Uuid, random_uuid
from kjbod.metadata import versions
from kjbod.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    UnregisterBrokerRequest,
)
from kjbod_guard import suspects
from kjbod_guard.settling import UNSEEN_MS
from scripts.rig.cluster import Cluster, ask, directory_id, wait_until_serving
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.processes import Processes, free_port, wait_until
from tests.guard.conftest import Beside
from tests.guard.test_secured_kafka import metrics
from tests.guard.trio import Load, Others, Trio, other_brokers, third_broker

pytestmark = pytest.mark.xdist_group("safe-kafka")  # one controller, and two brokers, for all of them
FAILURE_TIMEOUT_MS = 3_000


@pytest.fixture(scope="module")
def others(world: None, kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    with other_brokers(kafka_kit, tmp_path_factory.mktemp("others")) as found:
        yield found


@pytest.fixture(scope="module")
def shared(
    as_root: None, kafka_kit: KafkaKit, others: Others, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trio]:
    """A broker for stories that leave it as it was."""
    with contextlib.ExitStack() as disks:

        def real_disk(**settings: Any) -> RealDisk:
            return disks.enter_context(RealDisk(**settings))

        with third_broker(tmp_path_factory.mktemp("shared"), others, kafka_kit, real_disk) as trio:
            yield trio
            for disk in trio.disks:
                disk.set(FaultMode.OK)


@pytest.fixture
def metadata(others: Others) -> Iterator[ClusterWatch]:
    with contextlib.closing(ClusterWatch(others.cluster.port, others.cluster.cluster_id)) as watch:
        yield watch


@contextlib.contextmanager
def guard_reads(config: Path, **keys: object) -> Iterator[None]:
    """Change keys in a broker's file for guards that are started in this block; the broker has read it before."""
    text = config.read_text()
    config.write_text(text + render_properties({key.replace("_", "."): value for key, value in keys.items()}))
    try:
        yield
    finally:
        config.write_text(text)


def last(since: float, seconds: float) -> None:
    """Wait until a story has lasted for so long."""
    wait_until(lambda: time.monotonic() - since >= seconds, seconds, f"{seconds:g} s since it began")


def hang(disk: RealDisk, seconds: float, seen: Callable[[], object]) -> None:
    """Have a disk hang for so long, and until the guard has seen it."""
    since = time.monotonic()
    disk.set(FaultMode.HANG)
    try:
        seen()
        last(since, seconds)
    finally:
        disk.set(FaultMode.OK)


def sole_copies(trio: Trio, name: str) -> tuple[str, RealDisk]:
    """Make a topic that the broker has alone; returns it, and a disk with one of its partitions."""
    topic = f"{name}-{trio.node}"
    trio.cluster.create_topic(topic, len(trio.disks), brokers=(trio.node,))

    def found() -> RealDisk | None:
        return next((disk for disk in trio.disks if list(disk.log_dir.glob(f"{topic}-*"))), None)

    return topic, wait_until(found, 30, f"a replica of {topic}")  # type: ignore[return-value]


def assert_kept(trio: Trio, *loads: Load) -> None:
    """Assert that nothing was done to disk and broker, and no record was lost, or refused for good."""
    assert trio.watch.deeds() == [] and trio.broker.running
    for load in loads:
        assert not load.failed, load.failed[:3]
        assert load.lost() == 0


def test_a_disk_that_answers_before_the_time_of_its_medium_is_left_alone_and_told_of(
    shared: Trio, processes: Processes, beside: Callable[..., Beside]
) -> None:
    guard = shared.start_guard(beside, guard_cut_after_ms=10_000)
    with shared.load() as load:
        load.wait_all()
        hang(shared.disks[1], 7, lambda: guard.wait_for_event("guard.done", means="suspect"))
        assert guard.wait_for_event("guard.done", 60, means="trust")["outcome"] == "done"
        shared.wait_until_ok()
        load.wait_all()
    assert_kept(shared, load)
    waits = {line["text"] for line in guard.events("guard.would", would="wait")}
    assert len(waits) == 1 and "nothing that cannot be undone before 10 s" in waits.pop()
    history = processes.kjbod("guard", "history", *shared.watch.arguments, name="history")
    assert history.wait() == 0
    assert {line.split()[3] for line in history.stdout().splitlines() if line.split()[2:3] == ["does"]} == {
        "means=suspect",
        "means=trust",
    }
    assert guard.stop() == 0


def test_a_disk_with_the_only_copies_is_left_alone_also_while_its_broker_is_fenced(
    shared: Trio, beside: Callable[..., Beside]
) -> None:
    topic, bad = sole_copies(shared, "sole")
    with guard_reads(shared.config, log_dir_failure_timeout_ms=FAILURE_TIMEOUT_MS):
        guard = shared.start_guard(beside, guard_cut_after_ms=3_000)
        with shared.load() as load, shared.load(topic, len(shared.disks)) as sole:
            load.wait_all()
            sole.wait_all()
            hang(bad, 4.5, lambda: guard.wait_for_event("guard.done", means="suspect"))
            guard.wait_for_event("guard.done", 60, means="trust")
            shared.wait_until_ok()
            load.wait_all()
            sole.wait_all()
        assert_kept(shared, load, sole)

        seen = len(guard.events())
        shared.broker.signal(signal.SIGSTOP)
        try:
            guard.wait_for_event("guard.registration", 60, after=seen, fenced=True)
            hang(bad, 5, lambda: guard.wait_for_event("directory.verdict", after=seen, state="failed"))
        finally:
            shared.broker.signal(signal.SIGCONT)
        guard.wait_for_event("guard.registration", 60, after=seen, fenced=False)
        shared.wait_until_ok()
        assert_kept(shared, load, sole)
        assert guard.stop() == 0


def test_a_broker_that_was_killed_beside_a_disk_that_hangs_keeps_its_only_copies_when_it_starts(
    shared: Trio, processes: Processes, beside: Callable[..., Beside]
) -> None:
    topic, bad = sole_copies(shared, "gate")
    guard = shared.start_guard(beside)
    with shared.load(topic, len(shared.disks)) as sole:
        sole.wait_all()
    shared.broker.signal(signal.SIGSTOP)  # no thread of it waits for the disk, so that it ends
    seen = len(guard.events())
    bad.set(FaultMode.HANG)
    shared.broker.kill()
    guard.wait_for_event("directory.verdict", after=seen, state="failed", path=str(bad.log_dir))
    gate = processes.kjbod("guard", "check", "--gate", "--timeout-ms", "8000", *shared.watch.arguments, name="gate")
    assert gate.wait() == 0
    assert f"{bad.log_dir} is left as it is" in gate.stderr() and "no other copy in sync" in gate.stderr()
    assert not {"cut", "mask"} & set(shared.watch.deeds()), shared.watch.deeds()
    bad.set(FaultMode.OK)
    wait_until_serving(shared.launch("broker-again"))
    shared.wait_until_ok()
    assert not {"cut", "mask", "evict"} & set(shared.watch.deeds()), shared.watch.deeds()
    assert sole.lost() == 0
    assert guard.stop() == 0


def test_the_last_copy_is_not_evicted_while_an_unclean_election_could_choose_an_older_one(
    shared: Trio, others: Others, kafka_kit: KafkaKit, metadata: ClusterWatch, beside: Callable[..., Beside]
) -> None:
    other, topic = others.ids[1], f"unclean-{shared.node}"
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": 1}
    shared.cluster.create_topic(topic, len(shared.disks), brokers=(shared.node, other), configs=configs)
    guard = shared.start_guard(beside)
    with shared.load(topic, len(shared.disks)) as load:
        load.wait_all()
        others.brokers[1].kill()
        wait_until(lambda: other not in metadata.unfenced(), 60, "a broker that is fenced")
        load.wait_all()
        hang(shared.disks[1], 4, lambda: guard.wait_for_event("guard.done", means="suspect"))
        guard.wait_for_event("guard.done", 60, means="trust")
        shared.wait_until_ok()
        load.wait_all()
        others.brokers[1] = others.cluster.launch_broker(kafka_kit, others.configs[1], name="broker-2-again")
        wait_until_serving(others.brokers[1])
        wait_until(lambda: metadata.in_sync(topic, 2) == len(shared.disks), 60, "replicas that are in sync again")
        load.wait_all()
    assert_kept(shared, load)
    assert guard.stop() == 0


@pytest.fixture
def own(
    tmp_path: Path,
    processes: Processes,
    others: Others,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
) -> Iterator[Trio]:
    """A broker for stories that cost it directories."""
    with third_broker(tmp_path, others, kafka_kit, real_disk) as trio:
        yield trio


def test_a_broker_is_not_killed_while_no_controller_answers_its_guard(
    own: Trio, others: Others, metadata: ClusterWatch, beside: Callable[..., Beside]
) -> None:
    def errors(disk: RealDisk) -> dict[str, Any]:
        """Have a disk answer errors, for longer than the failure timeout of the guard; what the guard says then."""
        disk.set(FaultMode.EIO)
        own.guard.wait_for_event("directory.verdict", path=str(disk.log_dir), state="failed")
        last(time.monotonic(), 2 * FAILURE_TIMEOUT_MS / 1000)
        rows: list[dict[str, Any]] = own.status()["directories"]
        return next(row for row in rows if row["path"] == str(disk.log_dir))

    def wait_until_noticed(disk: RealDisk) -> None:
        wait_until(lambda: not metadata.registered_dir(own.node, ids[disk]), 60, "a directory that Kafka has offline")

    first, second = own.disks[1:]
    ids = {disk: directory_id(disk.log_dir) for disk in own.disks}
    with guard_reads(own.config, log_dir_failure_timeout_ms=FAILURE_TIMEOUT_MS):
        # All controllers stand still.
        guard = own.start_guard(beside)
        assert others.cluster.controller is not None
        with own.load() as load:
            load.wait_all()
            others.cluster.controller.signal(signal.SIGSTOP)
            try:
                row = errors(first)
                assert row["would"] == "wait" and "no controller has answered" in row["would_reason"], row
                assert (own.broker.running, own.watch.deeds()) == (True, [])
            finally:
                others.cluster.controller.signal(signal.SIGCONT)
            wait_until_noticed(first)
            load.wait_all()
        assert not load.failed, load.failed[:3]
        assert load.lost() == 0
        before = own.watch.deeds()
        assert own.broker.exit_code is None and not {"kill", "fence"} & set(before), before
        assert guard.stop() == 0

        # The guard alone reaches none.
        with guard_reads(own.config, controller_quorum_bootstrap_servers=f"127.0.0.1:{free_port()}"):
            own.guard = own.watch.start()
            own.guard.wait_for_event("guard.broker.found")
            own.guard.wait_for_event("guard.metadata.missing")
            row = errors(second)
            assert row["would"] == "nothing", row
            assert row["would_reason"] == "whether Kafka has noticed is not known"
            assert "Connection refused" in own.status()["metadata_missing"]
            wait_until_noticed(second)
            assert (own.broker.running, own.watch.deeds()) == (True, before)
            assert own.guard.stop() == 0


@contextlib.contextmanager
def known_broker(cluster: Cluster, broker_id: int) -> Iterator[None]:
    """Have a broker that is registered, and that nobody has ever started."""
    ranges = versions.SUPPORTED_FEATURES.items()
    registration = BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=cluster.cluster_id,
        incarnation_id=random_uuid(system_random()),
        listeners=(BrokerRegistrationRequestListener(name="PLAINTEXT", host="127.0.0.1", port=free_port()),),
        features=tuple(
            BrokerRegistrationRequestFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in ranges
        ),
        log_dirs=(random_uuid(system_random()),),
    )
    assert ask(cluster.port, registration).error_code == 0
    try:
        yield
    finally:
        assert ask(cluster.port, UnregisterBrokerRequest(broker_id=broker_id)).error_code == 0


def test_a_file_system_is_not_shut_down_where_kafka_would_refuse_a_list_without_the_broker(
    own: Trio, others: Others, metadata: ClusterWatch, beside: Callable[..., Beside]
) -> None:
    # A partition has a replica on a broker that was unregistered: Kafka refuses each list that names it.
    node, gone, topic, count = own.node, 100 + own.node, f"refused-{own.node}", 2 * len(own.disks)
    with known_broker(own.cluster, gone):
        lists = (others.ids[0], node, gone)
        own.cluster.create_topic(topic, count, brokers=lists, configs={"min.insync.replicas": 1})
    wait_until(lambda: metadata.assigned_replicas(topic) == 2 * count, 60, topic)
    guard = own.start_guard(beside)
    bad, path = own.disks[1], own.paths[1]
    assert list(bad.log_dir.glob(f"{topic}-*"))
    bad.set(FaultMode.HANG)
    assert guard.wait_for_event("guard.done", 60, means="mask", path=path)["outcome"] in ("done", "pending")
    guard.wait_for_event("guard.kafka.view", 60, path=path, view="offline")
    # Kafka meets the mask at its next checkpoint; where that takes longer, the guard reports the directory. Partitions
    # of other tests that lie there are evicted.
    assert own.broker.running and set(own.watch.deeds()) <= {"mask", "report", "evict"}
    assert guard.stop() == 0


def write_record(trio: Trio, metadata: ClusterWatch, its: Uuid) -> None:
    """Have the record of a guard that was killed, and whose state directory is lost."""
    record = suspects.encode(metadata.broker_epoch(trio.node), [str(its)], "before-1")
    change = IncrementalAlterConfigsRequestConfig(name=suspects.CONFIG, value=record)
    resource = IncrementalAlterConfigsRequestResource(resource_type=4, resource_name=str(trio.node), configs=(change,))
    (answer,) = ask(trio.cluster.port, IncrementalAlterConfigsRequest(resources=(resource,))).responses
    assert answer.error_code == 0


def test_a_guard_whose_state_is_lost_evicts_what_the_one_before_it_has_cut(
    own: Trio, metadata: ClusterWatch, beside: Callable[..., Beside]
) -> None:
    # The one before was killed between cut and eviction. Without the eviction the leader takes the replica in again
    # where nobody writes, and it may lead after a restart without what it lost.
    bad, path, its = own.disks[1], own.paths[1], directory_id(own.disks[1].log_dir)
    wait_until(lambda: metadata.in_isr(own.node, its), 60, "replicas in sync on the disk")
    write_record(own, metadata, its)
    bad.shutdown()
    wait_until(lambda: not metadata.registered_dir(own.node, its), 60, "a directory that Kafka has offline")
    guard = own.start_guard(beside)
    assert guard.wait_for_event("guard.done", 60, means="evict", path=path)["outcome"] == "done"
    wait_until(lambda: own.status()["needs"]["below_replication_factor"], 30, "lists without the broker")
    assert (metadata.in_isr(own.node, its), own.watch.deeds()) == (0, ["evict"])
    assert own.broker.running and guard.stop() == 0


def test_a_guard_whose_state_is_lost_evicts_nothing_from_a_disk_that_the_one_before_it_has_only_reported(
    own: Trio, metadata: ClusterWatch, beside: Callable[..., Beside]
) -> None:
    # The one before was killed between report and cut. The broker has files open on a disk that hangs: evicted, it
    # would wait for it in an unlink, with the thread that applies metadata. Where its fetchers wait, it may be fenced.
    bad, path, its = own.disks[1], own.paths[1], directory_id(own.disks[1].log_dir)
    wait_until(lambda: metadata.in_isr(own.node, its), 60, "replicas in sync on the disk")
    write_record(own, metadata, its)
    bad.set(FaultMode.HANG)
    report = BrokerHeartbeatRequest(
        broker_id=own.node, broker_epoch=metadata.broker_epoch(own.node), offline_log_dirs=(its,)
    )
    assert ask(own.cluster.port, report).error_code == 0
    wait_until(lambda: not metadata.registered_dir(own.node, its), 60, "a directory that is reported offline")
    guard = own.start_guard(beside)
    since = time.monotonic()
    guard.wait_for_event("guard.directory", path=path, state="offline")
    guard.wait_for_event("guard.done", means="trust")
    last(since, 5)
    assert not {"evict", "cut", "mask"}.intersection(own.watch.deeds()), own.watch.deeds()
    bad.set(FaultMode.OK)
    guard.wait_for_event("directory.watched", 60, path=path)
    last(since, 10)
    assert not {"evict", "cut", "mask"}.intersection(own.watch.deeds()), own.watch.deeds()
    assert guard.stop() == 0


def test_nothing_after_a_cut_and_its_evictions_is_a_reason_to_fence(
    own: Trio, others: Others, processes: Processes, metadata: ClusterWatch, beside: Callable[..., Beside]
) -> None:
    def said(*command: str) -> str:
        done = processes.kjbod(*command, *own.watch.arguments, name=command[len(command) > 1])
        assert done.wait() == 0, done.stderr()
        return done.stdout()

    cluster, node, other = own.cluster, own.node, others.ids[0]
    served, count = f"served-{node}", 2 * len(own.disks)
    cluster.create_topic(served, count, brokers=(node, other), configs={"min.insync.replicas": 1})
    wait_until(lambda: metadata.assigned_replicas(served) == 2 * count, 60, served)
    port = free_port()
    guard = own.start_guard(beside, metrics_listener=f"127.0.0.1:{port}", slow_ms=500)
    bad, path = own.disks[1], own.paths[1]
    held = {topic: len(list(bad.log_dir.glob(f"{topic}-*"))) for topic in (served, own.topic)}
    assert all(held.values()), held

    with own.load(served, count) as load:
        load.wait_all()
        bad.set(FaultMode.HANG)
        assert guard.wait_for_event("guard.done", 60, means="cut", path=path)["outcome"] in ("done", "pending")
        guard.wait_for_event("guard.done", means="evict", path=path)
        wait_until(lambda: own.status()["needs"]["below_replication_factor"], 30, "lists without the broker")
        assert own.status()["refused"] == []
        screen = said("status")

        # Status and metrics have what is missing, and why.
        lacking = "kjbod_guard_partitions_below_replication_factor"
        assert own.status()["needs"]["below_replication_factor"] == held[served] + held[own.topic]
        scraped = metrics(port)
        assert f"{lacking} {held[served] + held[own.topic]:.1f}" in scraped
        assert "kjbod_guard_oldest_eviction_timestamp_seconds 1" in scraped
        told = rf"{held[served]} partitions? ha(s|ve) 1 of 2 replicas since \d.*: the guard evicted broker {node}"
        assert re.search(told, " ".join(screen.split())), screen  # lines are wrapped

        deeds = own.watch.deeds()
        assert deeds[:3] == ["report", "cut", "evict"] and set(deeds[3:]) <= {"evict"}, deeds

        # Another disk is slow meanwhile, and topics are made there.
        seen = len(guard.events())
        own.disks[2].delay_us(900_000)
        guard.wait_for_event("directory.verdict", 60, after=seen, path=own.paths[2], state="slow")
        fresh = f"fresh-{node}"
        cluster.create_topic(fresh, 4, brokers=(node, *others.ids), in_turns=True)
        wait_until(lambda: metadata.assigned_replicas(fresh) == 3 * 4, 60, fresh)
        assert list(own.disks[2].log_dir.glob(f"{fresh}-*"))

        # The bad disk is released, and then the broker pauses.
        assert f"{path}: released" in said("guard", "release", path)
        own.broker.signal(signal.SIGSTOP)
        last(time.monotonic(), 4)
        own.broker.signal(signal.SIGCONT)
        load.wait_all()
        assert own.status()["broker"]["state"] == "serving"
    assert own.broker.running and own.watch.deeds() == deeds, own.watch.deeds()
    assert not load.failed, load.failed[:3]
    assert load.lost() == 0
    assert guard.stop() == 0


def test_an_eviction_that_kafka_completes_when_another_broker_is_back_is_not_forgotten(
    tmp_path: Path,
    others: Others,
    kafka_kit: KafkaKit,
    metadata: ClusterWatch,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    with third_broker(tmp_path, others, kafka_kit, real_disk, min_isr=1) as trio:
        guard = trio.start_guard(beside)
        others.brokers[1].stop(120)
        wait_until(lambda: others.ids[1] not in metadata.unfenced(), 60, "a broker that is fenced")
        wait_until(lambda: metadata.in_sync(trio.topic, 3) == 0, 60, "partitions without it")
        trio.disks[1].set(FaultMode.HANG)
        assert guard.wait_for_event("guard.done", 60, means="evict", path=trio.paths[1])["outcome"] == "done"
        last(time.monotonic(), 1.2 * UNSEEN_MS / 1000)
        assert trio.status()["needs"]["below_replication_factor"] == 0, "Kafka waits for the broker that is away"
        others.brokers[1] = others.cluster.launch_broker(kafka_kit, others.configs[1], name="broker-2-again")
        wait_until_serving(others.brokers[1])
        bad = len(list(trio.disks[1].log_dir.glob(f"{trio.topic}-*")))
        wait_until(lambda: trio.status()["needs"]["below_replication_factor"] == bad, 60, "evictions that are shown")
        assert trio.broker.running and guard.stop() == 0
