"""Kafka's 128-bit ids, directory ids and the reserved ids.

A :class:`Uuid` is its 16 bytes, big-endian, most significant half first. Text is URL-safe base64 without padding,
always 22 characters (``common.Uuid``). Order is Java's: both halves are *signed*, so a plain sort of bytes or of
``uuid.UUID`` gives another order than Kafka's wherever a half has its top bit set.

The reserved directory ids are those of shipped Kafka, not those of KIP-858's text. A reader of an old record without
the field sees zero, so an absent field must mean MIGRATING (commit ``bd18551b32a``).
"""

import base64
import binascii
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import random

NO_CLUSTER_ID = "(none: cluster.id is empty)"
"""Text in place of an empty cluster id, which a hand-written file may have."""
_HALVES = struct.Struct(">qq")
_TEXT_LENGTH_MAX = 24


class Uuid(bytes):
    """A Kafka id: exactly 16 bytes, compared as two signed 64-bit halves.

    Raises:
        ValueError: not 16 bytes.
    """

    __slots__ = ()

    def __new__(cls, value: bytes) -> Self:
        if len(value) != 16:
            raise ValueError(f"an id has 16 bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def of(cls, most_significant: int, least_significant: int) -> Self:
        """Return the id with these two signed 64-bit halves."""
        return cls(_HALVES.pack(most_significant, least_significant))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id, as ``Uuid.fromString``: at most 24 characters; padding and a non-canonical last character are
        accepted.

        Raises:
            ValueError: too long, not URL-safe base64, or not 16 bytes.
        """
        if len(text) > _TEXT_LENGTH_MAX:
            raise ValueError(f"Input string with prefix `{text[:24]}` is too long to be decoded as a base64 UUID")
        bare = text.rstrip("=")
        if len(text) - len(bare) > 2 or "+" in text or "/" in text:
            raise ValueError(f"`{text}` is not a base64 UUID")
        try:
            raw = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"`{text}` is not a base64 UUID") from None
        if len(raw) != 16:
            raise ValueError(
                f"Input string `{text}` decoded as {len(raw)} bytes, "
                "which is not equal to the expected 16 bytes of a base64-encoded UUID"
            )
        return cls(raw)

    @property
    def halves(self) -> tuple[int, int]:
        """Return the two signed halves: Java's sort key."""
        most, least = _HALVES.unpack(self)
        return most, least

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self)[:22].decode()

    def __repr__(self) -> str:
        return f"Uuid({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __lt__(self, other: bytes) -> bool:
        return _HALVES.unpack(self) < _HALVES.unpack(other)

    def __le__(self, other: bytes) -> bool:
        return _HALVES.unpack(self) <= _HALVES.unpack(other)

    def __gt__(self, other: bytes) -> bool:
        return _HALVES.unpack(self) > _HALVES.unpack(other)

    def __ge__(self, other: bytes) -> bool:
        return _HALVES.unpack(self) >= _HALVES.unpack(other)


ZERO = Uuid.of(0, 0)
ONE = Uuid.of(0, 1)
METADATA_TOPIC_ID = ONE
"""Topic id of ``__cluster_metadata``."""
METADATA_TOPIC_NAME = "__cluster_metadata"

MIGRATING = ZERO
"""An unknown directory hosts the replica; from before directories were recorded (``DirectoryId.MIGRATING``)."""
UNASSIGNED = ONE
"""No directory known yet (``DirectoryId.UNASSIGNED``)."""
LOST = Uuid.of(0, 2)
"""An offline directory whose id is unknown (``DirectoryId.LOST``)."""


def is_reserved(directory: Uuid) -> bool:
    """Return whether an id is among the first hundred, which no log directory may have (``DirectoryId.reserved``)."""
    most, least = directory.halves
    return most == 0 and least < 100


def random_uuid(rng: "random.Random") -> Uuid:
    """Return a random version-4 id for topics, incarnations and clusters (``Uuid.randomUuid``). It is not zero, not
    one, and has no leading dash, which command lines would read as an option."""
    while True:
        raw = bytearray(rng.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        drawn = Uuid(bytes(raw))
        if drawn not in (ZERO, ONE) and not str(drawn).startswith("-"):
            return drawn


_AGENT_MARK = b"kjbod\1"


def random_agent_incarnation(rng: "random.Random") -> Uuid:
    """Return an incarnation id that marks an agent: a UUID of version 8, whose first 48 bits are free for a mark (RFC
    9562, 5.8). Kafka's brokers use ``Uuid.randomUuid``, version 4, so their ids never have the mark. Every
    RegisterBrokerRecord has this id, whatever the controller's release and features."""
    raw = bytearray(_AGENT_MARK + rng.randbytes(10))
    raw[6] = raw[6] & 0x0F | 0x80
    raw[8] = raw[8] & 0x3F | 0x80
    return Uuid(bytes(raw))


def is_agent_incarnation(incarnation_id: Uuid) -> bool:
    """Return whether a broker with this incarnation id is a kjbod agent."""
    return incarnation_id.startswith(_AGENT_MARK) and incarnation_id[6] >> 4 == 8


def random_directory_id(rng: "random.Random", used: Collection[Uuid] = ()) -> Uuid:
    """Return a random directory id that is not reserved, has no leading dash, and is not in ``used``
    (``MetaPropertiesEnsemble.Copier.generateValidDirectoryId``)."""
    while True:
        drawn = Uuid(rng.randbytes(16))
        if not is_reserved(drawn) and drawn not in used and not str(drawn).startswith("-"):
            return drawn


def is_online(directory: Uuid, registered: Iterable[Uuid]) -> bool:
    """Return whether a replica in ``directory`` is online on a broker that has ``registered`` these directories
    (``DirectoryId.isOnline``). An empty registration is from before directories were recorded: online (KAFKA-16162)."""
    if directory in (UNASSIGNED, MIGRATING):
        return True
    if directory == LOST:
        return False
    known = registered if isinstance(registered, (tuple, list, set, frozenset)) else tuple(registered)
    return not known or directory in known
