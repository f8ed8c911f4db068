"""A real broker's disks are taken over by the agent and given back: nothing changes but what the metadata demanded."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.errors import EXIT_CONFIG
from kjbod.ids import LOST
from scripts.rig.kafka import REASSIGN_PARTITIONS, TOPICS, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, WaitTimeoutError, wait_until
from tests.agent.daemon_cluster import SharedController, wait_assigned
from tests.agent.handed_host import (
    CHECKPOINTS,
    COMMITTED,
    DIRECTORIES,
    FIRST,
    KEPT,
    FilledHosts,
    Host,
    add_lines,
    directory_id,
)
from tests.agent.real_broker import Manifest, RealBroker, manifest, of_replica, stop_clean
from tests.preloading import preloaded

pytestmark = [pytest.mark.usefixtures("kafka_kit"), pytest.mark.timeout(400)]

TO_DELETE = {"gone": 3, "forgotten": 2}
RECOVERED = re.compile(r"Recovering (\d+) logs from (\S+) since no clean shutdown file was found")
SKIPPED = re.compile(r"Skipping recovery of (\d+) logs from (\S+) since clean shutdown file was found")


@pytest.fixture
def host(tmp_path: Path, processes: Processes, kafka_kit: KafkaKit, kafka_controller: SharedController) -> Host:
    return Host(tmp_path, processes, kafka_kit, kafka_controller)


@pytest.fixture(scope="module")
def take_over_controller(kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledHosts]:
    base = tmp_path_factory.mktemp("take-over")
    with Processes(base / "logs", preloaded=preloaded()) as processes:
        hosts = FilledHosts(base, processes, kafka_kit)
        yield hosts
        hosts.close()


@pytest.fixture
def filled(request: pytest.FixtureRequest, take_over_controller: FilledHosts) -> Iterator[Host]:
    """Data of every kind, and the broker that serves it."""
    failed = request.session.testsfailed
    yield take_over_controller.host()
    if request.session.testsfailed > failed:
        take_over_controller.close()


def fill_topics_to_delete(host: Host) -> None:
    """Of each of two topics, one partition with data."""
    for topic, partitions in TO_DELETE.items():
        host.cluster.create_topic(topic, partitions, 1)
    for topic, partitions in TO_DELETE.items():
        host.broker.wait_led(topic, partitions)
    host.broker.produce("gone", 0, [b"x" * 100] * 20)
    host.broker.produce("forgotten", 1, [b"y" * 100] * 20)


def wait_moved(source: Path, target: Path) -> None:
    wait_until(lambda: target.is_dir() and not source.exists(), 60, f"the move to {target}")


def in_the_log(pattern: re.Pattern[str], broker: ManagedProcess) -> dict[str, int]:
    return {Path(path).name: int(count) for count, path in pattern.findall(broker.stderr())}


def unlike(before: Manifest, after: Manifest) -> set[str]:
    """Paths that are not the same in both."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def unlike_lines(host: Host, number: int, name: str, before: dict[tuple[int, str], set[str]]) -> set[str]:
    """Topics whose lines in a checkpoint file are not what they were."""
    return {line.split(" ")[0] for line in host.checkpoints()[number, name] ^ before[number, name]}


def replicas_of(paths: set[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def test_directories_that_the_agent_made_serve_a_real_broker(host: Host) -> None:
    agent = host.run_agent()
    host.cluster.create_topic("events", 9, 1)
    wait_assigned(agent, 9)
    where = {f"events-{n}": host.where(f"events-{n}") for n in range(9)}
    was = host.manifests()
    epoch = host.stop_agent(agent)
    assert host.manifests() == was
    assert host.marks() == [f'{{"version":0,"brokerEpoch":{epoch}}}'] * 3

    broker = host.broker.start()
    assert in_the_log(RECOVERED, broker) == {}
    host.broker.wait_led("events", 9)
    for partition in range(9):
        host.broker.produce("events", partition, [f"{partition}".encode()] * 10)
        assert host.broker.consume("events", partition) == (0, [f"{partition}".encode()] * 10)
    assert {name: host.where(name) for name in where} == where, "the broker made none of them anew"
    stop_clean(broker)
    was = host.manifests()

    agent = host.run_agent()
    host.stop_agent(agent)
    assert agent.events("assignments.sent") == []
    assert host.manifests() == was


def every_file(host: Host) -> dict[str, tuple[int, bytes, int]]:
    """Size, content and time of change in ns of each file on the broker's directories, by its path."""
    files = [path for number in DIRECTORIES for path in host.directory(number).rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_an_agent_without_permission_refuses_a_stopped_broker_s_disks_and_takes_them_over_with_it(
    host: Host, processes: Processes
) -> None:
    broker = host.start_broker()
    host.cluster.create_topic("events", 3, 1)
    host.broker.wait_led("events", 3)
    host.broker.produce("events", 0, [b"x"] * 10)
    stop_clean(broker)
    before, ids = every_file(host), host.ids()
    lines = [line for line in host.config.read_text().splitlines() if not line.startswith("kjbod.agent.take.over")]
    host.config.write_text("\n".join(lines) + "\n")

    refused = host.cluster.start_agent(host.config, name="refused")
    assert refused.wait() == EXIT_CONFIG
    (line,) = [line for line in refused.stderr().splitlines() if not line.startswith("{")]
    assert line == (
        f"kjbod: {host.directory(1)}: an Apache Kafka broker has used this log directory "
        "(recovery-point-offset-checkpoint). An agent would register as that broker. To watch a Kafka broker use kjbod "
        "guard run; to replace Kafka on this host give --take-over or set kjbod.agent.take.over=true"
    )
    assert refused.events("agent.registered") == []
    assert every_file(host) == before
    for number in DIRECTORIES:
        assert not list(host.directory(number).glob(".kjbod*"))

    agent = processes.kjbod("agent", "-c", str(host.config), "--take-over", name="agent")
    agent.wait_for_event("agent.unfenced", 90)
    host.stop_agent(agent)
    assert host.ids() == ids


def test_a_segment_with_data_is_a_trace_of_a_broker_whose_checkpoints_are_gone(
    host: Host, processes: Processes
) -> None:
    broker = host.start_broker()
    host.cluster.create_topic("events", 1, 1)
    host.broker.wait_led("events", 1)
    host.broker.produce("events", 0, [b"x"] * 10)
    stop_clean(broker)
    for number in DIRECTORIES:
        for name in CHECKPOINTS:
            (host.directory(number) / name).unlink(missing_ok=True)
    config = host.config.read_text()
    host.config.write_text(config.replace("kjbod.agent.take.over=true", "kjbod.agent.take.over=false"))
    refused = processes.kjbod("agent", "-c", str(host.config), name="refused")
    assert refused.wait() == EXIT_CONFIG
    assert f"has used this log directory (events-0/{0:020d}.log)" in refused.stderr()


def test_a_newcomer_after_a_reassignment_is_assigned_at_once_by_the_agent(
    host: Host, processes: Processes, kafka_kit: KafkaKit, tmp_path: Path
) -> None:
    """Shipped Kafka leaves it UNASSIGNED until the broker restarts, and leading a dead disk then."""
    agent = host.run_agent()
    other = RealBroker(kafka_kit, processes, host.cluster.configure(2))
    second = other.start()
    kafka_kit.run(
        TOPICS,
        *("--bootstrap-server", other.bootstrap, "--create", "--topic", "events"),
        *("--replica-assignment", "2,2,2"),
    )
    other.wait_led("events", 3)
    assert agent.events("assignments.sent") == []
    plan = tmp_path / "plan.json"
    partitions = [{"topic": "events", "partition": n, "replicas": [2, 1]} for n in range(3)]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    kafka_kit.run(
        REASSIGN_PARTITIONS,
        *("--bootstrap-server", other.bootstrap, "--reassignment-json-file", str(plan), "--execute"),
    )
    wait_assigned(agent, 3)
    expected = {f"events-{n}": directory_id(host, host.where(f"events-{n}")) for n in range(3)}
    assert len(set(expected.values())) == 3
    wait_until(lambda: {n: host.assigned().get(n) for n in expected} == expected, 20, "directories in the metadata")
    assert agent.running
    stop_clean(second)
    host.stop_agent(agent)


def test_a_crashed_broker_s_disks_are_given_back_for_it_to_recover(filled: Host) -> None:
    """The agent recovers no log, so it must not call a directory clean that was not."""
    host, broker = filled, filled.serving_broker()
    before = host.broker.contents(KEPT)
    broker.kill()
    torn = host.directory(host.where("orders-3")) / "orders-3" / f"{0:020d}.log"
    assert host.marks() == [None] * 3
    with open(torn, "ab") as file:
        file.write(b"\0" * 7 + b"half of a batch")
    was = host.manifests()

    agent = host.run_agent()
    host.stop_agent(agent)
    assert host.manifests() == was
    assert host.marks() == [None] * 3, "what nobody has recovered is not clean"
    agent = host.run_agent()
    host.cluster.create_topic("later", 3, 1)
    wait_assigned(agent, 3)
    agent.kill()

    again = host.start_broker()
    everywhere = {"d1", "d2", "d3"}
    wait_until(lambda: in_the_log(RECOVERED, again).keys() == everywhere, 20, "recovery of each directory")
    for topic, partitions in {**KEPT, "later": 3}.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT, before) == before
    assert host.broker.committed("readers", "orders", 2) == COMMITTED
    host.broker.produce("orders", 3, [b"behind the torn end"])
    assert host.broker.consume("orders", 3)[1][-1] == b"behind the torn end"


@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
def test_mv_13_mv_14_what_the_agent_moved_is_whole_for_the_real_broker_and_starts_where_it_started(
    filled: Host, crashed: bool
) -> None:
    host, broker = filled, filled.serving_broker()
    before = host.broker.contents(KEPT)
    assert before["orders-2"][0] == FIRST
    if crashed:
        broker.kill()
    else:
        stop_clean(broker)
    was = host.manifests()
    agent = host.run_agent()
    moved = {name: (host.where(name), host.where(name) % 3 + 1) for name in ("orders-2", "clicks-0", "orders-5")}
    for name, (_, target) in moved.items():
        host.kjbod("move", name, "--to", str(host.directory(target)))
    for name, (source, target) in moved.items():
        wait_moved(host.directory(source) / name, host.directory(target) / name)
    for name, (source, target) in moved.items():
        now, then = of_replica(manifest(host.directory(target)), name), of_replica(was[source], name)
        # The file with the topic id was made at once, as a new replica's.
        assert now.pop("partition.metadata")[:2] == then.pop("partition.metadata")[:2]
        assert now == then, "each file, and the time of its last change"
    assigned = host.assigned()
    assert {name: assigned[name] for name in moved} == {
        name: directory_id(host, target) for name, (_, target) in moved.items()
    }
    host.stop_agent(agent)
    with_data = set(DIRECTORIES) - set(host.empty())
    assert {host.marks()[number - 1] is None for number in with_data} == {crashed}

    again = host.start_broker()
    for topic, partitions in KEPT.items():
        host.broker.wait_led(topic, partitions)
    wait_until(lambda: (in_the_log(RECOVERED, again) != {}) == crashed, 20, "recovery, or none")
    assert host.broker.contents(KEPT, before if crashed else None) == before
    assert {name: host.where(name) for name in moved} == {name: target for name, (_, target) in moved.items()}
    host.broker.produce("orders", 2, [b"behind"])
    assert host.broker.consume("orders", 2)[1][-1] == b"behind"


def test_replicas_that_the_agent_cannot_use_are_given_back_with_all_that_is_in_them(filled: Host) -> None:
    host, broker = filled, filled.serving_broker()
    before = host.broker.contents(KEPT)
    stop_clean(broker)
    unreadable = host.directory(host.where("orders-3")) / "orders-3" / "partition.metadata"
    linked = host.directory(host.where("orders-2")) / "orders-2"
    elsewhere = host.cluster.base / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    content = unreadable.read_bytes()
    unreadable.write_bytes(bytes(len(content)))
    was, data = host.manifests(), manifest(elsewhere)
    lost = {"orders-2": str(LOST), "orders-3": str(LOST)}
    for _ in range(2):
        agent = host.run_agent()
        wait_until(lambda: {name: str(host.assigned()[name]) for name in lost} == lost, 20, "both to be offline")
        assert agent.events("replica.created") == agent.events("replica.stray") == []
        host.stop_agent(agent)
    assert (host.manifests(), manifest(elsewhere)) == (was, data)
    unreadable.write_bytes(content)
    again = host.start_broker()
    try:
        host.broker.wait_led("orders", KEPT["orders"], timeout_s=10)
    except WaitTimeoutError:
        # Kafka 4.3.1 does not repeat an assignment that it sent with the epoch of its life before (STALE_BROKER_EPOCH).
        stop_clean(again)
        host.start_broker()
    for topic, partitions in KEPT.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT) == before, "no record is lost, also behind the link, which Kafka follows"
    stop_clean(host.serving_broker())  # the next test needs a host without a link


def test_an_agent_that_is_killed_on_a_clean_broker_s_disks_costs_a_recovery_and_nothing_else(filled: Host) -> None:
    host, broker = filled, filled.serving_broker()
    before = host.broker.contents(KEPT)
    stop_clean(broker)
    was = host.manifests()
    agent = host.run_agent()
    assert host.marks() == [None] * 3
    agent.kill()
    assert host.manifests() == was
    again = host.start_broker()
    wait_until(lambda: in_the_log(RECOVERED, again).keys() == {"d1", "d2", "d3"}, 20, "recovery of each directory")
    for topic, partitions in KEPT.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT) == before


def test_a_real_broker_s_disks_are_taken_over_and_given_back_with_all_that_is_in_them(filled: Host) -> None:
    host, broker = filled, filled.serving_broker()
    fill_topics_to_delete(host)
    before = host.broker.contents(KEPT)
    assert before["orders-2"][0] == FIRST
    stop_clean(broker)
    ids, was, checkpoints = host.ids(), host.manifests(), host.checkpoints()
    assert len([path for path in was[host.where("clicks-0")] if re.match(r"clicks-0/\d+\.log$", path)]) >= 3
    metadata = {path: path.read_bytes() for path in host.directory(1).glob("__cluster_metadata-0/*.log")}
    assert metadata, "the broker's own copy of the metadata"

    add_lines(host.config, {"log.segment.delete.delay.ms": 60_000})
    # While nobody is there: a topic is deleted, and a person moves a replica to another directory.
    host.cluster.delete_topics("forgotten")
    moved, source = "clicks-1", host.where("clicks-1")
    target = source % 3 + 1
    os.rename(host.directory(source) / moved, host.directory(target) / moved)
    forgotten = {name: host.where(name) for name in ("forgotten-0", "forgotten-1")}

    agent = host.run_agent()
    events = [event["event"] for event in agent.events()]
    assert events.index("assignments.acknowledged") < events.index("agent.unfenced"), "it is assigned first"
    host.cluster.create_topic("fresh", 3, 1)
    wait_assigned(agent, 4)
    deleted = {f"gone-{n}": host.where(f"gone-{n}") for n in range(3)}
    host.cluster.delete_topics("gone")
    wait_until(lambda: not any((host.directory(n) / name).exists() for name, n in deleted.items()), 30, "deletions")
    epoch = host.stop_agent(agent)

    assert host.ids() == ids
    assert host.marks() == [f'{{"version":0,"brokerEpoch":{epoch}}}'] * 3
    now = host.manifests()
    assert of_replica(now[target], moved) == of_replica(was[source], moved)
    for number in DIRECTORIES:
        changed = replicas_of(unlike(was[number], now[number])) - {moved}
        for name in CHECKPOINTS & changed:
            assert unlike_lines(host, number, name, checkpoints) <= {"gone", "forgotten"}
        changed -= CHECKPOINTS
        for name in changed:
            kind = re.match(r"(fresh|gone|forgotten)-\d+(\.[0-9a-f]{32}-(delete|stray))?$", name)
            assert kind is not None, f"{name} in {number} is not what the metadata demanded"
    for name, number in {**deleted, **forgotten}.items():
        left = [path.name for path in host.directory(number).glob(f"{name}*")]
        assert len(left) == 1, f"{name}: {left}"
        assert of_replica(now[number], left[0]) == of_replica(was[number], name), "renamed, and nothing removed yet"
    assert {path: path.read_bytes() for path in metadata} == metadata, "of its copy nothing was changed"
    assigned = host.assigned()
    assert assigned[moved] == directory_id(host, target)
    for name in [f"orders-{n}" for n in range(6)] + [f"fresh-{n}" for n in range(3)]:
        assert assigned[name] == directory_id(host, host.where(name)), name

    again = host.start_broker()
    assert in_the_log(RECOVERED, again) == {}
    assert in_the_log(SKIPPED, again).keys() == {"d1", "d2", "d3"}
    for topic, partitions in {**KEPT, "fresh": 3}.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT) == before
    assert host.broker.committed("readers", "orders", 2) == COMMITTED
    host.broker.produce("fresh", 0, [b"first"])
    host.broker.produce("orders", 2, [b"one more"])
    assert host.broker.consume("fresh", 0) == (0, [b"first"])
    assert host.broker.consume("orders", 2)[1][-1] == b"one more"
    stop_clean(again)
