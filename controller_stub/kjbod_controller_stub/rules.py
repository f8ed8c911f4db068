"""Differences between KIP-858's text and shipped Kafka 4.4.0, as one table (``kjbod.controller.rules``).

``kip-858`` (default) follows the KIP wherever a shipped broker cannot be harmed by it, and repairs defects of the
shipped controller that were measured on it. ``kafka`` answers and writes as shipped Kafka does. Each field is one
difference; the code asks for the field, never for the name of the rules.
"""

from collections.abc import Mapping

from msgspec import Struct

from kjbod.wire.error_codes import ErrorCode


class Rules(Struct, frozen=True, kw_only=True):
    """Choices for the questions on which KIP-858 and Kafka's code disagree."""

    name: str

    no_directories_error: int
    """A registration without log directories. KIP: INVALID_REQUEST; Kafka: INVALID_REGISTRATION."""

    checks_offline_directories: bool
    """An id in ``OfflineLogDirs`` that the broker never registered fails the heartbeat with LOG_DIR_NOT_FOUND (KIP);
    Kafka ignores it. Ids that went offline before stay good, since a broker repeats them in every heartbeat."""

    fenced_until_placed: bool
    """A broker that registered several directories is not unfenced for the first time while the metadata has a replica
    on it that is UNASSIGNED, or MIGRATING, as all from before 3.7-IV2 are (KIP, "Broker registration"); Kafka does not
    look. After ``kjbod.assignment.timeout.ms`` without progress it is unfenced all the same: one replica that cannot be
    made must not keep all others from serving. Until it registers anew, a replica of it without a known directory is
    then neither elected nor taken into an ISR.

    Only the *first* time of an incarnation: a shipped broker does not assign a replica that a reassignment brought
    until it restarts, so a broker that was fenced by a pause would never come back. A starting broker does assign
    everything while it is fenced: its first metadata publish examines all local partitions and AssignReplicasToDirs is
    accepted from a fenced broker."""

    suspects_unassigned: bool
    """When a broker loses a directory, its replicas with UNASSIGNED or MIGRATING may have been in it: leadership and
    ISR move to others where there are others. Kafka leaves such a leader in place for ever. Without another member of
    the ISR nothing is gained by taking the leader away; it stays, and the log line counts it."""

    no_directory_is_offline: bool
    """An assignment to UNASSIGNED or MIGRATING is one to no directory that is online: the replica loses leadership and
    ISR, as with LOST or a foreign id (KIP, "Handling replica assignments"). Kafka counts both as online. No broker of
    Kafka and no agent sends it."""

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

    lost_directory_is_unclean: bool
    """A replica whose directory failed, or is not among those that its broker comes back with, leaves the eligible
    leader replicas (KIP-966) as after an unclean shutdown: it may have been made anew, empty, in another directory.
    Kafka keeps it eligible and elects it as if it still had everything."""

    remembers_last_member: bool
    """Where an ISR becomes empty that had no leader, its only member becomes the last known leader; Kafka notes nobody,
    and after an unclean restart of that member nobody leads again. That is so once eligible leader replicas are
    finalized while a partition is offline."""

    elects_on_config_change: bool
    """Allowing unclean elections elects for leaderless partitions at once; Kafka does within
    ``unclean.leader.election.interval.ms``."""

    checks_broker_configs: bool
    """A dynamic configuration of brokers that no broker would act on (not dynamic, or no value of its type) is refused
    with INVALID_CONFIG. Kafka's controller leaves that to the broker that forwards the request, and stores anything
    that comes without one."""

    checks_collisions_in_request: bool
    """Two topics of one request whose names metrics cannot tell apart are a collision, as they are in two requests;
    Kafka creates both."""

    eligible_are_replicas: bool
    """A replica that a reassignment removes is not eligible to lead any more. Kafka 4.3.1 keeps it eligible where the
    ISR is smaller than ``min.insync.replicas``; nobody can elect it, and when the rest is gone it keeps the last known
    leader from being elected."""

    forgets_newcomers: bool
    """A reassignment that is changed so that it no longer wants a replica that it was adding does not wait for it. In
    Kafka 4.3.1 it waits for ever, when the new target needs no other newcomer: also when the old assignment is executed
    again, to go back."""

    knows_whose_replica: bool
    """A failed directory takes only its own broker's replicas with it. In Kafka also where another broker's replica was
    assigned to it (which nothing refuses), the broker that reports it leaves the partition's ISR."""

    keeps_offsets: bool
    """What a broker has applied stays known when its registration changes. Kafka forgets it until the next heartbeat,
    so that the controlled shutdown of another broker waits for that; and it forgets that a broker was on its way out
    when that registers again as it was."""

    counts_replicas_of_first: bool
    """New partitions of a topic get as many replicas as its partition 0 has. Kafka counts those of the partition that
    its hash table gives first, which may be one that a reassignment makes longer."""

    names_losses: bool
    """The refusal of a metadata.version downgrade counts what would be lost; Kafka says that something might be."""

    describes_brokers: bool
    """DescribeCluster is answered for brokers too, and at every metadata.version, so that clients may start at the
    controller. Kafka's says MISMATCHED_ENDPOINT_TYPE, and UNSUPPORTED_VERSION below 3.7-IV0."""

    keeps_cordoned_members: bool
    """A reassignment may keep a replica on a broker whose log directories are all cordoned: only newcomers are refused
    there. Kafka 4.4 refuses each list that names such a broker, also one that takes another replica out."""

    bounds_throttle_time: bool
    """A wait for a controller mutation quota that is longer than an answer can say, 24 days, is said as these. Kafka
    keeps the lower 32 bits of it, which may be nothing: clients then ask again at once, and again."""

    refuses_acls_one_by_one: bool
    """An ACL to create that says ANY or MATCH, as only a filter may, is refused and the others are created. Kafka's
    controller fails the whole request with UNKNOWN_SERVER_ERROR."""

    sees_own_changes: bool
    """Records of one request build on each other, a directory report before the broker's state. In Kafka both look at
    the state before the request, so that WantFence with a directory report changes the same leader twice."""


KIP_858 = Rules(
    name="kip-858",
    no_directories_error=ErrorCode.INVALID_REQUEST,
    checks_offline_directories=True,
    fenced_until_placed=True,
    suspects_unassigned=True,
    no_directory_is_offline=True,
    elects_on_assignment=True,
    fences_without_directories=True,
    keeps_failed_directories=True,
    missing_directories_are_offline=True,
    guards_isr=True,
    checks_identity=True,
    session_ends_with_shutdown=True,
    shutdown_is_final=True,
    repeats_fencing=False,
    lost_directory_is_unclean=True,
    remembers_last_member=True,
    elects_on_config_change=True,
    checks_broker_configs=True,
    checks_collisions_in_request=True,
    eligible_are_replicas=True,
    forgets_newcomers=True,
    knows_whose_replica=True,
    keeps_offsets=True,
    counts_replicas_of_first=True,
    names_losses=True,
    describes_brokers=True,
    keeps_cordoned_members=True,
    bounds_throttle_time=True,
    refuses_acls_one_by_one=True,
    sees_own_changes=True,
)

KAFKA = Rules(
    name="kafka",
    no_directories_error=ErrorCode.INVALID_REGISTRATION,
    checks_offline_directories=False,
    fenced_until_placed=False,
    suspects_unassigned=False,
    no_directory_is_offline=False,
    elects_on_assignment=False,
    fences_without_directories=False,
    keeps_failed_directories=False,
    missing_directories_are_offline=False,
    guards_isr=False,
    checks_identity=False,
    session_ends_with_shutdown=False,
    shutdown_is_final=False,
    repeats_fencing=True,
    lost_directory_is_unclean=False,
    remembers_last_member=False,
    elects_on_config_change=False,
    checks_broker_configs=False,
    checks_collisions_in_request=False,
    eligible_are_replicas=False,
    forgets_newcomers=False,
    knows_whose_replica=False,
    keeps_offsets=False,
    counts_replicas_of_first=False,
    names_losses=False,
    describes_brokers=False,
    keeps_cordoned_members=False,
    bounds_throttle_time=False,
    refuses_acls_one_by_one=False,
    sees_own_changes=False,
)

RULES: Mapping[str, Rules] = {rules.name: rules for rules in (KIP_858, KAFKA)}
"""By the value of ``kjbod.controller.rules``."""
