"""One partition's next record: who leads, who is in sync, where the replicas are (``PartitionChangeBuilder``).

Without eligible leader replicas (KIP-966) an ISR never becomes empty: its last member stays in it, and the partition
has no leader until that member is back. An election looks, in this order, at

1. the leader that is there, when it may lead: still in the target ISR and acceptable;
2. the first replica, in the order of the replica list, that is in the target ISR and acceptable;
3. where the topic allows unclean elections, the first acceptable replica; it becomes the whole ISR and RECOVERING.

*Acceptable* is an active broker (unfenced, not shutting down) whose replica is in an online directory. A leader in the
record raises the leader epoch, also when it is the same one: that is how removing a replica fences its old leader's
followers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import RECOVERING, PartitionRegistration
from kjbod.metadata.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord
from kjbod_controller_stub.results import PartitionKey

_BUMPS_LEADER_EPOCH_BELOW = 12
"""Below metadata.version 3.6-IV0 a shrinking ISR raises the leader epoch."""


class Election(Enum):
    """Which replicas may be elected."""

    ONLINE = auto()
    """Members of the ISR; the leader that is there stays."""
    PREFERRED = auto()
    """The same, but the first replica goes before the leader that is there."""
    UNCLEAN = auto()
    """As ONLINE, else any acceptable replica: data may be lost."""


@dataclass(slots=True, kw_only=True)
class PartitionChangeBuilder:
    """Inputs of one change; :meth:`build` makes the record. Targets default to what the partition has."""

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
    directories: Mapping[int, Uuid] | None = None
    """Directories to set, by broker."""

    def build(self) -> PartitionChangeRecord | None:
        """The record, None when nothing changes."""
        old = self.partition
        isr = old.isr if self.target_isr is None else self.target_isr
        replicas, adding, removing, isr = self._complete_reassignment(isr)
        leader, unclean = self._elect(replicas, isr)
        if unclean:
            isr = (leader,)
        elif not isr:
            isr = old.isr  # the last member stays, see above
        record = PartitionChangeRecord(
            partition_id=self.key[1],
            topic_id=self.key[0],
            isr=isr if isr != old.isr else None,
            leader=self._leader_field(leader, replicas, isr),
            replicas=replicas if replicas != old.replicas else None,
            removing_replicas=removing if removing != old.removing_replicas else None,
            adding_replicas=adding if adding != old.adding_replicas else None,
            leader_recovery_state=self._recovery_field(unclean),
            directories=self._directories_field(replicas),
        )
        return None if _is_nothing(record) else record

    def _complete_reassignment(
        self, isr: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Replicas, adding, removing and ISR; a reassignment whose target replicas are all in the ISR is done
        (``PartitionReassignmentReplicas.maybeCompleteReassignment``)."""
        old = self.partition
        replicas = old.replicas if self.target_replicas is None else self.target_replicas
        adding = old.adding_replicas if self.target_adding is None else self.target_adding
        removing = old.removing_replicas if self.target_removing is None else self.target_removing
        if not adding and not removing:
            return replicas, adding, removing, isr
        target = tuple(replica for replica in replicas if replica not in removing)
        kept = tuple(replica for replica in isr if replica not in removing)
        if kept and set(target) <= set(kept):
            return target, (), (), kept
        return replicas, adding, removing, isr

    def _elect(self, replicas: Iterable[int], isr: tuple[int, ...]) -> tuple[int, bool]:
        """The leader, and whether its election was unclean."""
        replicas = tuple(replicas)
        candidates = (self.partition.leader, *replicas)
        if self.election is Election.PREFERRED:
            candidates = (*replicas[:1], *candidates)
        for replica in candidates:
            if replica in isr and self.acceptable(replica):
                return replica, False
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
    )
