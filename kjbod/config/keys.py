"""The table of keys: what kjbod reads from a ``server.properties``, with type, default, range, unit and meaning.

The table is the :class:`Config` dataclass itself. A field's name is the key with underscores for dots, its annotation
carries the :class:`Key`, its default is the key's default. Names, defaults and ranges are Kafka's (4.3.1:
``KRaftConfigs``, ``ServerConfigs``, ``ServerLogConfigs``, ``SocketServerConfigs``, ``ReplicationConfigs``,
``QuorumConfig``, ``MetadataLogConfig``). Kafka takes some periods and timeouts at and below 0: here they count as the
least that works. All that is kjbod's own is below ``kjbod.``.

A key says whose it is. One that a file sets for a process in which it changes nothing is checked all the same, and
named in the log (:mod:`kjbod.config.unused`).
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated

from msgspec import Struct

from kjbod.config.endpoints import DEFAULT_PROTOCOL_MAP, INT_MAX, HostPort, Listener, Voter

LONG_MAX = 2**63 - 1
LONG_MIN = -LONG_MAX - 1
INT_MIN = -INT_MAX - 1
OWN_PREFIX = "kjbod."
AGENT = frozenset({"broker"})
CONTROLLER = frozenset({"controller"})
EITHER = AGENT | CONTROLLER
GUARD = frozenset({"guard"})


class Key(Struct, frozen=True):
    """Facts about one key.

    ``pattern`` restricts a text, ``at_least`` and
    ``at_most`` a number. ``parsed_apart`` marks keys whose meaning depends on others: ``load`` knows them; ``secret``
    those whose value is never shown. A number below ``least`` is taken and counts as that. ``roles``
    are those of ``process.roles`` in which it changes what the process does: :data:`AGENT`, :data:`CONTROLLER` or both;
    :data:`GUARD` where it is the guard's alone.
    """

    doc: str
    unit: str = ""
    at_least: int = INT_MIN
    at_most: int = INT_MAX
    least: int | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    parsed_apart: bool = False
    secret: bool = False
    roles: frozenset[str] = EITHER


def _ms(
    doc: str, at_least: int = 1, at_most: int = INT_MAX, roles: frozenset[str] = EITHER, least: int | None = None
) -> Key:
    return Key(doc, unit="ms", at_least=at_least, at_most=at_most, least=least, roles=roles)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A node's configuration. Made by :func:`kjbod.config.load.load_config`; tests may make one directly."""

    source: str = "server.properties"
    """The file it came from, for messages."""
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """The file of each key that came from another one."""
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Everything in that file as it is there, secrets and keys that kjbod does not use too."""
    unread: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Keys whose values could not be read, with a line for each: their fields have the default, or nothing. They are
    none that the command needs (:mod:`kjbod.config.needs`)."""

    # Identity and roles
    node_id: Annotated[int, Key("Id of this node; broker.id stands in for it.", at_least=0, parsed_apart=True)]
    process_roles: Annotated[
        frozenset[str], Key("broker, controller or both.", choices=("broker", "controller"), parsed_apart=True)
    ]
    broker_rack: Annotated[str | None, Key("Rack of this broker, for replica placement.", roles=AGENT)] = None

    # Directories
    log_dirs: Annotated[tuple[str, ...], Key("Log directories, absolute; log.dir stands in for it.", parsed_apart=True)]
    metadata_log_dir: Annotated[
        str, Key("Directory of the metadata log, absolute; the first of log.dirs where not given.", parsed_apart=True)
    ]
    cordoned_log_dirs: Annotated[
        tuple[str, ...],
        Key("Log directories that take no new replicas (KIP-1066); * for all.", parsed_apart=True, roles=AGENT),
    ] = ()
    log_dir_failure_timeout_ms: Annotated[
        int,
        _ms(
            "How long a failed directory that leads partitions may stay unknown to the controller.",
            at_most=LONG_MAX,
            roles=AGENT,
        ),
    ] = 30_000
    log_segment_delete_delay_ms: Annotated[
        int, _ms("How long a deleted replica stays on disk, renamed.", at_least=0, at_most=LONG_MAX)
    ] = 60_000

    # Endpoints
    listeners: Annotated[tuple[Listener, ...], Key("Where this node listens: NAME://host:port,...", parsed_apart=True)]
    advertised_listeners: Annotated[
        tuple[Listener, ...],
        Key("Where others reach it, controller listeners too; listeners where not given.", parsed_apart=True),
    ]
    controller_listener_names: Annotated[
        tuple[str, ...], Key("Which listeners are controllers'; a broker uses the first.", parsed_apart=True)
    ]
    listener_security_protocol_map: Annotated[
        Mapping[str, str], Key("NAME:PROTOCOL,... for each listener name.", parsed_apart=True)
    ] = dataclasses.field(default_factory=lambda: DEFAULT_PROTOCOL_MAP)
    inter_broker_listener_name: Annotated[
        str, Key("The listener that other brokers use; it must be there.", parsed_apart=True, roles=GUARD)
    ] = "PLAINTEXT"
    controller_quorum_bootstrap_servers: Annotated[
        tuple[HostPort, ...], Key("Controllers to ask first: host:port,...", parsed_apart=True)
    ] = ()
    controller_quorum_voters: Annotated[
        tuple[Voter, ...], Key("Static quorum: id@host:port,...; empty with a dynamic one.", parsed_apart=True)
    ] = ()

    # Broker lifecycle
    broker_heartbeat_interval_ms: Annotated[
        int, _ms("Time between heartbeats.", at_least=INT_MIN, least=1, roles=AGENT)
    ] = 2000
    broker_session_timeout_ms: Annotated[
        int, _ms("A broker that is silent this long is fenced.", at_least=INT_MIN, least=1)
    ] = 9000
    initial_broker_registration_timeout_ms: Annotated[
        int, _ms("A broker not registered by then gives up.", at_least=INT_MIN, least=1, roles=AGENT)
    ] = 60_000
    controlled_shutdown_enable: Annotated[bool, Key("Whether a stop hands leadership over first.", roles=AGENT)] = True

    # Network
    request_timeout_ms: Annotated[
        int,
        _ms(
            "How long a client waits at most for what only the controller can do.",
            at_least=INT_MIN,
            least=1,
            roles=AGENT,
        ),
    ] = 30_000
    controller_socket_timeout_ms: Annotated[
        int,
        _ms(
            "How long one request to the controller may take at most, to connect included.",
            at_least=INT_MIN,
            least=1,
            roles=AGENT,
        ),
    ] = 30_000
    socket_connection_setup_timeout_ms: Annotated[
        int,
        _ms(
            "How long a connection to a controller may take to open; doubled with each attempt in a row that fails.",
            at_least=LONG_MIN,
            at_most=LONG_MAX,
            least=1,
            roles=AGENT,
        ),
    ] = 10_000
    socket_connection_setup_timeout_max_ms: Annotated[
        int,
        _ms("As far as it grows, give or take a fifth.", at_least=LONG_MIN, at_most=LONG_MAX, least=1, roles=AGENT),
    ] = 30_000
    socket_request_max_bytes: Annotated[int, Key("Largest request taken.", unit="bytes", at_least=1)] = 104_857_600
    socket_send_buffer_bytes: Annotated[
        int,
        Key("What the kernel holds of answers on a connection; -1: as the system has it.", unit="bytes", least=-1),
    ] = 102_400
    socket_receive_buffer_bytes: Annotated[int, Key("The same for requests.", unit="bytes", least=-1)] = 102_400
    socket_listen_backlog_size: Annotated[int, Key("Connections waiting to be accepted.", at_least=1)] = 50
    max_connections: Annotated[int, Key("Connections at most.", at_least=0)] = INT_MAX
    max_connections_per_ip: Annotated[int, Key("Connections at most from one address.", at_least=0)] = INT_MAX
    max_connections_per_ip_overrides: Annotated[
        Mapping[str, int], Key("Another number for some hosts: host:count,..., names or addresses.", parsed_apart=True)
    ] = dataclasses.field(default_factory=dict)
    max_connection_creation_rate: Annotated[
        int, Key("Connections that are taken in a second; further ones wait.", unit="1/s", at_least=0, least=1)
    ] = INT_MAX
    queued_max_request_bytes: Annotated[
        int,
        Key(
            "What large requests may take together; further ones wait. 0, -1: kjbod's own limit; else no less than "
            "`socket.request.max.bytes`.",
            unit="bytes",
            at_least=LONG_MIN,
            at_most=LONG_MAX,
            least=-1,
        ),
    ] = -1
    connections_max_idle_ms: Annotated[
        int,
        _ms(
            "An idle connection is closed after this, which is more than connection.failed.authentication.delay.ms; "
            "negative: never.",
            at_least=LONG_MIN,
            at_most=LONG_MAX,
        ),
    ] = 600_000

    # Quorum
    controller_quorum_request_timeout_ms: Annotated[
        int,
        _ms(
            "How long a request for metadata may take; a fetch beyond what the controller may hold it (500 ms).",
            at_least=0,
            least=1,
            roles=AGENT,
        ),
    ] = 2000
    controller_quorum_fetch_timeout_ms: Annotated[
        int,
        _ms(
            "Without a successful fetch for this long: ask another controller who leads.",
            at_least=0,
            least=1,
            roles=AGENT,
        ),
    ] = 2000
    controller_quorum_retry_backoff_ms: Annotated[
        int,
        _ms(
            "Wait before a fetch that failed is repeated; doubled with each in a row, up to 1 s (or this, if longer).",
            at_least=0,
            roles=AGENT,
        ),
    ] = 20
    controller_quorum_fetch_max_bytes: Annotated[
        int, Key("Metadata asked for at a time.", unit="bytes", at_least=1, roles=AGENT)
    ] = 1_048_576
    controller_quorum_fetch_snapshot_max_bytes: Annotated[
        int, Key("What is asked for of a snapshot at a time.", unit="bytes", at_least=1, roles=AGENT)
    ] = 1_048_576

    # Metadata log
    metadata_max_idle_interval_ms: Annotated[
        int, _ms("A NoOpRecord after this; 0: never.", at_least=0, roles=CONTROLLER)
    ] = 500
    metadata_log_segment_bytes: Annotated[
        int, Key("Size of a segment.", unit="bytes", at_least=8 * 1024 * 1024, roles=CONTROLLER)
    ] = 1_073_741_824
    metadata_log_segment_ms: Annotated[
        int, _ms("Age at which a segment is full.", at_most=LONG_MAX, roles=CONTROLLER)
    ] = 604_800_000
    metadata_max_retention_bytes: Annotated[
        int,
        Key(
            "Log and snapshots together; what an older snapshot covers goes beyond this. Negative: never.",
            unit="bytes",
            at_least=LONG_MIN,
            at_most=LONG_MAX,
            roles=CONTROLLER,
        ),
    ] = 104_857_600
    metadata_max_retention_ms: Annotated[
        int,
        _ms(
            "Age at which an older snapshot goes; negative: never.",
            at_least=LONG_MIN,
            at_most=LONG_MAX,
            roles=CONTROLLER,
        ),
    ] = 604_800_000
    metadata_log_max_record_bytes_between_snapshots: Annotated[
        int, Key("A snapshot after this much.", unit="bytes", at_least=1, at_most=LONG_MAX, roles=CONTROLLER)
    ] = 20_971_520
    metadata_log_max_snapshot_interval_ms: Annotated[
        int, _ms("A snapshot after this time; 0: never.", at_least=0, at_most=LONG_MAX, roles=CONTROLLER)
    ] = 3_600_000

    # Topics
    num_partitions: Annotated[int, Key("Partitions of a topic that does not say.", at_least=1, roles=CONTROLLER)] = 1
    default_replication_factor: Annotated[
        int,
        Key(
            "Replicas of a topic that does not say; below 1 each topic must say.",
            at_least=-32768,
            at_most=32767,
            roles=CONTROLLER,
        ),
    ] = 1
    min_insync_replicas: Annotated[int, Key("In-sync replicas that acks=all needs.", at_least=1, roles=CONTROLLER)] = 1
    unclean_leader_election_enable: Annotated[
        bool, Key("Whether a replica out of sync may lead.", roles=CONTROLLER)
    ] = False
    unclean_leader_election_interval_ms: Annotated[
        int, _ms("How often a controller holds unclean elections that are allowed.", at_most=LONG_MAX, roles=CONTROLLER)
    ] = 300_000
    auto_leader_rebalance_enable: Annotated[
        bool, Key("Whether a controller gives leadership back to preferred replicas.", roles=CONTROLLER)
    ] = True
    leader_imbalance_check_interval_seconds: Annotated[
        int, Key("How often it does.", unit="s", at_least=1, at_most=LONG_MAX, roles=CONTROLLER)
    ] = 300
    delete_topic_enable: Annotated[bool, Key("Whether topics can be deleted.", roles=CONTROLLER)] = True
    controller_quota_window_num: Annotated[
        int, Key("Windows of a controller mutation quota that may be used up at once.", at_least=1, roles=CONTROLLER)
    ] = 11
    controller_quota_window_size_seconds: Annotated[
        int, Key("Length of each.", unit="s", at_least=1, roles=CONTROLLER)
    ] = 1

    # Moves between directories
    replica_alter_log_dirs_io_max_bytes_per_second: Annotated[
        int,
        Key(
            "What all moves between directories together may copy; a dynamic configuration of the broker goes before.",
            unit="bytes/s",
            at_least=0,
            at_most=LONG_MAX,
            roles=AGENT,
        ),
    ] = LONG_MAX

    # Authorization
    authorizer_class_name: Annotated[
        str, Key("Empty: everybody may do everything; else the ACLs in the metadata decide (StandardAuthorizer).")
    ] = ""
    super_users: Annotated[str, Key("Principals that may do everything: User:a;User:b.")] = ""
    allow_everyone_if_no_acl_found: Annotated[bool, Key("Whether a resource without ACLs is open to everybody.")] = (
        False
    )

    # Delegation tokens
    delegation_token_secret_key: Annotated[
        str | None,
        Key(
            "The key by which delegation tokens are made and known, one for all nodes (KIP-48); empty: there are none.",
            parsed_apart=True,
            secret=True,
        ),
    ] = dataclasses.field(default=None, repr=False)
    delegation_token_max_lifetime_ms: Annotated[
        int, _ms("How long a token can be renewed at most.", at_most=LONG_MAX, roles=CONTROLLER)
    ] = 604_800_000
    delegation_token_expiry_time_ms: Annotated[
        int, _ms("How long a token holds, and is renewed for, at most.", at_most=LONG_MAX, roles=CONTROLLER)
    ] = 86_400_000
    delegation_token_expiry_check_interval_ms: Annotated[
        int, _ms("How often expired tokens are removed.", at_most=LONG_MAX, roles=CONTROLLER)
    ] = 3_600_000

    # kjbod's own
    kjbod_role: Annotated[
        str, Key("What the agent is: the storage half of a broker.", choices=("broker",), roles=AGENT)
    ] = "broker"
    kjbod_agent_take_over: Annotated[
        bool,
        Key(
            "Whether the agent may start on log directories that a Kafka broker has used, and so replace that broker. "
            "false: it refuses them.",
            roles=AGENT,
        ),
    ] = False
    kjbod_host: Annotated[str, Key("This host in reports and advertised addresses.", pattern=r"[0-9a-zA-Z\-%._:]+")] = (
        ""
    )
    kjbod_probe_interval_ms: Annotated[
        int,
        _ms(
            "Time between two probes of a directory. Shorter: an idle dead or hung disk is found sooner; costs an "
            "fsync and some processor time each.",
            at_least=10,
        ),
    ] = 1000
    kjbod_probe_full_every: Annotated[
        int,
        Key(
            "Every Nth probe also creates, renames and reads old content. Larger: a full, wiped or truncated "
            "disk is found later; smaller: more probes have twice the requests.",
            at_least=1,
            roles=AGENT,
        ),
    ] = 10
    kjbod_probe_timeout_ms: Annotated[
        int,
        _ms(
            "A device that has had requests and completed none for this long is hung. Shorter: found sooner; a healthy "
            "device must never need this long for a single request.",
            at_least=100,
            roles=AGENT,
        ),
    ] = 1900
    kjbod_blind_timeout_ms: Annotated[
        int,
        _ms(
            "The same where the device has no counters, for one step of a probe. Shorter: found sooner; a slow device "
            "must never need this long for one fsync, which is up to eight requests.",
            at_least=100,
        ),
    ] = 10_000
    kjbod_held_timeout_ms: Annotated[
        int,
        _ms(
            "A directory that is held, frozen or throttled to nothing, becomes failed after this; 0: never. Shorter: "
            "producers wait less for another leader; a snapshot that takes longer costs the directory.",
            at_least=0,
            roles=AGENT,
        ),
    ] = 30_000
    kjbod_slow_ms: Annotated[
        int,
        _ms(
            "A probe that takes this long is slow; it is some five requests in a row. Slow is said, never failed.",
            roles=AGENT,
        ),
    ] = 1000
    kjbod_slow_probes: Annotated[
        int,
        Key(
            "Slow probes in a row that make a directory slow. Fewer: said sooner, also for a burst of writes.",
            at_least=1,
            roles=AGENT,
        ),
    ] = 2
    kjbod_slow_recovery_probes: Annotated[
        int,
        Key(
            "Quick probes in a row that end slowness. Fewer: said sooner, and may come and go.", at_least=1, roles=AGENT
        ),
    ] = 3
    kjbod_strike_window_ms: Annotated[
        int,
        _ms(
            "Two errors within this time are a failure although probes between them pass; damage that a file system "
            "reports is remembered as long. Longer: a disk that fails now and then goes offline; 0: never by that.",
            at_least=0,
            roles=AGENT,
        ),
    ] = 60_000
    kjbod_host_fault_window_ms: Annotated[
        int,
        _ms(
            "Disks that get into trouble within this time may have a fault of the host in common. Longer: an adapter "
            "that dies slowly is recognized; a second disk that really dies by then may wait for the settling time.",
            at_least=0,
            roles=AGENT,
        ),
    ] = 1000
    kjbod_host_fault_settle_ms: Annotated[
        int,
        _ms(
            "How long a failure waits when no other disk of the host is known to be well. Longer: an adapter may reset "
            "for that long; when all disks really die, all are reported that much later.",
            at_least=0,
            roles=AGENT,
        ),
    ] = 500
    kjbod_placement: Annotated[
        str,
        Key(
            "Where a new replica goes: to the directory with the fewest replicas (as Kafka), with the most free bytes, "
            "or by chance weighted by free bytes. Cordoned, slow and nearly full directories come last in each.",
            choices=("replicas", "free-bytes", "weighted"),
            roles=AGENT,
        ),
    ] = "replicas"
    kjbod_placement_full_percent: Annotated[
        int,
        Key(
            "A directory that is used to this degree is nearly full: it comes last for new replicas, and is cordoned "
            "until it is used to 5 points less.",
            unit="%",
            at_least=1,
            at_most=100,
            roles=AGENT,
        ),
    ] = 90
    kjbod_placement_accept: Annotated[
        str,
        Key(
            "Whether new partitions may come here while brokers are registered that are no agents: clients of theirs "
            "could not write to them. auto: the agent cordons all of its directories then; always: they may.",
            choices=("auto", "always"),
            roles=AGENT,
        ),
    ] = "auto"
    kjbod_assignment_timeout_ms: Annotated[
        int,
        _ms(
            "A broker with several directories stays fenced until its replicas are assigned to them. What is refused "
            "or unanswered, or cannot be made, for this long is named and no longer waited for, by the agent, nor by "
            "kjbod's controller, which does not elect it. Shorter: serves sooner; on a controller of Kafka a replica "
            "whose directory nobody knows may lead then."
        ),
    ] = 120_000
    kjbod_move_bytes_per_second: Annotated[
        int,
        Key(
            "What one move between directories may copy; replica.alter.log.dirs.io.max.bytes.per.second is for all.",
            unit="bytes/s",
            at_least=1,
            at_most=LONG_MAX,
            roles=AGENT,
        ),
    ] = LONG_MAX
    kjbod_move_concurrency: Annotated[
        int, Key("Moves at a time that may read from, or write to, one directory.", at_least=1, roles=AGENT)
    ] = 1
    kjbod_storage_agent: Annotated[
        str,
        Key(
            "Storage agent plug-in, a name in the entry-point group kjbod.storage.",
            pattern=r"[a-z][a-z0-9_-]*",
            roles=AGENT,
        ),
    ] = "posix"
    kjbod_jaas_file: Annotated[
        str | None,
        Key(
            "JAAS file (java.security.auth.login.config) with the login to controllers, where the file itself has no "
            "sasl.jaas.config; where it is not given, that of KAFKA_OPTS in the environment.",
            parsed_apart=True,
            roles=AGENT,
        ),
    ] = None
    kjbod_guard_mode: Annotated[
        str,
        Key(
            "What a guard does about a disk that Kafka does not see fail: observe says what it would do and does "
            "nothing; act does it.",
            choices=("observe", "act"),
            roles=GUARD,
        ),
    ] = "observe"
    kjbod_guard_ladder: Annotated[
        str,
        Key(
            "What a guard tries first: disk takes the disk away from the broker, fence fences the broker, for sites "
            "that prefer a lost broker to a short pause.",
            choices=("disk", "fence"),
            roles=GUARD,
        ),
    ] = "disk"
    kjbod_guard_cut_after_ms: Annotated[
        int,
        _ms(
            "How long a disk must have stood still, or answered nothing but errors, before a guard does anything that "
            "cannot be undone; at least 1000, at most log.dir.failure.timeout.ms. -1: 3000 for flash, 10000 for "
            "rotational, network, virtual and unknown disks. Twice as long where a partition has fewer other copies in "
            "sync than min.insync.replicas. Shorter: clients wait less for a dead disk, and a disk that would have "
            "answered is lost until the broker restarts.",
            at_least=-1,
            at_most=LONG_MAX,
            roles=GUARD,
        ),
    ] = -1
    kjbod_guard_cut_max_brokers: Annotated[
        int,
        Key(
            "Brokers of the cluster that may lose a directory to guards within 60 s, this one included. 0: none may. "
            "Larger: two disks that die at the same time do not wait for each other.",
            at_least=0,
            roles=GUARD,
        ),
    ] = 1
    kjbod_guard_evict: Annotated[
        str,
        Key(
            "Whether the broker leaves the replica lists of what lies on a failed directory: auto where the partitions "
            "keep what they need without it, else their leaders wait 30 s for it; never leaves the lists alone, and "
            "cuts no file system.",
            choices=("auto", "never"),
            roles=GUARD,
        ),
    ] = "auto"
    kjbod_guard_slow: Annotated[
        str,
        Key(
            "What a guard does about a disk that is slow and works: ignore leaves it alone; demote has other brokers "
            "lead what this one leads there, until it is quick again.",
            choices=("ignore", "demote"),
            roles=GUARD,
        ),
    ] = "ignore"
    kjbod_guard_fence_max_brokers: Annotated[
        int,
        Key(
            "Brokers that may be fenced at a time, this one included, of those that were fenced or lost a directory "
            "within a minute. Larger: a broker that is stuck does not wait for another one's trouble.",
            at_least=0,
            roles=GUARD,
        ),
    ] = 1
    kjbod_guard_host_fault_timeout_ms: Annotated[
        int,
        _ms(
            "How long no disk of the broker may be healthy before a guard fences the broker. Longer: an adapter may "
            "reset for that long.",
            at_most=LONG_MAX,
            roles=GUARD,
        ),
    ] = 30_000
    kjbod_controller_rules: Annotated[
        str,
        Key(
            "Where the KIP and shipped Kafka differ, which one the stub follows.",
            choices=("kip-858", "kafka"),
            roles=CONTROLLER,
        ),
    ] = "kip-858"
    kjbod_state_dir: Annotated[
        str, Key("What the agent remembers, outside the disks it watches.", parsed_apart=True, roles=AGENT)
    ] = "/var/lib/kjbod"
    kjbod_reports_dir: Annotated[
        str,
        Key(
            "Health reports for the fleet report; <kjbod.state.dir>/reports where not given.",
            parsed_apart=True,
            roles=AGENT,
        ),
    ] = "/var/lib/kjbod/reports"
    kjbod_reports_interval_ms: Annotated[
        int, _ms("Time between two samples in the reports.", at_least=100, roles=AGENT)
    ] = 60_000
    kjbod_smart_interval_ms: Annotated[
        int,
        _ms(
            "How often a disk that is well is asked for its SMART or NVMe health; 0: never. Shorter: a disk that wears "
            "out is seen sooner; costs it a command of some 100 ms each.",
            at_least=0,
            roles=AGENT,
        ),
    ] = 600_000
    kjbod_smart_socket: Annotated[
        str,
        Key(
            "Socket of the helper that asks smartctl with rights that nothing else of kjbod has (kjbod-smart.socket). "
            "Without one smartctl is asked only by a process with these rights, else sysfs, which knows less.",
            pattern="/.{1,106}",
            roles=AGENT,
        ),
    ] = "/run/kjbod-smart.sock"
    kjbod_reports_rotate_interval_ms: Annotated[
        int, _ms("A new report file after this.", at_least=1000, roles=AGENT)
    ] = 3_600_000
    kjbod_metrics_listener: Annotated[
        HostPort | None, Key("Where metrics are served: host:port; empty: nowhere.", parsed_apart=True)
    ] = None
    kjbod_metrics_web_config_file: Annotated[
        str | None,
        Key(
            "TLS and logins of the metrics listener, as Prometheus' web configuration file has them. Empty: plain text "
            "for everybody. A change of the file counts without a restart.",
            parsed_apart=True,
        ),
    ] = None

    @property
    def file_delete_delay_ms(self) -> int:
        """``log.segment.delete.delay.ms`` under the name it has as a topic's configuration."""
        return self.log_segment_delete_delay_ms

    @property
    def is_dynamic_controller(self) -> bool:
        """Whether this is a controller of a quorum that is in the metadata."""
        return "controller" in self.process_roles and not self.controller_quorum_voters

    @property
    def directories(self) -> tuple[str, ...]:
        """``log.dirs`` and the metadata directory, each once, sorted (``StorageTool.configToLogDirectories``)."""
        return tuple(sorted({*self.log_dirs, self.metadata_log_dir}))

    @property
    def advertised_broker_listeners(self) -> tuple[Listener, ...]:
        """Listeners that a broker puts into its registration."""
        return tuple(one for one in self.advertised_listeners if one.name not in self.controller_listener_names)

    @property
    def advertised_controller_listeners(self) -> tuple[Listener, ...]:
        """Listeners that a controller is known by, in the order of ``controller.listener.names``."""
        by_name = {one.name: one for one in self.advertised_listeners}
        return tuple(by_name[name] for name in self.controller_listener_names if name in by_name)

    @property
    def controller_protocol(self) -> str | None:
        """The security protocol that controllers speak; None where the map does not say."""
        names = self.controller_listener_names
        return self.listener_security_protocol_map.get(names[0]) if names else None


class Setting(Struct, frozen=True):
    """A row of the table: the key's name, its field in :class:`Config`, its type, its default and the :class:`Key`.

    ``default`` is ``dataclasses.MISSING`` where the key has none, or one that depends on other keys.
    """

    name: str
    field: str
    kind: object
    default: object
    key: Key


@functools.cache
def settings() -> Mapping[str, Setting]:
    """The table, by the key's name."""
    hints = typing.get_type_hints(Config, include_extras=True)
    table: dict[str, Setting] = {}
    for one in fields(Config):
        kind, *metadata = typing.get_args(hints[one.name]) or (None,)
        if metadata and isinstance(metadata[0], Key):
            key: Key = metadata[0]
            name = one.name.replace("_", ".")
            table[name] = Setting(name, one.name, kind, one.default, key)
    return MappingProxyType(table)
