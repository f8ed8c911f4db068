"""The brokers' side of a controller that is measured: a bare connection, an observer, registered brokers.

Requests are encoded before the clock is read and answers decoded after it: what the client itself does is not counted.
"""

import asyncio
import functools
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar, cast

from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, Uuid
from kjbod.metadata import versions
from kjbod.security.channel import NO_SECURITY, Security
from kjbod.wire.error_codes import name_of
from kjbod.wire.frames import FrameSplitter, decode_response, encode_request
from kjbod.wire.login import log_in
from kjbod.wire.messages import (
    API,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    RequestBody,
    ResponseBody,
    ResponseT,
)
from scripts.rig.rig_error import RigError

PARTITION: Final = 3
PARTITION_CHANGE: Final = 5
REGISTRATION_CHANGE: Final = 17
"""Types of metadata records."""
FETCH_BYTES_MAX: Final = 1 << 20
FETCH_WAIT_MS: Final = 500
"""As brokers of 4.3.1 fetch."""
TIMEOUT_S: Final = 600.0
_FRAME_BYTES_MAX = 1 << 30
_FENCED_LEADER_EPOCH = 74
_BATCH_HEADER = struct.Struct(">qii")
_BATCH_HEADER_BYTES = 61
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_ATTRIBUTES_AT = 21
_COUNT_AT = 57
_LENGTH_FROM = 12
_CONTROL = 0x20

R = TypeVar("R", bound=ResponseBody)


@dataclass(frozen=True)
class Answer(Generic[R]):
    """An answer, and how long it took from the sending of the request to its last byte."""

    seconds: float
    at_s: float
    """When it had come, on the clock of ``time.perf_counter``."""
    decode: Callable[[], R] = field(repr=False)

    @functools.cached_property
    def message(self) -> R:
        """Decoded when it is asked for: a large one takes its time, in which nothing else is read."""
        return self.decode()


class Wire(asyncio.Protocol):
    """A connection. Any number of requests may be on their way."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._splitter = FrameSplitter(_FRAME_BYTES_MAX)
        self._waiting: deque[asyncio.Future[tuple[bytes, float]]] = deque()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self.gone = False

    @classmethod
    async def open(cls, port: int, security: Security = NO_SECURITY) -> Self:
        """Connect to a port of loopback, and log in where there is a login.

        Raises:
            OSError: nobody listens there.
            RigError: it closed the connection.
            AuthenticationFailed: it does not believe us.
        """
        peer = f"127.0.0.1:{port}"
        context = await security.context(timeout_ms=int(TIMEOUT_S * 1000))
        _, protocol = await asyncio.get_running_loop().create_connection(
            lambda: cls(peer), "127.0.0.1", port, ssl=context
        )
        try:
            await log_in(protocol, security)
        except BaseException:
            protocol.close()
            raise
        return protocol

    async def exchange(self, message: RequestBody[Any], version: int | None) -> ResponseBody:
        """A step of the login."""
        assert version is None
        answer: Answer[ResponseBody] = await self.ask(message)
        return answer.message

    async def ask(self, message: RequestBody[ResponseT], *, timeout_s: float = TIMEOUT_S) -> Answer[ResponseT]:
        """Send ``message`` in the newest version and wait for the answer. Raises :class:`RigError`."""
        return await self.begin(message, timeout_s=timeout_s)

    async def begin(self, message: RequestBody[Any], *, timeout_s: float) -> Answer[Any]:
        version = API[message.API_KEY].max_version
        self._correlation_id += 1
        data = encode_request(message, version, self._correlation_id, "kjbod-bench")
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                frame, at_s = await self.send(data)
        except TimeoutError:
            raise RigError(f"{self.peer} did not answer {message.API_KEY.name} within {timeout_s:g} s") from None
        return Answer(at_s - started_s, at_s, lambda: decode_response(frame, message.API_KEY, version).message)

    def send(self, data: bytes) -> "asyncio.Future[tuple[bytes, float]]":
        """Send an encoded request; the future is its answer's frame, and when it came."""
        answer: asyncio.Future[tuple[bytes, float]] = asyncio.get_running_loop().create_future()
        if self._transport is None or self.gone:
            answer.set_exception(RigError(f"{self.peer} closed the connection"))
            return answer
        self._waiting.append(answer)
        self._transport.write(data)
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        at_s = time.perf_counter()
        for frame in self._splitter.feed(data):
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result((frame, at_s))

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(RigError(f"{self.peer} closed the connection"))


def check(code: int, what: str) -> None:
    """Raises :class:`RigError` unless the error code is 0."""
    if code:
        raise RigError(f"{what}: the controller answered {name_of(code)} ({code})")


# ------------------------------------------------------------------------------------------------------------- observer


@dataclass(slots=True)
class _Piece:
    """Piece of the log that one Fetch brought."""

    at_s: float
    high_watermark: int
    records: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """A change as an observer saw it: how many records of each type, when it had the last, and its bytes."""

    count: dict[int, int]
    at_s: float
    bytes: int


class Observer:
    """Fetches ``__cluster_metadata`` as a broker does: one request at a time, 1 MiB, parked up to 500 ms.

    It keeps bytes and moments; records are looked at when all is over.
    """

    def __init__(self, wire: Wire, cluster_id: str, broker_id: int = -1) -> None:
        self.offset = 0
        """What it has below the high watermark."""
        self.fetched = 0
        self._wire = wire
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._epoch = 0
        self._last_epoch = 0
        self._pieces: list[_Piece] = []
        self._keep = False
        self._advanced = asyncio.Event()
        self.answered = False
        """Whether a Fetch succeeded."""

    def start_at(self, offset: int, epoch: int) -> None:
        """Go on behind what it has, up to ``offset`` in leader epoch ``epoch``."""
        self.offset = self.fetched = offset
        self._last_epoch = self._epoch = epoch

    def close(self) -> None:
        """Close its connection."""
        self._wire.close()

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last record that it has."""
        return self._last_epoch

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.fetch()

    async def fetch(self, wait_ms: int = FETCH_WAIT_MS) -> bytes:
        """A request, and the batches that it brought. Raises :class:`RigError`."""
        answer = await self._wire.ask(self._request(wait_ms), timeout_s=60.0)
        message = answer.message
        check(message.error_code, "Fetch")
        partition = message.responses[0].partitions[0]
        if partition.error_code == _FENCED_LEADER_EPOCH:
            self._epoch = partition.current_leader.leader_epoch
            return b""
        check(partition.error_code, "Fetch")
        self.answered = True
        if partition.snapshot_id.end_offset > self.fetched:
            self.fetched, self._last_epoch = partition.snapshot_id.end_offset, partition.snapshot_id.epoch
        data = bytes(partition.records or b"")
        records = 0
        for begin, _, epoch, end in _batches(data):
            self._last_epoch, self.fetched = epoch, end
            records += _count(data, begin)
        self.offset = min(self.fetched, partition.high_watermark)
        if self._keep:
            self._pieces.append(_Piece(answer.at_s, partition.high_watermark, records, data))
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()
        return data

    @property
    def leader_epoch(self) -> int:
        """Of the controller, 0 until one has answered."""
        return self._epoch

    def _request(self, wait_ms: int) -> FetchRequest:
        partition = FetchRequestPartition(
            partition=0,
            current_leader_epoch=self._epoch,
            fetch_offset=self.fetched,
            last_fetched_epoch=self._last_epoch,
        )
        topic = FetchRequestTopic(topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=(partition,))
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=FetchRequestReplicaState(replica_id=self._broker_id),
            max_wait_ms=wait_ms,
            max_bytes=FETCH_BYTES_MAX,
            topics=(topic,),
        )

    # ---- watching

    def watch(self) -> None:
        """From now on keep what comes."""
        self._pieces, self._keep = [], True

    async def see(self, wanted: dict[int, int], timeout_s: float = TIMEOUT_S) -> Seen:
        """Wait until so many records of each type have come since :meth:`watch`, and stop keeping.

        Raises:
            RigError: they did not come in time.
        """
        counted, looked_at = dict.fromkeys(wanted, 0), 0
        last_offset = -1
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while any(counted[kind] < number for kind, number in wanted.items()):
                    # Counted by batch until it may be enough: looking at records takes time of the machine.
                    missing = sum(max(0, number - counted[kind]) for kind, number in wanted.items())
                    while sum(piece.records for piece in self._pieces[looked_at:]) < missing:
                        await self._advanced.wait()
                    pieces = self._pieces[looked_at:]
                    looked_at += len(pieces)
                    for offset, kind in (found for piece in pieces for found in record_types(piece.data)):
                        if kind in counted:
                            counted[kind] += 1
                            last_offset = offset
                    size += sum(len(piece.data) for piece in pieces)
                while self.offset <= last_offset:
                    await self._advanced.wait()
        except TimeoutError:
            raise RigError(f"an observer saw {counted} of {wanted} records within {timeout_s:g} s") from None
        finally:
            self._keep = False
        if counted != wanted:
            raise RigError(f"the controller wrote {counted} records where {wanted} were due")
        return Seen(counted, self._seen_at_s(last_offset), size)

    def _seen_at_s(self, offset: int) -> float:
        """Moment at which the observer had the record, below the high watermark."""
        has = False
        for piece in self._pieces:
            has = has or any(end > offset for _, _, _, end in _batches(piece.data))
            if has and piece.high_watermark > offset:
                return piece.at_s
        raise RigError(f"offset {offset} was never below the high watermark")


def _batches(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Begin and end of each whole batch in ``data``, its epoch, and the offset after it."""
    at = 0
    while at + _BATCH_HEADER_BYTES <= len(data):
        base_offset, length, epoch = _BATCH_HEADER.unpack_from(data, at)
        end = at + _LENGTH_FROM + length
        if end > len(data):
            return
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, at + _LAST_OFFSET_DELTA_AT)
        yield at, end, epoch, base_offset + delta + 1
        at = end


def _count(data: bytes, begin: int) -> int:
    """Records of the batch that begins there."""
    return int.from_bytes(data[begin + _COUNT_AT : begin + _BATCH_HEADER_BYTES])


def record_types(data: bytes) -> Iterator[tuple[int, int]]:
    """Offset and type of each metadata record in whole batches: enough to count, at a tenth of decoding."""
    for begin, _, _, end_offset in _batches(data):
        if data[begin + _ATTRIBUTES_AT + 1] & _CONTROL:
            continue
        count = _count(data, begin)
        at = begin + _BATCH_HEADER_BYTES
        for number in range(count):
            length, at = _varint(data, at)
            following = at + (length >> 1)
            at += 1  # attributes
            for _ in range(3):  # timestamp and offset delta, length of the key: there is none
                _, at = _varint(data, at)
            _, at = _varint(data, at)  # length of the value
            _, at = _varint(data, at)  # version of the frame
            kind, _ = _varint(data, at)
            yield end_offset - count + number, kind
            at = following


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7


# -------------------------------------------------------------------------------------------------------------- brokers


@dataclass(slots=True)
class SimulatedBroker:
    """A broker that only the controller takes for one."""

    broker_id: int
    wire: Wire
    directories: tuple[Uuid, ...]
    epoch: int = -1
    failed: list[Uuid] = field(default_factory=list)

    async def register(self, cluster_id: str) -> None:
        """Raises :class:`RigError`."""
        answer = await self.wire.ask(
            BrokerRegistrationRequest(
                broker_id=self.broker_id,
                cluster_id=cluster_id,
                incarnation_id=Uuid.of(5_000_000 + self.broker_id, 1),
                listeners=(BrokerRegistrationRequestListener(name="PLAINTEXT", host="127.0.0.1", port=9092),),
                features=_FEATURES,
                log_dirs=self.directories,
            )
        )
        check(answer.message.error_code, f"registration of broker {self.broker_id}")
        self.epoch = answer.message.broker_epoch

    def heartbeat(self, offset: int) -> BrokerHeartbeatRequest:
        """With all directories that have failed, as brokers send it."""
        return BrokerHeartbeatRequest(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=offset,
            offline_log_dirs=tuple(self.failed),
            cordoned_log_dirs=(),
        )

    async def beat(self, offset: int) -> Answer[BrokerHeartbeatResponse]:
        """Raises :class:`RigError`."""
        answer = await self.wire.ask(self.heartbeat(offset))
        check(answer.message.error_code, f"heartbeat of broker {self.broker_id}")
        return answer

    async def join(self, cluster_id: str) -> None:
        """Register, and heartbeat until it is unfenced: it has all of the log that there is for it."""
        await self.register(cluster_id)
        async with asyncio.timeout(TIMEOUT_S):
            while (await self.beat(self.epoch)).message.is_fenced:  # noqa: ASYNC110 - the controller decides
                await asyncio.sleep(0.05)


def directories_of(broker_id: int, count: int) -> tuple[Uuid, ...]:
    """Ids of directories that no other broker has."""
    return tuple(Uuid.of(1_000_000 + broker_id, 1_000 + number) for number in range(count))


_FEATURES = tuple(
    BrokerRegistrationRequestFeature(name=name, min_supported_version=low, max_supported_version=high)
    for name, (low, high) in versions.SUPPORTED_FEATURES.items()
)
