"""Compute a partition's next record: leader, ISR, replicas and directories (``PartitionChangeBuilder``).

Without eligible leader replicas (KIP-966) an ISR never becomes empty: its last member stays in it, and the partition
has no leader until that member is back. With them an ISR becomes empty. A replica that leaves an ISR of fewer than
``min.insync.replicas`` members becomes *eligible*: nothing was acknowledged since, so that it has all there is, and it
may lead when the ISR is empty. It stays eligible until the ISR is large enough again, or until its broker comes back
without a clean shutdown. An election looks, in this order, at

1. the leader that is there, when it may lead: still in the target ISR and acceptable;
2. the first replica, in the order of the replica list, that is in the target ISR, or eligible where that is empty, and
   acceptable;
3. where ISR and eligible replicas are empty, the last known leader, when it is acceptable;
4. where the topic allows unclean elections, the first acceptable replica.

The elections of 3 and 4 may lose data: the winner becomes the whole ISR and RECOVERING.

*Acceptable* is an active broker (unfenced, not shutting down) whose replica is in an online directory. A leader in the
record raises the leader epoch, also when it is the same one: that is how removing a replica fences its old leader's
followers.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import RECOVERING, PartitionRegistration
from kjbod.metadata.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord
from kjbod_controller_stub.results import PartitionKey

_BUMPS_LEADER_EPOCH_BELOW = 12
"""Below metadata.version 3.6-IV0 a shrinking ISR raises the leader epoch."""
_HASH_TABLE_MIN = 16
"""Buckets of Java's smallest usual hash table."""


class Election(Enum):
    """Kind of an election, which decides the replicas that may win it."""

    ONLINE = auto()
    """Members of the ISR; the leader that is there stays."""
    PREFERRED = auto()
    """The same, but the first replica goes before the leader that is there."""
    UNCLEAN = auto()
    """As ONLINE, else any acceptable replica: data may be lost."""


class PartitionChangeBuilder(Struct, kw_only=True):
    """Inputs of one change; :meth:`build` makes the record. Targets default to the partition's current values."""

    key: PartitionKey
    partition: PartitionRegistration
    acceptable: Callable[[int], bool]
    """Whether the replica on this broker may lead."""
    default_dir: Callable[[int], Uuid]
    """Directory of a replica that has none yet."""
    metadata_version: int = versions.LATEST
    election: Election = Election.ONLINE
    target_isr: tuple[int, ...] | None = None
    target_replicas: tuple[int, ...] | None = None
    target_adding: tuple[int, ...] | None = None
    target_removing: tuple[int, ...] | None = None
    target_recovery_state: int | None = None
    eligible_leader_replicas: bool = False
    """Whether the feature is finalized."""
    min_isr: int = 1
    """The topic's ``min.insync.replicas``, at most its replication factor; counts with eligible leader replicas."""
    unclean_shutdown: tuple[int, ...] = ()
    """Brokers whose replica may have lost records: never eligible."""
    eligible_are_replicas: bool = False
    """Whether a replica that a reassignment removes is no longer eligible; ``Rules.eligible_are_replicas``."""
    remembers_last_member: bool = False
    """Where an ISR becomes empty that had no leader: whether its only member counts as the last known one."""
    directories: Mapping[int, Uuid] | None = None
    """Directories to set, by broker."""

    def build(self) -> PartitionChangeRecord | None:
        """Return the record; None if nothing changes."""
        old = self.partition
        isr = old.isr if self.target_isr is None else self.target_isr
        replicas, adding, removing, isr = self._complete_reassignment(isr)
        eligible = self._eligible(isr)
        if self.eligible_are_replicas:
            eligible = tuple(replica for replica in eligible if replica in replicas)
        leader, unclean = self._elect(replicas, isr, eligible)
        if unclean or leader in eligible:
            isr = (leader,)
        elif not isr and not self.eligible_leader_replicas:
            isr = old.isr  # the last member stays, see above
        gone = unclean or not self.eligible_leader_replicas
        eligible = () if gone else tuple(replica for replica in eligible if replica != leader)
        leader_field = self._leader_field(leader, replicas, isr)
        record = PartitionChangeRecord(
            partition_id=self.key[1],
            topic_id=self.key[0],
            isr=isr if isr != old.isr else None,
            leader=leader_field,
            replicas=replicas if replicas != old.replicas else None,
            removing_replicas=removing if removing != old.removing_replicas else None,
            adding_replicas=adding if adding != old.adding_replicas else None,
            leader_recovery_state=self._recovery_field(unclean),
            directories=self._directories_field(replicas),
            eligible_leader_replicas=self._eligible_field(eligible),
            last_known_elr=self._last_known_field(isr, leader_field),
        )
        return None if _is_nothing(record) else record

    def _complete_reassignment(
        self, isr: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Replicas, adding, removing and ISR. A reassignment is done when all newcomers are in the ISR; where fewer
        come than go, all that stay must be too (``PartitionReassignmentReplicas.maybeCompleteReassignment``)."""
        old = self.partition
        replicas = old.replicas if self.target_replicas is None else self.target_replicas
        adding = old.adding_replicas if self.target_adding is None else self.target_adding
        removing = old.removing_replicas if self.target_removing is None else self.target_removing
        if not adding and not removing:
            return replicas, adding, removing, isr
        target = tuple(replica for replica in replicas if replica not in removing)
        kept = tuple(replica for replica in isr if replica not in removing)
        all_stay = len(adding) >= len(removing) or set(target) <= set(kept)
        if kept and target and set(adding) <= set(kept) and all_stay:
            return target, (), (), kept
        return replicas, adding, removing, isr

    def _eligible(self, isr: tuple[int, ...]) -> tuple[int, ...]:
        """Return the eligible leader replicas that are not in ``isr`` (``maybePopulateTargetElr``)."""
        if not self.eligible_leader_replicas:
            # From when they were kept: they may lead once more, and go with the next change.
            return tuple(each for each in self.partition.eligible_leader_replicas if each not in isr)
        if len(isr) >= self.min_isr:
            return ()
        candidates = _in_hash_order(self.partition.eligible_leader_replicas, self.partition.isr)
        return tuple(each for each in candidates if each not in isr and each not in self.unclean_shutdown)

    def _elect(self, replicas: tuple[int, ...], isr: tuple[int, ...], eligible: tuple[int, ...]) -> tuple[int, bool]:
        """Return the leader, and whether its election was unclean."""
        candidates = (self.partition.leader, *replicas)
        if self.election is Election.PREFERRED:
            candidates = (*replicas[:1], *candidates)
        safe = isr or eligible
        for replica in candidates:
            if replica in safe and self.acceptable(replica):
                return replica, False
        last = self.partition.last_known_elr
        if self.eligible_leader_replicas and not safe and len(last) == 1 and self.acceptable(last[0]):
            return last[0], True
        if self.election is Election.UNCLEAN:
            for replica in replicas:
                if self.acceptable(replica):
                    return replica, True
        return NO_LEADER, False

    def _leader_field(self, leader: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> int:
        old = self.partition
        if leader != old.leader:
            return leader
        removes_replica = not set(old.replicas) <= set(replicas)
        shrinks_isr = not set(old.isr) <= set(isr)
        if removes_replica or (shrinks_isr and self.metadata_version < _BUMPS_LEADER_EPOCH_BELOW):
            return leader
        return NO_LEADER_CHANGE

    def _eligible_field(self, eligible: tuple[int, ...]) -> tuple[int, ...] | None:
        if eligible == self.partition.eligible_leader_replicas:
            return None
        return eligible if self.metadata_version >= versions.ELIGIBLE_LEADER_REPLICAS else None

    def _last_known_field(self, isr: tuple[int, ...], leader: int) -> tuple[int, ...] | None:
        """Return the leader that the partition loses; none once there is a leader again
        (``maybeUpdateLastKnownLeader``)."""
        old = self.partition
        if not self.eligible_leader_replicas:
            return None
        if leader >= 0:
            return () if old.last_known_elr else None
        if old.last_known_elr:
            return None
        if self.remembers_last_member and old.leader == NO_LEADER:
            return old.isr if len(old.isr) == 1 and not isr else None
        return (old.leader,) if leader == NO_LEADER else None

    def _recovery_field(self, unclean: bool) -> int:
        state = RECOVERING if unclean else self.target_recovery_state
        return -1 if state is None or state == self.partition.leader_recovery_state else state

    def _directories_field(self, replicas: tuple[int, ...]) -> tuple[Uuid, ...] | None:
        old = self.partition
        if self.metadata_version < versions.DIRECTORY_ASSIGNMENT:
            return None
        if self.directories is None and replicas == old.replicas:
            return None
        known = dict(zip(old.replicas, old.directories, strict=True)) | dict(self.directories or {})
        new = tuple(known[replica] if replica in known else self.default_dir(replica) for replica in replicas)
        return new if new != old.directories else None


def _is_nothing(record: PartitionChangeRecord) -> bool:
    return (
        record.leader == NO_LEADER_CHANGE
        and record.leader_recovery_state == -1
        and record.isr is None
        and record.replicas is None
        and record.removing_replicas is None
        and record.adding_replicas is None
        and record.directories is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
    )


def _in_hash_order(first: tuple[int, ...], then: tuple[int, ...]) -> list[int]:
    """Broker ids in the order in which Java's ``HashSet`` has them, that was made of ``first`` and got ``then``: the
    order of eligible leader replicas in Kafka's records."""
    members = dict.fromkeys((*first, *then))
    size = max(int(len(first) / 0.75) + 1, _HASH_TABLE_MIN)
    table = 1 << (size - 1).bit_length()
    while len(members) > table * 0.75:
        table *= 2
    return sorted(members, key=lambda each: (each ^ (each & 0xFFFFFFFF) >> 16) & (table - 1))
