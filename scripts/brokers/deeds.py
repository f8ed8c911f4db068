"""Faults and changes for a cluster while clients write and read: restarts, moves, broken disks, changed topics.

Each deed leaves the cluster whole before it returns: every partition has a leader and all its replicas in sync, and
clients have made progress. So one thing fails at a time, which three replicas and ``min.insync.replicas=2`` survive.
"""

import functools
import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from scripts.brokers.cluster import Place, RealCluster
from scripts.brokers.load import GroupReader, TransactionalWriter, Writer
from scripts.rig.kafka import REASSIGN_PARTITIONS
from scripts.rig.processes import WaitTimeoutError, wait_until
from scripts.rig.rig_error import RigError

LOADED: Final = ("plain", "compacted", "transactional")
PASSING: Final = ("brief-1", "brief-2")
"""Topics that are deleted and made again; nobody's records are counted there."""
_PARTITIONS: Final = 6
_COPIES: Final = 3
_THROTTLE_BYTES_PER_S: Final = 2_000_000
_MOVE_TIMEOUT_S: Final = 240.0
_PROGRESS_TIMEOUT_S: Final = 180.0
_RECORDS_PER_STEP: Final = 50
_RETRY_S: Final = 1.0


class Story:
    """A cluster under load; a ``with`` block starts and ends the clients."""

    def __init__(self, cluster: RealCluster, seed: int, say: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.say = say
        self.writers = [Writer(cluster.bootstrap, topic, per_second=100) for topic in LOADED[:2]]
        self.transactions = TransactionalWriter(cluster.bootstrap, LOADED[2])
        self.readers = [
            GroupReader(cluster.bootstrap, list(LOADED), group="classic", name="reader-1"),
            GroupReader(cluster.bootstrap, list(LOADED), group="classic", name="reader-2"),
            GroupReader(cluster.bootstrap, list(LOADED), group="modern", name="reader-3", protocol="consumer"),
        ]
        self.deeds: tuple[Callable[[], None], ...] = (
            self.kill_the_controller,
            self.stop_and_start_a_broker,
            self.move_replicas_to_other_brokers,
            self.change_configurations,
            self.kill_a_broker,
            self.move_replicas_to_other_directories,
            self.delete_topics_and_make_them_again,
            self.stop_and_start_the_controller,
            self.add_partitions,
            self.have_a_broker_fetch_all_metadata_anew,
            self.break_and_mend_a_disk,
            self.elect_preferred_leaders,
            self.kill_the_controller_in_the_middle_of_a_move,
            self.kill_broker_and_controller_together,
            self.restart_one_broker_after_the_other,
        )

    # ---- clients

    def create(self) -> None:
        """The topics. ``compacted`` is deleted and compacted by key, and no key appears twice."""
        config = {"min.insync.replicas": "2", "segment.bytes": "1048576"}
        self._create(*LOADED, config=config)
        self._create(*PASSING, config={})
        self.cluster.wait_until_in_sync()

    def _create(self, *names: str, config: dict[str, str]) -> None:
        for name in names:
            more = config | ({"cleanup.policy": "compact"} if name == "compacted" else {})
            topic = NewTopic(name, num_partitions=_PARTITIONS, replication_factor=_COPIES, config=more)
            self._insist(functools.partial(self._create_one, topic))

    def _create_one(self, topic: NewTopic) -> None:
        self.cluster.admin.create_topics([topic])[topic.topic].result()

    def _insist(self, step: Callable[[], object], timeout_s: float = 120.0) -> None:
        """As an administrator does: the same again while the cluster is being restarted."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                step()
                return
            except KafkaException as error:
                if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
                    return
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(_RETRY_S)

    def start_clients(self) -> None:
        for client in (*self.writers, self.transactions, *self.readers):
            client.start()
        self.progress()

    def progress(self) -> None:
        """Wait until every writer has written more."""
        wanted = [len(writer.acknowledged) + _RECORDS_PER_STEP for writer in self.writers]
        commits = self.transactions.commits + 2

        def done() -> bool:
            for client in (*self.writers, self.transactions, *self.readers):
                if client.problems:
                    raise RigError("; ".join(client.problems))
            return self.transactions.commits >= commits and all(
                len(writer.acknowledged) >= count for writer, count in zip(self.writers, wanted, strict=True)
            )

        wait_until(done, _PROGRESS_TIMEOUT_S, f"clients to make progress ({self.cluster.out_of_sync()})")

    def settle(self) -> None:
        """Wait until all is in sync, and clients go on."""
        self.cluster.wait_until_in_sync()
        self.progress()

    @property
    def acknowledged(self) -> set[str]:
        return self.transactions.acknowledged.union(*(writer.acknowledged for writer in self.writers))

    def stop_writers(self) -> None:
        for client in (*self.writers, self.transactions):
            client.stop()

    def wait_for_readers(self) -> None:
        """Until each group has seen all that was acknowledged, as its members read it."""
        for group in (self.readers[:2], self.readers[2:]):
            try:
                wait_until(functools.partial(self._has_read, group), _PROGRESS_TIMEOUT_S, "a group to have read all")
            except WaitTimeoutError as error:
                unread = sorted(self.acknowledged.difference(*(reader.seen for reader in group)))
                said = "; ".join(f"{reader.name}: {reader.problems} {reader.last_error}" for reader in group)
                raise RigError(f"{error}: {len(unread)} records are unread, among them {unread[:5]}; {said}") from None
        for reader in self.readers:
            reader.stop()

    def _has_read(self, group: Sequence[GroupReader]) -> bool:
        return not self.acknowledged.difference(*(reader.seen for reader in group))

    # ---- restarts

    def _any_broker(self) -> int:
        return self.rng.choice(self.cluster.ids)

    def stop_and_start_a_broker(self, broker: int | None = None) -> None:
        broker = broker or self._any_broker()
        self.cluster.stop_broker(broker)
        led = [key for key, part in self.cluster.partitions().items() if part.leader in (broker, -1)]
        assert not led, f"broker {broker} has stopped in good order and leads {led}"
        self.cluster.start_broker(broker)
        self.settle()

    def have_a_broker_fetch_all_metadata_anew(self) -> None:
        """From a snapshot, once the beginning of the log is gone."""
        broker = self._any_broker()
        self.cluster.stop_broker(broker)
        shutil.rmtree(self.cluster.log_dirs[broker, 1] / "__cluster_metadata-0")
        self.cluster.start_broker(broker)
        self.settle()

    def kill_a_broker(self) -> None:
        broker = self._any_broker()
        self.cluster.kill_broker(broker)
        self.progress()
        self.cluster.start_broker(broker)
        self.settle()

    def restart_one_broker_after_the_other(self) -> None:
        for broker in self.cluster.ids:
            self.stop_and_start_a_broker(broker)

    def kill_the_controller(self) -> None:
        self.cluster.kill_controller()
        self.progress()
        self.cluster.start_controller()
        self.settle()

    def stop_and_start_the_controller(self) -> None:
        self.cluster.stop_controller()
        self.cluster.start_controller()
        self.settle()

    def kill_broker_and_controller_together(self) -> None:
        broker = self._any_broker()
        self.cluster.kill_broker(broker)
        self.cluster.kill_controller()
        self.cluster.start_controller()
        self.progress()
        self.cluster.start_broker(broker)
        self.settle()

    # ---- moves

    def _plan(self, moves: dict[tuple[str, int], tuple[list[int], list[str]]]) -> str:
        partitions = [
            {"topic": topic, "partition": number, "replicas": replicas, "log_dirs": dirs}
            for (topic, number), (replicas, dirs) in moves.items()
        ]
        path = self.cluster.base / "plan.json"
        path.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return str(path)

    def _reassign(self, plan: str, *options: str) -> None:
        arguments = ("--bootstrap-server", self.cluster.bootstrap, "--reassignment-json-file", plan)
        self.cluster.kit.run(REASSIGN_PARTITIONS, *arguments, "--execute", *options)

    def _finish(self, plan: str) -> None:
        """``--verify`` until nothing is in progress, which takes the throttles away."""
        arguments = ("--bootstrap-server", self.cluster.bootstrap, "--reassignment-json-file", plan, "--verify")

        def done() -> bool:
            said = self.cluster.kit.run(REASSIGN_PARTITIONS, *arguments, check=False).stdout
            assert "failed" not in said, said
            return "Clearing topic-level throttles" in said and "still in progress" not in said

        wait_until(done, _MOVE_TIMEOUT_S, "the reassignment to be complete")

    def _moves_across(self) -> dict[tuple[str, int], tuple[list[int], list[str]]]:
        """Other replicas for each loaded partition: two, or three in another order, grown back the next time."""
        moves = {}
        for (topic, number), part in self.cluster.partitions().items():
            if topic in LOADED:
                copies = 3 if len(part.replicas) == 2 else self.rng.choice((2, 3))
                moves[topic, number] = (self.rng.sample(self.cluster.ids, copies), ["any"] * copies)
        return moves

    def move_replicas_to_other_brokers(self) -> None:
        throttle = ("--throttle", str(_THROTTLE_BYTES_PER_S))
        for _ in range(2):
            plan = self._plan(self._moves_across())
            self._reassign(plan, *throttle)
            self._finish(plan)
            self.settle()
        self._grow_back()

    def _grow_back(self) -> None:
        """All loaded partitions have three replicas again, so that any broker may be killed."""
        moves = {
            key: (self.rng.sample(self.cluster.ids, 3), ["any"] * 3)
            for key, part in self.cluster.partitions().items()
            if key[0] in LOADED and len(part.replicas) < _COPIES
        }
        if moves:
            plan = self._plan(moves)
            self._reassign(plan)
            self._finish(plan)
        self.settle()

    def move_replicas_to_other_directories(self) -> None:
        moves = {}
        for (topic, number), part in self.cluster.partitions().items():
            if topic in LOADED:
                dirs = [str(self._any_dir(broker)) for broker in part.replicas]
                moves[topic, number] = (list(part.replicas), dirs)
        plan = self._plan(moves)
        self._reassign(plan, "--replica-alter-log-dirs-throttle", str(_THROTTLE_BYTES_PER_S))
        self._finish(plan)
        self.settle()

    def _any_dir(self, broker: int) -> object:
        return self.rng.choice([path for (owner, _), path in self.cluster.log_dirs.items() if owner == broker])

    def kill_the_controller_in_the_middle_of_a_move(self) -> None:
        plan = self._plan(self._moves_across())
        self._reassign(plan, "--throttle", str(_THROTTLE_BYTES_PER_S))
        self.cluster.kill_controller()
        self.cluster.start_controller()
        self._finish(plan)
        self._grow_back()

    # ---- disks

    def break_and_mend_a_disk(self) -> None:
        if not self.cluster.disks:
            self.say("  no disks of our own without root: left out")
            return
        place: Place = self.rng.choice(sorted(self.cluster.disks))
        self.cluster.break_disk(place)
        wait_until(self.cluster.out_of_sync, 120, f"replicas on disk {place} to leave the ISR")
        self.progress()
        without = [part for part in self.cluster.partitions().values() if part.leader < 0]
        assert not without, f"without leader: {without}"
        self.cluster.stop_broker(place[0])
        self.cluster.mend_disk(place)
        self.cluster.start_broker(place[0])
        self.settle()

    # ---- topics

    def delete_topics_and_make_them_again(self) -> None:
        for name in PASSING:
            self._insist(functools.partial(self._delete, name))
        wait_until(lambda: not {key for key in self.cluster.partitions() if key[0] in PASSING}, 60, "them to be gone")
        self._create(*PASSING, config={"retention.ms": "600000"})
        self.settle()

    def _delete(self, name: str) -> None:
        self.cluster.admin.delete_topics([name])[name].result()

    def add_partitions(self) -> None:
        counts = [key for key in self.cluster.partitions() if key[0] == LOADED[0]]
        more = NewPartitions(LOADED[0], len(counts) + 2)
        self._insist(lambda: self.cluster.admin.create_partitions([more])[LOADED[0]].result())
        wait_until(
            lambda: len([key for key in self.cluster.partitions() if key[0] == LOADED[0]]) == len(counts) + 2,
            60,
            "the new partitions",
        )
        self.settle()

    def change_configurations(self) -> None:
        for value in ("2097152", "1048576"):
            self._insist(functools.partial(self._set_segment_bytes, value))
            self.cluster.wait_for(f"segment.bytes={value}", functools.partial(self._has_segment_bytes, value))
        self.settle()

    def _set_segment_bytes(self, value: str) -> None:
        entry = ConfigEntry("segment.bytes", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, LOADED[0], incremental_configs=[entry])
        self.cluster.admin.incremental_alter_configs([resource])[resource].result()

    def _has_segment_bytes(self, value: str) -> bool:
        resource = ConfigResource(ResourceType.TOPIC, LOADED[0])
        entries = self.cluster.admin.describe_configs([resource])[resource].result()
        return bool(entries["segment.bytes"].value == value)

    def elect_preferred_leaders(self) -> None:
        self.settle()
        wanted = [TopicPartition(topic, number) for topic, number in self.cluster.partitions()]
        self._insist(lambda: self.cluster.admin.elect_leaders(ElectionType.PREFERRED, wanted).result())
        wait_until(
            lambda: all(part.leader == part.replicas[0] for part in self.cluster.partitions().values()),
            60,
            "preferred replicas to lead",
        )
        self.settle()
