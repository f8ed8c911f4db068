"""Sends frames to a controller process on several connections, and looks after it meanwhile.

Two modes. *refused*: only frames that must change nothing, because they are malformed, not served or only ask; the
metadata are the same before and after. *any*: all frames, valid changes among them. Then the controller is killed by
SIGKILL: a new one must start on its log, have the metadata that the old one had told an observer, and they must make
sense. Of some frames of that mode one is sent at a time: what is answered with errors alone may have written nothing.
"""

import asyncio
import itertools
import json
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kjbod.clock import SystemClock, system_random
from kjbod.errors import ProtocolError, UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import MetadataImage, Replayer, image_of
from kjbod.metadata.records import Record, RegisterControllerRecord
from kjbod.wire.frames import FrameSplitter, decode_request, decode_response, encode_request
from kjbod.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DescribeClusterRequest,
)
from kjbod_controller_stub.limits import SERVED
from scripts.bench.controller_client import Observer, SimulatedBroker, check, directories_of, record_types
from scripts.bench.controller_rig import ControllerRig
from scripts.fuzzing.frames import READ_ONLY, Frame, Frames, Mode, must_change_nothing
from scripts.rig.rig_error import RigError

BATCH: Final = 16
"""Frames that are sent in one go; those after the first that ends the connection are sent again later, in another."""
PATIENCE_S: Final = 0.5
"""For the answers of a batch: a Fetch may be parked."""
SERVED_WITHIN_S: Final = 20.0
"""How long somebody else's request may take meanwhile, on a machine that does other things too."""
REAL_FRAMES = Path(__file__).parents[2] / "tests" / "data" / "frames.jsonl"
_SENTINEL_ID: Final = 0x7EADBEEF
_SENTINEL: Final = encode_request(ApiVersionsRequest(), 0, _SENTINEL_ID, "sentinel")
_CORRELATION = struct.Struct(">i")
_WATCH_S = 0.25
_LOOKED_EVERY_S = 2.0
_TOLD_EVERY_S = 15.0
_KEPT = 64
_BROKER_ID = 1
_NO_OP = 20
_REGISTER_CONTROLLER = 27


@dataclass(slots=True)
class Tally:
    """Counts of what happened.

    Attributes:
        sent: frames that the controller has looked at.
        answered: those that it answered.
        closed: connections that it closed because of a frame.
        longest_s: the longest that another connection waited for an answer.
        most_mib: the controller's PSS at its largest.
    """

    sent: int = 0
    answered: int = 0
    closed: int = 0
    parked: int = 0
    longest_s: float = 0.0
    most_mib: float = 0.0


def real_requests() -> list[bytes]:
    """Requests of real brokers and tools, as far as the controller serves them."""
    entries = map(json.loads, REAL_FRAMES.read_text(encoding="utf-8").splitlines())
    return [
        bytes.fromhex(entry["hex"]) for entry in entries if entry["direction"] == "request" and entry["key"] in SERVED
    ]


class Fuzzer:
    """A run against one controller. Raises :class:`RigError` as soon as something is wrong.

    Args:
        rig: a controller that is not formatted.
        seed: of all chance.
        connections: that send at a time.
        memory_mib: PSS that the controller may take.
        say: tells how it goes.
    """

    def __init__(self, rig: ControllerRig, *, seed: int, connections: int, memory_mib: float, say: Any = print) -> None:
        self.tally = Tally()
        self.last: deque[str] = deque(maxlen=_KEPT * connections)
        """The last frames that were sent, in hex."""
        self._rig = rig
        self._seed = seed
        self._connections = connections
        self._memory_mib = memory_mib
        self._say = say
        self.bugs: Counter[str] = Counter()
        """Requests that failed inside the controller, and how often."""
        self._bugs_seen = 0
        self._ids: list[Uuid] = []
        self._broker: SimulatedBroker

    async def run(self, refused: int, others: int, accounted: int) -> None:
        """So many frames of each kind."""
        await self._begin()
        before = _told(await read_image(self._rig))
        await self._send_all("refused", refused)
        after = _told(await read_image(self._rig))
        if before != after:
            raise RigError(f"refused frames changed the metadata: {_difference(before, after)}")
        self._say(f"{self.tally.sent} frames that must change nothing, and nothing changed")
        await self._account(accounted)
        self._say(f"{accounted} frames one at a time: what was refused wrote nothing")
        await self._send_all("any", others)
        await self._kill_and_compare()
        self._say(f"{self.tally.sent} frames; killed and started again on its log: the same metadata")
        if self.bugs:
            raise RigError(f"{len(self.bugs)} kinds of requests failed inside the controller: {min(self.bugs)}")

    async def _begin(self) -> None:
        await asyncio.to_thread(self._rig.format)
        self._rig.configure_controller({"leader.imbalance.check.interval.seconds": 1_000_000})
        self._rig.start()
        observer, _ = await self._rig.first_fetch()
        observer.close()
        self._broker = SimulatedBroker(_BROKER_ID, await self._rig.wire(), directories_of(_BROKER_ID, 3))
        await self._broker.join(self._rig.cluster_id)
        topic = CreateTopicsRequestTopic(name="t", num_partitions=3, replication_factor=1)
        answer = await self._broker.wire.ask(CreateTopicsRequest(topics=(topic,)))
        check(answer.message.topics[0].error_code, "creation of a topic")
        self._ids = [answer.message.topics[0].topic_id, *self._broker.directories]

    # ---- sending

    async def _send_all(self, mode: Mode, frames: int) -> None:
        goal = self.tally.sent + frames
        watching: asyncio.Future[Any] = asyncio.ensure_future(self._watch())
        working: asyncio.Future[Any] = asyncio.gather(
            *(self._work(mode, number, goal) for number in range(self._connections))
        )
        try:
            done, _ = await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)
        self.require_healthy(self._memory_mib)

    async def _work(self, mode: Mode, number: int, goal: int) -> None:
        frames = self._frames(mode, number)
        again: list[Frame] = []
        while self.tally.sent < goal:
            batch = again + [next(frames) for _ in range(BATCH - len(again))]
            looked_at = await self._send(batch)
            self.tally.sent += looked_at
            again = batch[looked_at:] if looked_at else batch[1:]

    def _frames(self, mode: Mode, number: int) -> Iterator[Frame]:
        rng = random.Random(f"{self._seed} {mode} {number}")
        made = Frames(rng, real_requests(), self._ids, SERVED, READ_ONLY if mode == "refused" else ())
        while True:
            frame = made.next()
            if mode == "any" or must_change_nothing(frame, SERVED):
                yield frame

    async def _send(self, batch: Sequence[Frame]) -> int:
        """Send them on a new connection, with one behind them that is always answered; how many were looked at."""
        misleading = next((at for at, frame in enumerate(batch) if frame.misleads), None)
        sent = batch if misleading is None else batch[: misleading + 1]
        self.last.extend(frame.data.hex() for frame in sent)
        answers = Answers()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: answers, "127.0.0.1", self._rig.port)
        try:
            transport.write(b"".join(frame.data for frame in sent))
            if misleading is None:
                transport.write(_SENTINEL)
            else:
                transport.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                await answers.ended.wait()
        except TimeoutError:
            self.tally.parked += 1
        finally:
            transport.abort()
        self.tally.answered += min(answers.count, len(sent))
        self.tally.closed += answers.closed and misleading is None
        if answers.complete:
            return len(sent)
        return min(len(sent), answers.count + 1)  # the one that ended the connection, or that is parked

    # ---- looking after it

    async def _watch(self) -> None:
        """Somebody else is served all the time, and memory stays what it may be."""
        told_s = looked_s = time.perf_counter()
        while True:
            began_s = time.perf_counter()
            await self._broker.wire.ask(DescribeClusterRequest(), timeout_s=SERVED_WITHIN_S)
            await self._broker.wire.ask(self._broker.heartbeat(1), timeout_s=SERVED_WITHIN_S)
            self.tally.longest_s = max(self.tally.longest_s, time.perf_counter() - began_s)
            if began_s - looked_s > _LOOKED_EVERY_S:
                looked_s = began_s
                self.require_healthy(self._memory_mib)
            if began_s - told_s > _TOLD_EVERY_S:
                told_s = began_s
                self._say(f"{self.tally.sent} frames, PSS {self.tally.most_mib:.0f} MiB")
            await asyncio.sleep(_WATCH_S)

    def require_healthy(self, memory_mib: float) -> None:
        """Require that the controller runs and takes no more than that; what failed inside it is noted. Raises
        :class:`RigError`."""
        self._rig.require_running()
        used_mib = self._rig.memory().pss_mib
        self.tally.most_mib = max(self.tally.most_mib, used_mib)
        if used_mib > memory_mib:
            raise RigError(f"the controller takes {used_mib:.0f} MiB, more than {memory_mib:.0f}")
        events = self._rig.events("request.failed")
        for event in events[self._bugs_seen :]:
            self.bugs[_bug(event)] += 1
        self._bugs_seen = len(events)

    # ---- one at a time

    async def _account(self, frames: int) -> None:
        """Send frames one by one; where all that is answered is errors, nothing may have been written."""
        made = self._frames("any", -1)
        observer, _ = await self._rig.first_fetch()
        spy = Spy(observer)
        await spy.new_records()
        wanted = (frame for frame in made if not frame.misleads and not _is_fetch(frame))
        for frame in itertools.islice(wanted, frames):
            self.last.append(frame.data.hex())
            answer = await self._ask_one(frame)
            self.tally.sent += 1
            self.tally.answered += answer is not None
            written = await spy.new_records()
            if written and (answer is None or _refuses(frame, answer)):
                raise RigError(f"{frame.data.hex()}: refused, and {written} records of these types were written")
        observer.close()
        self.require_healthy(self._memory_mib)

    async def _ask_one(self, frame: Frame) -> bytes | None:
        """Its answer without the length; None where the connection was closed instead."""
        answers = Answers()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: answers, "127.0.0.1", self._rig.port)
        try:
            transport.write(frame.data + _SENTINEL)
            async with asyncio.timeout(SERVED_WITHIN_S):
                await answers.ended.wait()
        except TimeoutError:
            raise RigError(f"{frame.data.hex()}: neither answered nor refused in {SERVED_WITHIN_S:g} s") from None
        finally:
            transport.abort()
        return answers.first

    # ---- killed

    async def _kill_and_compare(self) -> None:
        image = await read_image(self._rig)
        require_sense(image)
        before = _told(image)
        await asyncio.to_thread(self._rig.kill_controller)
        self._rig.start()
        observer, _ = await self._rig.first_fetch()
        observer.close()
        after = _told(await read_image(self._rig))
        if before != after:
            raise RigError(f"a restart changed the metadata: {_difference(before, after)}")


class Answers(asyncio.Protocol):
    """Counts answers until the sentinel's, or until the connection is closed."""

    def __init__(self) -> None:
        self.count = 0
        self.first: bytes | None = None
        self.complete = False
        self.closed = False
        self.ended = asyncio.Event()
        self._splitter = FrameSplitter(1 << 30)

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            if _CORRELATION.unpack_from(frame)[0] == _SENTINEL_ID:
                self.complete = True
                self.ended.set()
                return
            if not self.count:
                self.first = frame
            self.count += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = not self.complete
        self.ended.set()


class Spy:
    """Tells which records came since it was asked last."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def new_records(self) -> Counter[int]:
        """By type; without those that time alone brings."""
        found: Counter[int] = Counter()
        while True:
            data = await self._observer.fetch(wait_ms=0)
            if not data:
                return found
            found.update(kind for _, kind in record_types(data) if kind not in (_NO_OP, _REGISTER_CONTROLLER))


def _is_fetch(frame: Frame) -> bool:
    return frame.body[:2] == struct.pack(">h", ApiKey.FETCH)


def _refuses(frame: Frame, answer: bytes) -> bool:
    """Whether every error code of an answer is an error."""
    try:
        request = decode_request(frame.body, SERVED)
    except (ProtocolError, UnsupportedVersionError):
        return True
    codes = list(error_codes(decode_response(answer, request.api_key, request.version).message))
    return bool(codes) and all(codes)


def error_codes(value: Any) -> Iterator[int]:
    """Of a message and all that is in it; not the top one, where there are others."""
    if isinstance(value, tuple):
        for element in value:
            yield from error_codes(element)
    elif isinstance(value, Struct):
        below = [code for name in value.__struct_fields__ for code in error_codes(getattr(value, name))]
        own = getattr(value, "error_code", None)
        if own is not None and not (below and own == 0):
            below.append(own)
        yield from below


# ------------------------------------------------------------------------------------------------------------ metadata


async def read_image(rig: ControllerRig) -> MetadataImage:
    """The image of an observer that follows the log from its beginning to its end. Raises :class:`RigError`."""
    replayer = Replayer()
    last: list[int] = []

    def on_committed(committed: Committed) -> None:
        for offset, record in committed.records:
            replayer.replay(offset, committed.epoch, record)
        last.append(committed.last_offset)

    def on_snapshot(snapshot: Snapshot) -> None:
        replayer.image = image_of(snapshot.records)

    follower = MetadataFollower(
        [("127.0.0.1", rig.port)],
        client_id="fuzz",
        clock=SystemClock(),
        rng=system_random(),
        on_committed=on_committed,
        on_snapshot=on_snapshot,
    )
    observer, _ = await rig.first_fetch()
    while await observer.fetch(wait_ms=0):
        pass
    end_offset = observer.offset
    observer.close()
    running = asyncio.ensure_future(follower.run())
    try:
        async with asyncio.timeout(120):
            while follower.applied_offset < end_offset:
                if running.done():
                    running.result()
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise RigError(f"an observer did not reach offset {end_offset} in 120 s") from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return replayer.image


def _told(image: MetadataImage) -> list[Record]:
    """The metadata as records, without what each start adds."""
    return [record for record in image.to_records() if not isinstance(record, RegisterControllerRecord)]


def _difference(before: Sequence[Record], after: Sequence[Record]) -> str:
    gone = [record for record in before if record not in after]
    come = [record for record in after if record not in before]
    return f"{len(gone)} records gone, {len(come)} come, the first: {str(next(iter(gone or come), 'the order'))[:300]}"


def require_sense(image: MetadataImage) -> None:
    """Require what holds of every partition, whatever was asked for. Raises :class:`RigError`."""
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            where = f"{topic.name}-{index}: {partition}"
            if len(partition.replicas) != len(partition.directories):
                raise RigError(f"{where}: not one directory for each replica")
            if len(set(partition.replicas)) != len(partition.replicas) or not partition.replicas:
                raise RigError(f"{where}: a replica twice, or none")
            if not set(partition.isr) <= set(partition.replicas):
                raise RigError(f"{where}: in sync, and no replica")
            if partition.leader != -1 and partition.leader not in partition.isr:
                raise RigError(f"{where}: the leader is not in sync")


def _bug(event: dict[str, Any]) -> str:
    """Text of what failed, without what is different each time."""
    last = (event.get("exception") or [{}])[-1]
    frame = (last.get("frames") or [{}])[-1]
    place = f"{Path(frame.get('filename', '?')).name}:{frame.get('lineno')}"
    return (
        f"{event.get('api')} version {event.get('version')}: {last.get('exc_type')} in {place}: {last.get('exc_value')}"
    )
