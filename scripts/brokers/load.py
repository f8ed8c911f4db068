"""Clients that write and read all the while, and a ledger of what was acknowledged to them.

They are librdkafka's (confluent-kafka), each in a thread of its own: an idempotent producer, a transactional one, and
the members of a consumer group. Values are ``NAME-NUMBER`` and appear once. What a broker acknowledged, with acks=all
or by a committed transaction, has to be there at the end: :func:`read_all` reads it back.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

_QUIET: Final = {"log_level": 2}
_DELIVERY_TIMEOUT_MS: Final = 120_000
_FLUSH_TIMEOUT_S: Final = 150.0
_TRANSACTION_TIMEOUT_S: Final = 60.0
_RECORDS_PER_TRANSACTION: Final = 10
_RECORDS_PER_COMMIT: Final = 50
_POLL_S: Final = 0.2
_ASK_TIMEOUT_S: Final = 30.0
_READ_TIMEOUT_S: Final = 180.0


class Client(ABC):
    """A thread that does :meth:`work` again and again until the end of the ``with`` block."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self.work()
            self.end()
        except Exception as error:  # noqa: BLE001  whatever it is, the story ends with it
            self.problems.append(f"{self.name}: {error!r}")

    @abstractmethod
    def work(self) -> None:
        """A turn."""

    @abstractmethod
    def end(self) -> None:
        """After the last turn."""

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2 * _FLUSH_TIMEOUT_S) -> None:
        """Raises AssertionError with what went wrong in the thread."""
        self._ending.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.problems.append(f"{self.name}: did not end in {timeout_s:g} s")
        assert not self.problems, "; ".join(self.problems)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if error is None:
            self.stop()


class Writer(Client):
    """An idempotent producer with acks=all that goes on whatever happens; a record it could not deliver is no problem.

    Attributes:
        acknowledged: values.
        failed: how many records were given up.
    """

    def __init__(self, bootstrap: str, topic: str, *, per_second: float = 200.0, name: str = "") -> None:
        super().__init__(name or f"writer-{topic}")
        self.topic = topic
        self.acknowledged: set[str] = set()
        self.failed = 0
        self.last_error = ""
        self.longest_gap_s = 0.0
        self._last_s: float | None = None
        self._sent = 0
        self._bootstrap = bootstrap
        self._pause_s = 1 / per_second
        self._producer = self._make()

    def _make(self) -> Producer:
        return Producer(
            {
                **_QUIET,
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                # With more, a first batch that a broker refuses because it does not know of its leadership yet is
                # followed by a second one that is taken, and the first's retry counts as a duplicate: lost, with a
                # success reported. Brokers take any first sequence number.
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 2,
                "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "topic.metadata.refresh.interval.ms": 2_000,
            }
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now_s = time.monotonic()
        if error is not None:
            self.failed += 1
            self.last_error = str(error)
            return
        value, offset = message.value(), message.offset()
        assert isinstance(value, bytes)
        if offset is None or offset < 0:
            self.problems.append(f"{self.name}: {value.decode()} was called a duplicate, and so delivered")
        if self._last_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.acknowledged.add(value.decode())

    def work(self) -> None:
        if len(self._producer) < 10_000:
            value = f"{self.name}-{self._sent}".encode()
            self._producer.produce(self.topic, value=value, key=str(self._sent).encode(), on_delivery=self._delivered)
            self._sent += 1
        self._producer.poll(0)
        time.sleep(self._pause_s)

    def end(self) -> None:
        left = self._producer.flush(_FLUSH_TIMEOUT_S)
        if left:
            self.problems.append(f"{self.name}: {left} records neither acknowledged nor given up")


class TransactionalWriter(Client):
    """A transactional producer; what it wrote counts once ``commit_transaction`` has returned.

    Attributes:
        acknowledged: values of committed transactions.
        aborted: values of those that were aborted; nobody who reads committed may see one.
    """

    def __init__(self, bootstrap: str, topic: str, *, transactional_id: str = "keeper") -> None:
        super().__init__(f"transactions-{topic}")
        self.topic = topic
        self.acknowledged: set[str] = set()
        self.aborted: set[str] = set()
        self.commits = 0
        self._number = 0
        self._config = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "topic.metadata.refresh.interval.ms": 2_000,
        }
        self._producer: Producer | None = None

    def work(self) -> None:
        values: set[str] = set()
        try:
            if self._producer is None:
                self._producer = Producer(self._config)
                self._retry(lambda producer: producer.init_transactions(_TRANSACTION_TIMEOUT_S))
            producer = self._producer
            producer.begin_transaction()
            for _ in range(_RECORDS_PER_TRANSACTION):
                value = f"{self.name}-{self._number}"
                self._number += 1
                values.add(value)
                producer.produce(self.topic, value=value.encode(), key=value.encode())
            if self._number % (5 * _RECORDS_PER_TRANSACTION) == 0:
                producer.flush(_TRANSACTION_TIMEOUT_S)
                self._retry(lambda producer: producer.abort_transaction(_TRANSACTION_TIMEOUT_S))
                self.aborted |= values
            else:
                self._retry(lambda producer: producer.commit_transaction(_TRANSACTION_TIMEOUT_S))
                self.acknowledged |= values
                self.commits += 1
        except KafkaException as error:
            self._recover(error)
        time.sleep(0.05)

    def _retry(self, step: Callable[[Producer], object]) -> None:
        """As librdkafka asks for: the same call again while its error is retriable."""
        assert self._producer is not None
        deadline_s = time.monotonic() + 2 * _TRANSACTION_TIMEOUT_S
        while True:
            try:
                step(self._producer)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise

    def _recover(self, error: KafkaException) -> None:
        """Abort, or begin again with a new producer, which fences what the old one left open."""
        cause = error.args[0]
        if cause.txn_requires_abort() and self._producer is not None:
            try:
                self._retry(lambda producer: producer.abort_transaction(_TRANSACTION_TIMEOUT_S))
                return
            except KafkaException:
                pass
        self._producer = None

    def end(self) -> None:
        self._producer = None


class GroupReader(Client):
    """A member of a consumer group that commits what it has read; it reads committed records only."""

    def __init__(self, bootstrap: str, topics: list[str], *, group: str, name: str, protocol: str = "classic") -> None:
        super().__init__(name)
        self.seen: set[str] = set()
        self.last_error = ""
        config = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 2_000,
        }
        if protocol == "classic":
            config["session.timeout.ms"] = 10_000
        self._consumer = Consumer(config)
        self._next: dict[tuple[str, int], int] = {}
        self._consumer.subscribe(topics, on_assign=self._rebalanced, on_revoke=self._rebalanced)

    def work(self) -> None:
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return
        error = message.error()
        if error is not None:
            self.last_error = str(error)
            return
        value = message.value()
        assert isinstance(value, bytes)
        self.seen.add(value.decode())
        place = message.topic() or "", message.partition() or 0
        self._next[place] = (message.offset() or 0) + 1
        if len(self.seen) % _RECORDS_PER_COMMIT == 0:
            self._commit()

    def _commit(self) -> None:
        """Commit what was seen, and nothing else: librdkafka's own positions may be ahead of that around a
        rebalance."""
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in self._next.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException:
            return  # the coordinator moves: what was not committed is read again

    def _rebalanced(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._next.clear()

    def end(self) -> None:
        self._consumer.close()


def read_all(bootstrap: str, topics: Iterable[str], timeout_s: float = _READ_TIMEOUT_S) -> Counter[str]:
    """Number of times that each value is in the topics, from the first offset to the end, committed records only.

    Raises AssertionError when the end is not reached in time.
    """
    consumer = Consumer(
        {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
        }
    )
    try:
        ends: dict[tuple[str, int], int] = {}
        for topic in topics:
            found = consumer.list_topics(topic, timeout=_ASK_TIMEOUT_S).topics[topic]
            for partition in found.partitions:
                _, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_ASK_TIMEOUT_S)
                ends[topic, partition] = high
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
        seen: Counter[str] = Counter()
        deadline_s = time.monotonic() + timeout_s
        while not _at_end(consumer, ends):
            assert time.monotonic() < deadline_s, f"the end of {ends} was not reached in {timeout_s:g} s"
            for message in consumer.consume(1000, timeout=_POLL_S):
                error = message.error()
                if error is not None:
                    assert error.code() != KafkaError._AUTO_OFFSET_RESET, str(error)
                    continue
                value = message.value()
                assert isinstance(value, bytes)
                seen[value.decode()] += 1
        return seen
    finally:
        consumer.close()


def _at_end(consumer: Consumer, ends: dict[tuple[str, int], int]) -> bool:
    """Whether it has passed the end that each partition had; control records count."""
    wanted = [TopicPartition(topic, partition) for topic, partition in ends]
    return all(found.offset >= ends[found.topic, found.partition] for found in consumer.position(wanted)) or not any(
        ends.values()
    )
