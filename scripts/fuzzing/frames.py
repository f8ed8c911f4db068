"""Requests that are damaged, or well formed and random. The same seed makes the same ones."""

import random
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import structs

from kjbod.errors import ProtocolError, UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.wire.frames import VersionRanges, decode_request, encode_request
from kjbod.wire.messages import ApiKey, FetchRequest
from tests.wire.composer import Composer

Mode = Literal["refused", "any"]
READ_ONLY: Final = frozenset(
    {
        *(ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_QUORUM),
        *(ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_ACLS, ApiKey.LIST_CONFIG_RESOURCES),
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
)
"""Requests that change nothing, whatever is in them."""
_POOL = 40
"""Composed messages of an API that are kept; composing one takes ten times as long as damaging it."""
_RENEWED = 0.02
_NUMBERS: Final = (-1, 0, 1, 2, 127, 128, 255, 32_767, 65_536, 2**24, 2**31 - 1, -(2**31))
_HUGE: Final = (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x01", b"\xff\x7f")
_WAIT_MS_MAX = 2
"""How long a Fetch may be parked before it is damaged: while it is, all behind it waits."""
_VERSIONS = 20
_KEYS = 100
_SAMPLED = 64


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes that are sent for one request.

    Attributes:
        data: with its length.
        body: without it.
        misleads: its length is not the one of its body: what follows it would be taken for its rest, or its rest for
            what follows it.
    """

    data: bytes
    body: bytes
    misleads: bool = False


class Frames:
    """Makes frames.

    Args:
        rng: all chance.
        real: requests of real brokers and tools, without their lengths.
        ids: ids of the cluster, among which a random message may choose.
        served: what the controller serves.
        whole: the APIs of requests that are left whole, all that are served by default.
    """

    def __init__(
        self,
        rng: random.Random,
        real: Sequence[bytes],
        ids: list[Uuid],
        served: VersionRanges,
        whole: Collection[ApiKey] = (),
    ) -> None:
        self._rng = rng
        self._real = [_impatient(body) for body in real]
        self._composers = {key: Composer(rng, ids, {key: served[key]}) for key in served}
        self._keys = list(served)
        self._whole = [key for key in served if not whole or key in whole]
        self._pools: dict[ApiKey, list[bytes]] = {}
        self._damages: tuple[Callable[[bytearray], None], ...] = (
            self._flip,
            self._flip,
            self._number,
            self._cut,
            self._insert,
            self._remove,
            self._enlarge,
            self._splice,
            self._change_version,
        )

    def next(self) -> Frame:
        """A frame: every other one is whole, most others have a few things wrong with them."""
        kind = self._rng.random()
        if kind < 0.5:
            return _frame(self._composed(self._rng.choice(self._whole)))
        data = bytearray(self._rng.choice(self._real) if kind < 0.75 else self._composed(self._rng.choice(self._keys)))
        for _ in range(self._rng.choice((1, 1, 1, 2, 3, 8))):
            self._rng.choice(self._damages)(data)
        if kind > 0.98:
            return self._with_wrong_length(bytes(data))
        return _frame(bytes(data))

    def _composed(self, key: ApiKey) -> bytes:
        pool = self._pools.setdefault(key, [])
        if len(pool) < _POOL:
            pool.append(_impatient(self._composers[key].frame()))
            return pool[-1]
        if self._rng.random() < _RENEWED:
            pool[self._rng.randrange(_POOL)] = _impatient(self._composers[key].frame())
        return self._rng.choice(pool)

    def _with_wrong_length(self, body: bytes) -> Frame:
        length = self._rng.choice((*_NUMBERS, len(body) - 1, len(body) + 1, 2 * len(body)))
        return Frame(struct.pack(">i", length) + body, body, misleads=True)

    # ---- damages

    def _at(self, data: bytearray) -> int:
        """A place; half of the time within the first bytes, where headers are."""
        most = len(data) if self._rng.random() < 0.5 else min(len(data), _SAMPLED)
        return self._rng.randrange(most) if most else 0

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._at(data)] ^= 1 << self._rng.randrange(8)

    def _number(self, data: bytearray) -> None:
        at = self._at(data)
        data[at : at + 4] = struct.pack(">i", self._rng.choice(_NUMBERS))

    def _cut(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _insert(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._rng.randbytes(self._rng.randint(1, 8))

    def _remove(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at : at + self._rng.randint(1, 8)]

    def _enlarge(self, data: bytearray) -> None:
        """A count or a length of billions."""
        at = self._at(data)
        huge = self._rng.choice(_HUGE)
        data[at : at + self._rng.randint(0, len(huge))] = huge

    def _splice(self, data: bytearray) -> None:
        """The rest of another request."""
        other = self._rng.choice(self._real)
        data[self._at(data) :] = other[self._rng.randrange(len(other)) :]

    def _change_version(self, data: bytearray) -> None:
        if self._rng.random() < 0.7:
            data[2:4] = struct.pack(">h", self._rng.randrange(-1, _VERSIONS))
        else:
            data[0:2] = struct.pack(">h", self._rng.randrange(-1, _KEYS))


def _frame(body: bytes) -> Frame:
    return Frame(struct.pack(">i", len(body)) + body, body)


def _impatient(body: bytes) -> bytes:
    """A copy of a request in which no Fetch waits for long."""
    request = decode_request(body)
    if not isinstance(request.message, FetchRequest):
        return body
    message = structs.replace(request.message, max_wait_ms=min(request.message.max_wait_ms, _WAIT_MS_MAX))
    return encode_request(message, request.version, request.correlation_id, request.client_id)[4:]


def must_change_nothing(frame: Frame, served: VersionRanges) -> bool:
    """Whether it is malformed, not served, or only asks."""
    if frame.misleads:
        return False
    try:
        return decode_request(frame.body, served).api_key in READ_ONLY
    except (ProtocolError, UnsupportedVersionError):
        return True
