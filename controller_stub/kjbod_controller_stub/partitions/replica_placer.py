"""Placement of a new topic's replicas on brokers (``StripedReplicaPlacer``).

Goals, strongest first: leaders on unfenced brokers; replicas of a partition in different racks; all brokers used
evenly. Racks form a ring, and so do the brokers of each rack, both shuffled once per topic. A partition takes its
leader from the next rack that has an unfenced broker and its other replicas from the racks that follow; the next
partition starts one rack, and in each rack one broker, further on. After as many partitions as there are unfenced
brokers all is shuffled anew, so that the same sets do not come back.
"""

from collections.abc import Callable, Iterable, MutableSequence
from typing import Any, TypeAlias

from msgspec import Struct, field

from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.results import ApiError

Shuffle: TypeAlias = Callable[[MutableSequence[Any]], None]
"""``random.Random.shuffle``: in place."""


class UsableBroker(Struct, frozen=True):
    """A broker on which replicas may be placed."""

    id: int
    rack: str | None
    fenced: bool


class _Ring(Struct):
    """Brokers of one rack in one state; each partition (epoch) starts one further and sees each broker once."""

    brokers: list[int] = field(default_factory=list)
    epoch: int = 0
    index: int = 0
    offset: int = 0

    def shuffle(self, shuffle: Shuffle) -> None:
        self.brokers.sort()
        shuffle(self.brokers)
        self.epoch = self.index = self.offset = 0

    def next(self, epoch: int) -> int | None:
        if not self.brokers:
            return None
        if self.epoch != epoch:
            self.epoch, self.index = epoch, 0
            self.offset = (self.offset + 1) % len(self.brokers)
        if self.index >= len(self.brokers):
            return None
        broker = self.brokers[(self.index + self.offset) % len(self.brokers)]
        self.index += 1
        return broker


class _Rack(Struct):
    unfenced: _Ring = field(default_factory=_Ring)
    fenced: _Ring = field(default_factory=_Ring)

    def next(self, epoch: int) -> int | None:
        broker = self.unfenced.next(epoch)
        return self.fenced.next(epoch) if broker is None else broker


class ReplicaPlacer:
    """Places the partitions of one topic.

    Raises:
        ApiError: INVALID_REPLICATION_FACTOR: too few brokers, or none that is unfenced.
    """

    def __init__(self, brokers: Iterable[UsableBroker], replication_factor: int, shuffle: Shuffle) -> None:
        racks: dict[str | None, _Rack] = {}
        total = unfenced = 0
        for broker in brokers:
            rack = racks.setdefault(broker.rack, _Rack())
            (rack.fenced if broker.fenced else rack.unfenced).brokers.append(broker.id)
            total += 1
            unfenced += not broker.fenced
        _require_enough(total, unfenced, replication_factor)
        self._replication_factor = replication_factor
        self._unfenced = unfenced
        self._shuffle = shuffle
        self._racks = [racks[name] for name in sorted(racks, key=lambda name: (name is not None, name or ""))]
        self._epoch = self._offset = 0
        self._mix()

    def _mix(self) -> None:
        self._shuffle(self._racks)
        for rack in self._racks:
            rack.unfenced.shuffle(self._shuffle)
            rack.fenced.shuffle(self._shuffle)

    def place(self) -> tuple[int, ...]:
        """Return the replicas of the next partition, the leader first."""
        if self._epoch == self._unfenced:
            self._mix()
            self._epoch = 0
        self._offset %= len(self._racks)
        leader, leader_rack = self._place_leader()
        replicas = [leader]
        at = self._offset
        skip = leader_rack  # once: its broker has been taken
        while len(replicas) < self._replication_factor:
            if at == skip:
                skip = -1
            elif (broker := self._racks[at].next(self._epoch)) is not None:
                replicas.append(broker)
            at = (at + 1) % len(self._racks)
        self._epoch += 1
        self._offset += 1
        return tuple(replicas)

    def _place_leader(self) -> tuple[int, int]:
        at = self._offset
        while True:
            if (broker := self._racks[at].unfenced.next(self._epoch)) is not None:
                return broker, at
            at = (at + 1) % len(self._racks)


def _require_enough(total: int, unfenced: int, replication_factor: int) -> None:
    invalid = ErrorCode.INVALID_REPLICATION_FACTOR
    if replication_factor < 1:
        text = f"Invalid replication factor {replication_factor}: the replication factor must be positive."
        raise ApiError(invalid, text)
    if not total or not unfenced:
        raise ApiError(invalid, "All brokers are currently fenced, or have all their log directories cordoned.")
    if replication_factor > total:
        raise ApiError(
            invalid,
            f"The target replication factor of {replication_factor} cannot be reached because only {total} broker(s) "
            "are registered or some brokers have all their log directories cordoned.",
        )
