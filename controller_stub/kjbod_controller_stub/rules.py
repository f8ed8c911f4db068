"""Where KIP-858's text and shipped Kafka 4.3.1 differ, as one table (``kjbod.controller.rules``).

``kip-858`` (default) follows the KIP wherever a shipped broker cannot be harmed by it, and repairs defects of the
shipped controller that were measured on it. ``kafka`` answers and writes as shipped Kafka does. Each field is one
difference; the code asks for the field, never for the name of the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kjbod.wire.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One set of answers to the questions on which the KIP and the code disagree."""

    name: str

    no_directories_error: int
    """A registration without log directories. KIP: INVALID_REQUEST; Kafka: INVALID_REGISTRATION."""

    checks_offline_directories: bool
    """An id in ``OfflineLogDirs`` that the broker never registered fails the heartbeat with LOG_DIR_NOT_FOUND (KIP);
    Kafka ignores it. Ids that went offline before stay good, since a broker repeats them in every heartbeat."""

    fenced_until_placed: bool
    """A broker that registered several directories is not unfenced for the first time while the metadata has a replica
    UNASSIGNED on it (KIP, "Broker registration"); Kafka does not look.

    Only the *first* time of an incarnation: a shipped broker does not assign a replica that a reassignment brought
    until it restarts, so a broker that was fenced by a pause would never come back. A starting broker does assign
    everything while it is fenced: its first metadata publish examines all local partitions and AssignReplicasToDirs is
    accepted from a fenced broker."""

    suspects_unassigned: bool
    """When a broker loses a directory, its replicas with UNASSIGNED or MIGRATING may have been in it: leadership and
    ISR move to others where there are others. Kafka leaves such a leader in place for ever. Without another member of
    the ISR nothing is gained by taking the leader away; it stays, and the log line counts it."""

    elects_on_assignment: bool
    """An assignment to an online directory gives a leaderless partition its leader back at once; Kafka waits for the
    next broker that is unfenced."""

    fences_without_directories: bool
    """A broker that reports its last directory is fenced: the record of "no directory online" does not exist. Kafka
    writes a record that changes nothing at each of its heartbeats and leaves it unfenced."""

    keeps_failed_directories: bool
    """A repeated registration of the same incarnation does not bring its failed directories back; in Kafka it does,
    until the next heartbeat."""

    missing_directories_are_offline: bool
    """A repeated registration of the same incarnation without a directory takes leaders and ISR from it as a report
    would; in Kafka they stay on a broker that no longer has the directory."""

    guards_isr: bool
    """AlterPartition refuses a replica in an offline directory (INELIGIBLE_REPLICA); Kafka takes it into the ISR."""

    checks_identity: bool
    """Broker id below zero, the controller's own id, or incarnation zero are refused; Kafka registers them."""

    session_ends_with_shutdown: bool
    """A granted controlled shutdown ends the session, so that the broker may come back at once; Kafka answers
    DUPLICATE_BROKER_REGISTRATION until the session times out, then fences the fenced broker again."""

    shutdown_is_final: bool
    """A controlled shutdown ends with the process: until it registers again the broker is not unfenced, and another
    process may register at once. In Kafka a heartbeat without WantShutDown after the grant unfences a broker that can
    never lead."""

    repeats_fencing: bool
    """Kafka writes Fenced=1 for a broker that is fenced already: at each WantShutDown after the grant, and when its
    session expires."""

    sees_own_changes: bool
    """Records of one request build on each other, a directory report before the broker's state. In Kafka both look at
    the state before the request, so that WantFence with a directory report changes the same leader twice."""


KIP_858 = Rules(
    name="kip-858",
    no_directories_error=ErrorCode.INVALID_REQUEST,
    checks_offline_directories=True,
    fenced_until_placed=True,
    suspects_unassigned=True,
    elects_on_assignment=True,
    fences_without_directories=True,
    keeps_failed_directories=True,
    missing_directories_are_offline=True,
    guards_isr=True,
    checks_identity=True,
    session_ends_with_shutdown=True,
    shutdown_is_final=True,
    repeats_fencing=False,
    sees_own_changes=True,
)

KAFKA = Rules(
    name="kafka",
    no_directories_error=ErrorCode.INVALID_REGISTRATION,
    checks_offline_directories=False,
    fenced_until_placed=False,
    suspects_unassigned=False,
    elects_on_assignment=False,
    fences_without_directories=False,
    keeps_failed_directories=False,
    missing_directories_are_offline=False,
    guards_isr=False,
    checks_identity=False,
    session_ends_with_shutdown=False,
    shutdown_is_final=False,
    repeats_fencing=True,
    sees_own_changes=False,
)

RULES: Mapping[str, Rules] = {rules.name: rules for rules in (KIP_858, KAFKA)}
"""By the value of ``kjbod.controller.rules``."""
