"""Identity of the end of an applied metadata log. Offsets and epochs alone do not distinguish two histories
(:mod:`kjbod.metadata.fetching`)."""

from msgspec import Struct

from kjbod.metadata.batches import RecordBatch


class Tail(Struct, frozen=True):
    """The last delivered batch, with a checksum of its records and timestamps to recognize it."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int

    @classmethod
    def of(cls, batch: RecordBatch) -> "Tail":
        """Return the tail of a log that ends with ``batch``."""
        return cls(batch.base_offset, batch.last_offset, batch.leader_epoch, batch.crc)


class Kept(Struct, frozen=True):
    """Applied log of an earlier process: its end, and the batches that identify it."""

    tail: Tail
    """Last batch. A log that ends with a snapshot has none and is not stored, because nothing could be compared."""
    epochs: tuple[tuple[int, int], ...]
    """Leader epochs and their first offsets, ascending; the last one is the tail's."""
    committed: Tail | None = None
    """Last batch known to be below a high watermark. Later batches that a Kafka broker fetched may be lost in an
    election. None: no batch is known as committed."""

    @property
    def end_offset(self) -> int:
        """Return the first offset after the log."""
        return self.tail.last_offset + 1
