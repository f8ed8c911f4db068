"""End of a metadata log that was applied, as it is known again: offsets and epochs alone do not tell one history from
another (:mod:`kjbod.metadata.fetching`)."""

from msgspec import Struct

from kjbod.metadata.batches import RecordBatch


class Tail(Struct, frozen=True):
    """The last batch that was handed over, to know it again: its checksum covers records and timestamps."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int

    @classmethod
    def of(cls, batch: RecordBatch) -> "Tail":
        """Tail of a log that ends with ``batch``."""
        return cls(batch.base_offset, batch.last_offset, batch.leader_epoch, batch.crc)


class Kept(Struct, frozen=True):
    """The log as an earlier process had it: how far it was applied, and by what that is known again."""

    tail: Tail
    """Its last batch. A log that ends with a snapshot has none, and is not kept: nothing could be compared."""
    epochs: tuple[tuple[int, int], ...]
    """Leader epochs and their first offsets, ascending; the last one is the tail's."""
    committed: Tail | None = None
    """Last batch that is known to have been below a high watermark. What a real broker fetched behind it may have been
    lost in an election. None: nothing is known to have been."""

    @property
    def end_offset(self) -> int:
        """The first offset that it lacks."""
        return self.tail.last_offset + 1
