"""Metadata of a running cluster, read as an observer and kept up to date by a separate thread. For programs without an
event loop: the metadata shell, and the dump of a live controller."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from kjbod.clock import SystemClock, system_random
from kjbod.errors import KjbodError
from kjbod.metadata import versions
from kjbod.metadata.dump import payload_json, record_json, unknown_json
from kjbod.metadata.fetching import Address, Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import MetadataImage, Replayer, image_of
from kjbod.metadata.newer import PARTLY, lines_of
from kjbod.metadata.reading import Loaded
from kjbod.metadata.records import UnknownRecord
from kjbod.metadata.tree import Provenance
from kjbod.security.channel import NO_SECURITY, Security
from kjbod.wire.client import opened_with
from kjbod.wire.codec import MalformedMessageError

CLIENT_ID = "kjbod-metadata"
CATCH_UP_TIMEOUT_S = 30.0
"""Time limit of the first reading."""
TOLD_AFTER_S = 1.0
"""Time after which a waiting user is told the reason."""
_POLL_S = 0.02
_NO_CONTROLLER = "UNKNOWN_TOPIC_ID"
"""A broker's answer to a fetch of the metadata log (seen on 4.3.1)."""

Delivery = Committed | Snapshot


class Observer:
    """Follows the metadata log from a thread. Use as a context manager.

    Args:
        servers: addresses of controllers.
        deliver: gets committed records, in order, in the observer's thread.
        say: gets one line for the waiting user if nothing arrives.
        security: security of the connections.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        deliver: Callable[[Delivery], None],
        say: Callable[[str], None],
        security: Security = NO_SECURITY,
    ) -> None:
        self._servers = servers
        self._say: Callable[[str], None] | None = say
        self._deliver = deliver
        self._ended: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._follower = MetadataFollower(
            servers,
            client_id=CLIENT_ID,
            clock=SystemClock(),
            rng=system_random(),
            on_committed=deliver,
            on_snapshot=deliver,
            connect=opened_with(security),
        )
        self._thread = threading.Thread(target=self._run, name="metadata-observer", daemon=True)

    def __enter__(self) -> "Observer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()
        self._loop.close()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._follower.run())
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
        except (KjbodError, MalformedMessageError) as error:
            self._ended = error

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed; -1 while unknown."""
        return self._follower.high_watermark

    @property
    def applied_offset(self) -> int:
        """The first offset that was not delivered."""
        return self._follower.applied_offset

    def check(self) -> None:
        """Raise the error that ended the observer, if any.

        Raises:
            KjbodError: the observer cannot continue; one line, or one per server if none of them is a controller.
        """
        refusals = dict(self._follower.refusals)
        if refusals.keys() >= set(self._servers):
            raise KjbodError("\n".join(refusals[server] for server in dict.fromkeys(self._servers)))
        if isinstance(self._ended, KjbodError):
            raise self._ended
        if self._ended is not None:
            raise KjbodError(f"cannot read the metadata of {self._addresses()}: {self._ended}")

    def catch_up(self, done: Callable[[], bool]) -> None:
        """Wait until ``done`` returns true.

        Raises:
            KjbodError: the wait takes too long, the observer ended, or it has no permission to read.
        """
        clock = SystemClock()
        begun_ms = clock.monotonic_ms()
        deadline_ms = begun_ms + int(CATCH_UP_TIMEOUT_S * 1000)
        waiting = threading.Event()
        while not done():
            self.check()
            problem = self._follower.problem
            if self._follower.denied and problem:
                raise KjbodError(
                    f"{problem}: who asks may not read the metadata; it takes CLUSTER_ACTION on the cluster"
                )
            why = f": {explained(problem)}" if problem else ""
            if clock.monotonic_ms() > deadline_ms:
                if problem is None and self.high_watermark >= 0:
                    raise KjbodError(
                        f"the metadata of {self._addresses()} were not read within {CATCH_UP_TIMEOUT_S:.0f} s: "
                        "their last transaction is not over, or there are too many"
                    )
                raise KjbodError(f"no controller answers at {self._addresses()} within {CATCH_UP_TIMEOUT_S:.0f} s{why}")
            if problem and self._say is not None and clock.monotonic_ms() > begun_ms + TOLD_AFTER_S * 1000:
                self._say(f"waiting for a controller at {self._addresses()}, up to {CATCH_UP_TIMEOUT_S:.0f} s{why}")
                self._say = None
            waiting.wait(_POLL_S)

    def _addresses(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._servers)


def explained(problem: str) -> str:
    """Return the reason why fetching fails, with the remedy if known."""
    hint = ": that is a broker's listener, give a controller's"
    return f"{problem}{hint if _NO_CONTROLLER in problem else ''}"


class LiveImage:
    """The newest complete image of a running cluster. Use as a context manager; ``say`` and ``security`` as for
    :class:`Observer`."""

    def __init__(
        self, servers: Sequence[Address], say: Callable[[str], None], security: Security = NO_SECURITY
    ) -> None:
        self._lock = threading.Lock()
        self._say = say
        self._replayer = Replayer()
        self._wall_ms = -1
        self._observer = Observer(servers, self._apply, say, security)

    def __enter__(self) -> "LiveImage":
        self._observer.__enter__()
        try:
            self._observer.catch_up(self._is_whole)
            with self._lock:
                image = self._replayer.image
                for line in lines_of(image.metadata_version, image.newer.missing, PARTLY):
                    self._say(line)
        except BaseException:
            self._observer.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.__exit__()

    def _is_whole(self) -> bool:
        with self._lock:
            return 0 <= self._observer.high_watermark <= self._replayer.image.offset + 1

    def _apply(self, delivery: Delivery) -> None:
        with self._lock:
            if isinstance(delivery, Snapshot):
                end = delivery.id
                self._replayer = Replayer(image_of(delivery.records, offset=end.end_offset - 1, epoch=end.epoch))
                return
            for offset, record in delivery.records:
                self._replayer.replay(offset, delivery.epoch, record)
            self._replayer.skip(delivery.last_offset, delivery.epoch)
            self._wall_ms = delivery.batches[-1].timestamp_ms

    def read(self, use: Callable[[Loaded], Any]) -> Any:
        """Return the result of ``use`` on the image, which does not change during the call.

        Raises:
            KjbodError: the observer ended.
        """
        self._observer.check()
        with self._lock:
            image: MetadataImage = self._replayer.image
            return use(Loaded(image, Provenance(image.offset, image.epoch, self._wall_ms)))


def dump_live(
    servers: Sequence[Address], say: Callable[[str], None], security: Security = NO_SECURITY
) -> Iterator[dict[str, Any]]:
    """Dump a running cluster like :func:`kjbod.metadata.reading.dump_source`, with the records that are committed now.
    If the controller has a snapshot, that comes first, without control records. ``say`` and ``security`` as for
    :class:`Observer`.

    Raises:
        KjbodError: no controller answers, or the controller refuses the read.
    """
    queue: SimpleQueue[Delivery] = SimpleQueue()
    with Observer(servers, queue.put, say, security) as observer:
        observer.catch_up(lambda: observer.high_watermark >= 0)
        end, reached = observer.high_watermark, 0
        while reached < end:
            observer.catch_up(lambda: not queue.empty())
            with contextlib.suppress(Empty):
                delivery = queue.get_nowait()
                reached = delivery.id.end_offset if isinstance(delivery, Snapshot) else delivery.last_offset + 1
                yield from _snapshot_json(delivery) if isinstance(delivery, Snapshot) else _batches_json(delivery)


def _batches_json(committed: Committed) -> Iterator[dict[str, Any]]:
    for batch in committed.batches:
        for record in batch.records:
            where = {"offset": record.offset, "timestamp": record.timestamp_ms, "epoch": batch.leader_epoch}
            yield where | payload_json(batch, record)


def _snapshot_json(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    level = image_of(snapshot.records).metadata_version
    for record in snapshot.records:
        if isinstance(record, UnknownRecord):
            yield {"file": snapshot.id.file_name} | unknown_json(record)
            continue
        yield {"file": snapshot.id.file_name} | record_json(record, versions.record_version(record, level))
