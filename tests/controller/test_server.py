"""The controller as a server: over loopback, killed, and given bad input."""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import ConfigError, KjbodError, StorageError
from kjbod.ids import METADATA_TOPIC_ID, ONE, Uuid
from kjbod.metadata.acls import Operation, ResourceType
from kjbod.metadata.batches import encode_batch, iter_batches
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.control_records import KRaftVoters, Voter, VoterEndpoint
from kjbod.metadata.records import (
    BeginTransactionRecord,
    FeatureLevelRecord,
    Record,
    TopicRecord,
    encode_record,
)
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    ApiKey,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeQuorumRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponsePartition,
    MetadataRequest,
    UnregisterBrokerRequest,
)
from kjbod_controller_stub.log import controller_directory
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Serving, Site, until
from tests.controller.world import CLUSTER_ID, NODE_ID, directories, incarnation

ROOT = Path(__file__).parents[2]

_FOREIGN = """
import json, sys, kafka
consumer = kafka.KafkaConsumer(bootstrap_servers=sys.argv[1])
admin = kafka.KafkaAdminClient(bootstrap_servers=sys.argv[1])
print(json.dumps([
    sorted(consumer.topics()), sorted(consumer.partitions_for_topic("orders")), admin.describe_topics(["orders"])
]))
"""


async def connect(port: int) -> Connection:
    return await Connection.open("127.0.0.1", port, client_id="test", clock=SystemClock())


async def join(connection: Connection, broker_id: int) -> int:
    """Register with every feature that the controller shows, as the agent does, and unfence; the epoch."""
    answer = await connection.request(
        BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation(broker_id),
            listeners=(BrokerRegistrationRequestListener(name="PLAINTEXT", host="127.0.0.1", port=1),),
            features=tuple(
                BrokerRegistrationRequestFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in connection.features.supported.items()
            ),
            log_dirs=directories(broker_id),
        ),
        timeout_ms=60_000,
    )
    assert answer.error_code == 0
    beat = await connection.request(
        BrokerHeartbeatRequest(
            broker_id=broker_id, broker_epoch=answer.broker_epoch, current_metadata_offset=answer.broker_epoch
        ),
        timeout_ms=60_000,
    )
    assert not beat.is_fenced
    return answer.broker_epoch


async def fetch(connection: Connection, offset: int, *, epoch: int, wait_ms: int = 0) -> FetchResponsePartition:
    answer = await connection.request(
        FetchRequest(
            cluster_id=CLUSTER_ID,
            replica_state=FetchRequestReplicaState(replica_id=1),
            max_wait_ms=wait_ms,
            topics=(
                FetchRequestTopic(
                    topic_id=METADATA_TOPIC_ID,
                    partitions=(
                        FetchRequestPartition(
                            partition=0,
                            current_leader_epoch=epoch,
                            fetch_offset=offset,
                            last_fetched_epoch=epoch if offset else 0,
                        ),
                    ),
                ),
            ),
        ),
        timeout_ms=60_000,
    )
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


def create(name: str, partitions: int = 3) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=(CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=1),)
    )


async def test_an_observer_reads_the_log_from_its_beginning_and_is_woken_by_the_next_write(
    site: Site, serving: Serving
) -> None:
    site.configure(metadata_max_idle_interval_ms="60000")
    async with serving(site) as server, await connect(server.port) as reader, await connect(server.port) as writer:
        assert (await fetch(reader, 0, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        first = await fetch(reader, 0, epoch=1)
        batches = list(iter_batches(first.records or b""))
        assert batches[0].control
        assert batches[-1].next_offset == first.high_watermark == server.log.end_offset
        assert site.log_file.read_bytes() == first.records  # nothing is served that is not on the disk
        parked = asyncio.ensure_future(fetch(reader, first.high_watermark, epoch=1, wait_ms=9_000))
        await until(lambda: server.quorum.describe(DescribeQuorumRequest(), 0).topics[0].partitions[0].observers)
        await join(writer, 1)
        woken = await parked
        assert woken.high_watermark > first.high_watermark
        assert woken.records


async def test_a_fetch_of_nothing_new_is_answered_after_its_time(site: Site, serving: Serving) -> None:
    site.configure(metadata_max_idle_interval_ms="60000")
    async with serving(site) as server, await connect(server.port) as reader:
        answer = await fetch(reader, server.log.end_offset, epoch=1, wait_ms=50)
        assert (answer.error_code, answer.records) == (0, b"")
        diverging = await fetch(reader, server.log.end_offset + 5, epoch=1)
        assert diverging.diverging_epoch.end_offset == server.log.end_offset


async def test_features_are_shown_as_supported_and_finalized(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        features = connection.features
        assert features.finalized["metadata.version"] == 33
        assert features.finalized["kraft.version"] == 1
        assert features.supported["eligible.leader.replicas.version"] == (0, 1)
        assert features.finalized_epoch > 0
        assert connection.versions[ApiKey.FETCH] == (12, 18)


async def test_an_idle_controller_keeps_offsets_moving(site: Site, serving: Serving) -> None:
    site.configure(metadata_max_idle_interval_ms="10")
    async with serving(site) as server:
        before = server.log.end_offset
        await until(lambda: server.log.end_offset >= before + 3)


async def test_a_silent_broker_is_fenced_by_the_clock(site: Site, serving: Serving) -> None:
    site.configure(broker_session_timeout_ms="200")
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await until(lambda: server.controller.image.brokers[1].fenced)


@pytest.mark.usefixtures("world")
async def test_kafka_python_lists_topics_partitions_and_leaders(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await join(connection, 2)
        assert (await connection.request(create("orders", 4), timeout_ms=60_000)).topics[0].error_code == 0

        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-W", "ignore", "-c", _FOREIGN, f"127.0.0.1:{server.port}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        topics, partitions, described = json.loads(told.stdout)
        assert topics == ["orders"]
        assert partitions == [0, 1, 2, 3]
        assert {partition["leader_id"] for partition in described[0]["partitions"]} == {1, 2}


async def test_what_is_not_allowed_is_refused(site: Site) -> None:
    asked = []

    class OnlyBrokers:
        unrestricted = False

        def allow(self, operation: Operation, resource_type: ResourceType, name: str = "kafka-cluster") -> bool:
            asked.append((operation, resource_type, name))
            return operation is Operation.CLUSTER_ACTION

        def operations(self, resource_type: ResourceType, name: str = "kafka-cluster") -> int:
            return 0

    server = await ControllerServer.start(
        site.config, clock=SystemClock(), rng=random.Random(1), authorizer=lambda principal, host: OnlyBrokers()
    )
    try:
        async with await connect(server.port) as connection:
            await join(connection, 1)
            refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            unregistered = await connection.request(UnregisterBrokerRequest(broker_id=1), timeout_ms=60_000)
            assert unregistered.error_code == refused
            topics = await connection.request(create("t"), timeout_ms=60_000)
            assert topics.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            deleted = await connection.request(
                DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name="t"),)), timeout_ms=60_000
            )
            assert [topic.error_code for topic in deleted.responses] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
            metadata = await connection.request(MetadataRequest(topics=None), timeout_ms=60_000)
            assert metadata.error_code == refused
            assert 1 in server.controller.image.brokers
            assert (Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster") in asked
    finally:
        await server.close()


# ---- killed

_RUN = """
import resource
import sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
from kjbod_controller_stub.process import main
sys.exit(main(Path(sys.argv[1])))
"""


class Process:
    """The controller in a process of its own; ``files``: as many as it may open."""

    def __init__(self, site: Site, files: int = 4_096) -> None:
        sources = os.pathsep.join(str(ROOT / folder) for folder in ("", "agent", "controller_stub"))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN, str(site.config_path), str(files)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": sources},
        )

    def started(self) -> dict[str, Any]:
        """The fields of its ``controller.started``."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            entry: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "controller.started":
                return entry
        raise AssertionError(f"it ended with {self._process.wait()}")

    def signal(self, number: signal.Signals) -> tuple[int, str]:
        self._process.send_signal(number)
        _, rest = self._process.communicate(timeout=30)
        return self._process.returncode, rest

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def launch(site: Site) -> Iterator[Callable[..., Process]]:
    """Starts controllers on the site; none is left."""
    started: list[Process] = []

    def start(files: int = 4_096) -> Process:
        started.append(Process(site, files))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.mark.usefixtures("world")
async def test_a_controller_killed_while_it_creates_topics_has_all_that_it_acknowledged(
    launch: Callable[[], Process],
) -> None:
    acknowledged: list[str] = []
    epochs = []
    for life in range(3):
        process = launch()
        started = process.started()
        epochs.append(started["epoch"])
        connection = await connect(started["port"])
        if not life:
            await join(connection, 1)
        metadata = await connection.request(MetadataRequest(topics=None), timeout_ms=60_000)
        assert set(acknowledged) <= {topic.name for topic in metadata.topics}
        assert all(len(topic.partitions) == 3 for topic in metadata.topics)

        async def create_for_ever(connection: Connection = connection, life: int = life) -> None:
            for number in itertools.count():
                name = f"t-{life}-{number}"
                answer = await connection.request(create(name), timeout_ms=60_000)
                assert answer.topics[0].error_code == 0
                acknowledged.append(name)

        creating = asyncio.ensure_future(create_for_ever())
        before = len(acknowledged)
        await until(lambda: len(acknowledged) >= before + 20)  # noqa: B023
        process.signal(signal.SIGKILL)
        with pytest.raises(Disconnected):
            await creating
        await connection.close()
    assert epochs == [1, 2, 3]  # no epoch is used twice


@pytest.mark.usefixtures("world")
async def test_sigterm_ends_it_cleanly(launch: Callable[[], Process], site: Site) -> None:
    process = launch()
    process.started()
    assert (site.log_dir / ".lock").exists()
    code, rest = process.signal(signal.SIGTERM)
    assert code == 0
    assert '"controller.stopped"' in rest
    assert "Traceback" not in rest
    assert not (site.log_dir / ".lock").exists()


@pytest.mark.usefixtures("world")
async def test_one_asked_to_stop_while_it_starts_ends_cleanly(launch: Callable[[], Process], site: Site) -> None:
    process = launch()
    await until(lambda: (site.log_dir / ".lock").exists())
    code, rest = process.signal(signal.SIGTERM)
    assert code == 0
    assert '"controller.stopped"' in rest
    assert "Traceback" not in rest


@pytest.mark.usefixtures("world")
async def test_a_flood_of_connections_leaves_the_log_its_files(launch: Callable[..., Process], site: Site) -> None:
    process = launch(files=128)
    port = process.started()["port"]
    async with await connect(port) as connection:
        await join(connection, 1)
        flood = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port) for _ in range(200)), return_exceptions=True
        )
        for number in range(30):  # enough bytes for entries of the indexes, whose files are opened for each
            created = await connection.request(create(f"t{number}", 30), timeout_ms=30_000)
            assert created.topics[0].error_code == 0
        assert site.log_file.with_suffix(".index").stat().st_size > 0
        for one in flood:
            if not isinstance(one, BaseException):
                one[1].transport.abort()
    assert process.signal(signal.SIGTERM)[0] == 0


# ---- bad input, a log that fails


async def refusal(site: Site) -> str:
    """The one line with which a controller does not start."""
    with pytest.raises(KjbodError) as error:
        server = await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random(1))
        await server.close()
    line = str(error.value)
    assert "\n" not in line
    return line


def files(site: Site) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in site.log_dir.rglob("*") if path.is_file()}


async def test_an_unformatted_directory_is_named_and_left_alone(site: Site) -> None:
    shutil.rmtree(site.log_dir)
    site.log_dir.mkdir()
    assert "is not formatted" in await refusal(site)
    assert not files(site)
    site.log_dir.rmdir()
    assert "is not formatted" in await refusal(site)
    assert not site.log_dir.exists()


async def test_another_nodes_directory_is_refused(site: Site) -> None:
    site.format(node_id=7)
    before = files(site)
    assert "belongs to node 7" in await refusal(site)
    assert files(site) == before


@pytest.mark.usefixtures("world")
async def test_a_directory_in_use_is_refused(site: Site, serving: Serving, launch: Callable[[], Process]) -> None:
    launch().started()  # a POSIX lock is per process
    assert "is in use" in await refusal(site)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY])
def test_a_directory_that_cannot_be_locked_is_not_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(ConfigError, match=r"cannot be locked: .* its file system has no locks"):
        controller_directory._lock(tmp_path)


async def test_a_port_in_use_is_refused_before_anything_is_written(site: Site, serving: Serving) -> None:
    holder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = holder.sockets[0].getsockname()[1]
    site.configure(listeners=f"CONTROLLER://127.0.0.1:{port}")
    before = files(site)
    assert f"cannot listen on 127.0.0.1:{port}" in await refusal(site)
    assert files(site) == before
    holder.close()


@pytest.mark.parametrize(
    ("voters", "words"),
    [("3000@h:1,3001@h:2", "quorum of one"), ("3001@h:2", "3000")],
)
async def test_static_voters_that_are_not_itself_alone_are_refused(site: Site, voters: str, words: str) -> None:
    site.configure(controller_quorum_voters=voters)
    before = files(site)
    assert words in await refusal(site)
    assert files(site) == before


async def test_a_directory_formatted_for_several_voters_is_refused(site: Site) -> None:
    log = site.log_file.parent
    log.mkdir(exist_ok=True)
    voters = KRaftVoters(
        voters=tuple(
            Voter(
                voter_id=node,
                voter_directory_id=Uuid.of(node, 1),
                endpoints=(VoterEndpoint(name="CONTROLLER", host="h", port=1),),
            )
            for node in (NODE_ID, 3001)
        )
    )
    write_checkpoint(log / f"{0:020d}-{0:010d}.checkpoint", header_timestamp_ms=0, kraft=(1, voters), records=())
    assert "quorum of one" in await refusal(site)
    assert not site.log_file.exists()


def write_log(site: Site, *batches: tuple[Record, ...]) -> None:
    site.log_file.parent.mkdir(exist_ok=True)
    data, offset = b"", 0
    for records in batches:
        data += encode_batch([encode_record(record, 0) for record in records], offset, 1, 1_000)
        offset += len(records)
    site.log_file.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "level"), [("metadata.version", 34), ("metadata.version", 6), ("eligible.leader.replicas.version", 2)]
)
async def test_a_log_with_features_it_cannot_run_is_refused(site: Site, name: str, level: int) -> None:
    write_log(site, (FeatureLevelRecord(name="metadata.version", feature_level=30),))
    write_log(site, (FeatureLevelRecord(name=name, feature_level=level),))
    before = site.log_file.read_bytes()
    assert f"{name} {level}" in await refusal(site)
    assert site.log_file.read_bytes() == before


async def test_a_transaction_that_a_crash_cut_is_aborted(site: Site, serving: Serving) -> None:
    write_log(
        site,
        (FeatureLevelRecord(name="metadata.version", feature_level=30),),
        (BeginTransactionRecord(name="x"), TopicRecord(name="half", topic_id=ONE)),
    )
    async with serving(site) as server:
        assert not server.controller.image.topics
    async with serving(site) as server:
        assert not server.controller.image.topics
        assert server.controller.image.metadata_version == 30


async def test_a_torn_tail_is_cut_and_a_corrupt_middle_is_named(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await connection.request(create("t"), timeout_ms=60_000)
    whole = site.log_file.read_bytes()
    site.log_file.write_bytes(whole + whole[:40])
    async with serving(site) as server:
        assert set(server.controller.image.topic_ids) == {"t"}
    data = bytearray(whole)
    data[200] ^= 0xFF
    site.log_file.write_bytes(bytes(data))
    line = await refusal(site)
    assert str(site.log_file) in line
    assert site.log_file.read_bytes() == bytes(data)


async def test_a_log_that_fails_ends_the_controller_without_an_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError(5, "Input/output error")

    server = await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random(1))
    try:
        async with await connect(server.port) as connection:
            await join(connection, 1)
            monkeypatch.setattr(server.log._files, "sync", broken)
            asking = asyncio.ensure_future(connection.request(create("never"), timeout_ms=30_000))
            with pytest.raises(StorageError, match="Input/output error"):
                await server.run()
            with pytest.raises(Disconnected):
                await asking
    finally:
        await server.close()


async def test_while_an_fsync_hangs_the_answers_that_wait_for_it_are_bounded(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kjbod_controller_stub.server.WAITING_ANSWERS_MAX", 3)
    site.configure(metadata_max_idle_interval_ms="60000")
    back = threading.Event()
    async with serving(site) as server, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await connect(server.port)) for _ in range(4)]
        await join(clients[0], 1)
        sync = server.log._files.sync
        monkeypatch.setattr(server.log._files, "sync", lambda: (back.wait(), sync()))
        try:
            waiting = []
            for number, client in enumerate(clients[:3]):
                waiting.append(asyncio.ensure_future(client.request(create(f"t{number}"), timeout_ms=30_000)))
                await until(lambda: len(server._deferred) == len(waiting))
            with pytest.raises(Disconnected):
                await clients[3].request(create("one-too-many"), timeout_ms=30_000)
            assert not any(one.done() for one in waiting)
        finally:
            back.set()
        assert [answer.topics[0].error_code for answer in await asyncio.gather(*waiting)] == [0, 0, 0]
        assert set(server.controller.image.topic_ids) == {"t0", "t1", "t2"}


async def test_a_request_with_room_for_millions_of_elements_is_not_decoded(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as other:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        count = 1_000_000
        head = struct.pack(">hhihi", ApiKey.METADATA, 0, 1, -1, count)
        writer.write(struct.pack(">i", len(head) + 2 * count) + head + bytes(2 * count))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        await join(other, 1)


async def test_features_have_the_same_epoch_after_a_restart(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        first = server.controller.features_offset
    async with serving(site) as server:
        assert server.controller.features_offset == first


async def test_the_advertised_endpoint_follows_the_configuration(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        first = server.quorum.voters()
    site.configure(advertised_listeners="CONTROLLER://other.example:1234")
    async with serving(site) as server:
        assert server.quorum.voters() != first
        found = [
            control
            async for batch in server.log.batches(0)
            for _, control in batch.control_records()
            if isinstance(control, KRaftVoters)
        ]
    assert [record.voters[0].endpoints[0].port for record in found][-1] == 1234


async def test_hostile_bytes_cost_one_connection(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        for garbage in (b"\xff" * 64, b"\0\0\0\x08\0\x3f\0\x63aaaa", b"GET / HTTP/1.1\r\n\r\n" * 9, bytes(400)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(garbage)
            assert await reader.read() == b""
            writer.close()
        await join(connection, 1)
