"""Agent in role ``broker``: joins the pure state machines with the code that carries out their effects.

Everything that decides is elsewhere and pure: :mod:`lifecycle`, :mod:`failures`, :mod:`assignments`,
:mod:`.replicas.table`, :mod:`.moves.machine`, :mod:`kjbod_host.health.verdict`. :class:`Broker` feeds them with what
happens, on one event loop, without a lock, and does what they ask for. Nothing in it blocks and nothing in it touches
a disk.

What is due by time alone is found by :meth:`Broker.run_timers`, which sleeps until the next moment that any machine
names. On its way round it pets the service manager's watchdog, provided that the parts that make an agent have moved
since: heartbeats were answered or given up, every directory was probed or is known to be stuck, the mount table was
read. So a loop that is blocked, and a task that is lost in a loop that is well, end the same way. Until the broker is
unfenced for the first time it asks in the same way for more time to start: a restart brings no controller nearer.
"""

import asyncio
import contextlib
import dataclasses
import re
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct, field, structs

from kjbod.clock import Clock
from kjbod.config.endpoints import HostPort
from kjbod.errors import EXIT_CONFIG, EXIT_DISK_FAILURE, EXIT_FAILURE, UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.metadata import newer
from kjbod.metadata.fetching import Committed, Leader, Snapshot
from kjbod.metadata.image import (
    BROKER,
    BrokerChange,
    BrokerRegistration,
    Change,
    FeatureChange,
    MetadataImage,
    Replayer,
    changes_between,
    image_of,
    same_controller,
)
from kjbod.metadata.records import NO_LEADER
from kjbod.metadata.versions import CORDONED_LOG_DIRS, DIRECTORY_ASSIGNMENT
from kjbod.metrics.vitals import Vitals
from kjbod.runtime import systemd
from kjbod.security.certificates import NO_CERTIFICATES, Certificates
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.messages import (
    ApiKey,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    RequestBody,
)
from kjbod_agent import failures as failing
from kjbod_agent import lifecycle as life
from kjbod_agent.assignments import TIMEOUT_MS as ASSIGNMENT_TIMEOUT_MS
from kjbod_agent.assignments import Assignments, Outcome
from kjbod_agent.broker_features import registered_features
from kjbod_agent.companion import ALONE, Companion
from kjbod_agent.condition import Contact, DirectoryStates, Unfollowed, condition, contact, unready
from kjbod_agent.cordoning import Cordoning
from kjbod_agent.cordons import why_cordoned
from kjbod_agent.directories.additions import Added
from kjbod_agent.directories.clean_shutdown import CleanShutdown
from kjbod_agent.fencing import Fencing
from kjbod_agent.history import History, uncompared_line
from kjbod_agent.moves.machine import Room
from kjbod_agent.moves.mover import Mover
from kjbod_agent.replicas.hosting import MOVE_RATE, Update, move_rate
from kjbod_agent.replicas.inventory import Wanted
from kjbod_agent.replicas.placement import Placement
from kjbod_host.channel import ControllerChannel, Patience
from kjbod_host.condition import Condition
from kjbod_host.directories.start_up_rules import Directory
from kjbod_host.ending import Ended
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.verdict import Health
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.reporter import Log, Reporter, write
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, LoadedDirectory, ProbeResult, Replica

ASSIGN_TIMEOUT_MS: Final = 10_000
"""For one AssignReplicasToDirs. Kafka waits 60 s; a controller that does not answer in 10 is better asked anew."""
FAREWELL_TIMEOUT_MS: Final = 300
IDLE_MS: Final = 1_000
"""The timer goes round at least this often."""
STANDSTILL_MS: Final = 5_000
"""How much longer than two intervals no heartbeat may end, well or not, before that is called standing still."""
STANDSTILL_CONFIRMED_MS: Final = 2_000
"""How long that must be seen before the watchdog is left unfed. After a pause of the whole process everything seems to
have stood still, until it has had its turn."""
PAUSE_MS: Final = 2_000
"""How much later than planned a round of the timers may come before that is a pause of the process or of the machine:
far more than any delay of a busy host."""
STARTING_TIMEOUT_MS: Final = 60_000
"""How long the service manager is asked, on each round, to wait for the end of the start."""
TROUBLE_AGAIN_MS: Final = 60_000
"""A controller that does not answer is named again after this time."""
ROOM_MS: Final = 1_000
"""How often it is looked whether a directory is nearly full."""

_ENDINGS: Final[Mapping[life.Ending, int]] = {
    life.Ending.GRANTED: 0,
    life.Ending.UNCONTROLLED: 0,
    life.Ending.TIMED_OUT: 0,
    life.Ending.REGISTRATION_TIMED_OUT: EXIT_FAILURE,
    life.Ending.REFUSED: EXIT_CONFIG,
}


class Monitor(Protocol):
    """The part of :class:`kjbod_host.health.monitor.HealthMonitor` that the broker uses."""

    def report_error(self, path: str, errno: int, call: str) -> None: ...

    def doubt(self, path: str, since_ms: int) -> str | None: ...

    def last_seen(self, path: str) -> LoadedDirectory | ProbeResult | None: ...

    def standing_still(self, now_ms: int) -> str | None: ...


class _Pulse(Struct):
    """Signs of life of the parts, for the watchdog.

    Attributes:
        beaten_ms: when a registration or heartbeat last ended, well or not.
        still_since_ms: since when a part makes no progress; None: all do.
        still_logged: whether that was said.
        round_due_ms: when the timers go round next, at the latest; in a round, its start.
    """

    beaten_ms: int
    still_since_ms: int | None = None
    still_logged: bool = False
    round_due_ms: int | None = None


class _Offline(Struct):
    """A directory that failed in this process, for what is told about it."""

    path: str
    cause: str
    text: str
    since_ms: int
    accounted: bool = False
    """Whether it was said what it held, and its replicas were seen to."""
    leaders: int = 0
    sent: bool = False
    moved: bool = True
    """Whether there is no leadership to wait for."""


class _Trouble(Struct):
    """Requests that failed in a row, for the log."""

    since_ms: int
    logged_ms: int
    failures: int = 0
    kinds: set[str] = field(default_factory=set)
    """Reasons that were told, without their numbers."""


class Broker:
    """A broker's storage half, from its registration to its end.

    Args:
        identity: what to register.
        timing: Kafka's timeouts.
        failures: usable directories and the failure timeout.
        paths: path of every directory that was read, by id, a metadata directory apart included.
        unreadable: paths of those that could not be read at the start; for the status text.
        multiple: whether ``log.dirs`` has several entries: then the broker stays fenced until all is assigned.
        controlled_shutdown: ``controlled.shutdown.enable``.
        lifecycle_channel: to the controller, for registration and heartbeats.
        assignments_channel: to the controller, for assignments.
        reporter: log and health report.
        clock: the time.
        spawn: runs a coroutine in the daemon's TaskGroup.
        log: for what has no place in the health report.
        assignment_timeout_ms: ``kjbod.assignment.timeout.ms``.
        accept: ``kjbod.placement.accept``.
    """

    def __init__(
        self,
        *,
        identity: life.Identity,
        timing: life.Timing,
        failures: failing.Failures,
        paths: Mapping[Uuid, str],
        multiple: bool,
        controlled_shutdown: bool,
        lifecycle_channel: ControllerChannel,
        assignments_channel: ControllerChannel,
        reporter: Reporter,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        log: Log,
        unreadable: tuple[str, ...] = (),
        assignment_timeout_ms: int = ASSIGNMENT_TIMEOUT_MS,
        accept: str = "auto",
    ) -> None:
        self.life = life.Lifecycle(identity=identity, timing=timing, features=registered_features({}))
        self.failures = failures
        self.assignments = Assignments(identity.broker_id, timeout_ms=assignment_timeout_ms)
        self.image = MetadataImage()
        self.kraft_version = 0
        """The level of the quorum of controllers, as of the metadata that are applied."""
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.farewell: asyncio.Event | None = None
        """Set when the farewell was answered or has failed; None when there is none."""
        self.caught_up = asyncio.Event()
        """Set when the metadata are known for the first time."""
        self.history = History()
        self.known: MetadataImage | None = None
        """The metadata as an earlier process of this agent had applied them, which count for nothing until the leader
        was found to have them; None: nothing is known, or it was."""
        self.cordoning = Cordoning(broker_id=identity.broker_id, accept=accept, path=self._online_path)
        self.placement: Placement
        self.mover: Mover
        self.clean_shutdown: CleanShutdown | None = None
        self.monitor: Monitor | None = None
        self.directory_states: Callable[[], DirectoryStates] = DirectoryStates
        """The state of each directory, as ``kjbod status`` shows it."""
        self.companion: Companion = ALONE
        self.unfollowed: Callable[[], Unfollowed | None] = lambda: None
        self.controller_answered_ms: Callable[[], int | None] = lambda: None
        """When the controller last answered a Fetch, monotonic; None: it never has."""
        self.certificates: Certificates = NO_CERTIFICATES
        self.fencing = self._make_fencing(multiple)
        self._replayer = Replayer(self.image)
        self._unknown: tuple[str, ...] = ()
        self._paths = dict(paths)
        self._log_dirs = frozenset(identity.log_dirs)
        self._multiple = multiple
        self._controlled_shutdown = controlled_shutdown
        self._channel = lifecycle_channel
        self._assign_channel = assignments_channel
        self._reporter = reporter
        self._clock = clock
        self._spawn = spawn
        self._log = log
        self._events: deque[life.Event] = deque()
        self._pumping = False
        self._wake = asyncio.Event()
        self._offline: dict[Uuid, _Offline] = {}
        self._health: dict[Uuid, Health] = {}
        self._room_ms = 0
        self._trouble: _Trouble | None = None
        self._halt: Ended | None = None
        self._unreadable = unreadable
        self._registering: list[tuple[Added, asyncio.Future[bool]]] = []
        self._answered: set[Uuid] = set()
        self._started_ms = clock.monotonic_ms()
        self._controller: Leader | None = None
        """The last one that was known."""
        self._status = ""
        self._ready_due = False
        self._unfenced_once = False
        self._pulse = _Pulse(beaten_ms=clock.monotonic_ms())

    def _make_fencing(self, multiple: bool) -> Fencing:
        return Fencing(
            assignments=self.assignments,
            multiple=multiple,
            undecided=self._undecided,
            unmade=lambda: self.placement.unmade,
            name=self._partition_name,
            path=lambda directory: self._paths.get(directory, str(directory)),
            wall_ms=self._wall_ms_at,
        )

    # ---------------------------------------------------------------------------------------------- what happens to it

    def start(self) -> None:
        """Begin the registration."""
        self._pulse.beaten_ms = self._clock.monotonic_ms()
        self._feed(life.Start())

    def stop(self) -> None:
        """Stop in good order."""
        systemd.notify_stopping("controlled shutdown")
        self._feed(life.BeginShutdown(self._controlled_shutdown))

    def end(self, ended: Ended) -> None:
        """Stop now; a controller that is there is told. The first reason counts: see :attr:`halted`."""
        if self._halt is None:
            self._halt = ended
            self._status = ended.reason
            systemd.notify_stopping(ended.reason)
            self._feed(life.Halt(ended.reason))

    @property
    def halted(self) -> Ended | None:
        """End that :meth:`end` was called with; None: it was not called."""
        return self._halt

    def on_leader(self, leader: Leader | None) -> None:
        """Set a new active controller; None: there is none."""
        self._channel.set_leader(leader)
        self._assign_channel.set_leader(leader)
        if leader is not None:
            self._controller = leader
            self._feed(life.ControllerFound())
            self.assignments.restart_patience(self._clock.monotonic_ms())
            self.assignments.retry_now(self._clock.monotonic_ms())
            self._wake.set()

    def on_confirmed(self, kraft_version: int) -> None:
        """The leader has what was :attr:`known`: it is as good as fetched."""
        assert self.known is not None
        self.kraft_version = kraft_version
        self.image, self.known = self.known, None
        self._replayer = Replayer(self.image)
        # Of topics and partitions nobody wants to know before all is published.
        few = dataclasses.replace(self.image, topics={}, topic_ids={})
        self._applied(list(changes_between(MetadataImage(), few)))

    def on_committed(self, committed: Committed) -> None:
        """Apply metadata records below the high watermark."""
        if committed.kraft_version is not None:
            self.kraft_version = committed.kraft_version
        changes: list[Change] = []
        for offset, record in committed.records:
            changes.extend(self._replayer.replay(offset, committed.epoch, record))
        if not self._replayer.in_transaction:
            self._replayer.skip(committed.last_offset, committed.epoch)
        self._tell_unknown()
        behind = committed.last_offset + 1 < committed.high_watermark
        self._applied(changes, proven=not self.image.newer.incomplete, behind=behind)

    def on_snapshot(self, snapshot: Snapshot) -> bool:
        """Metadata that replace all before. What is missing in them was deleted only if their history contains what was
        applied: where that is not known it is kept, and said. Whether it is known."""
        image = image_of(snapshot.records, offset=snapshot.id.end_offset - 1, epoch=snapshot.id.epoch)
        if snapshot.kraft_version is not None:
            self.kraft_version = snapshot.kraft_version
        old, self.image = self.image, image
        before_it, self.known = self.known or old, None
        self._replayer = Replayer(self.image)
        changes = list(changes_between(old, self.image))
        self._tell_unknown()
        if snapshot.parted is None and self.image.newer.incomplete and self.placement.published:
            self._applied(changes, proven=False)
            return False
        parted = snapshot.parted
        if parted is None and not same_controller(old, self.image):
            parted = f"the snapshot of offset {snapshot.id.end_offset} has no controller process that was known before"
        if not self.placement.published:
            return self._first_snapshot(snapshot, before_it, changes)
        if parted is None:
            self._applied(changes)
            return True
        before = len(self.placement.strays)
        self._applied(changes, proven=False)
        kept = len(self.placement.strays) - before
        if kept or snapshot.parted is not None:
            write(self._log, [self.history.lost(parted, old, self.image, kept=kept, wall_ms=self._clock.wall_ms())])
        return False

    def _unknown_now(self) -> tuple[str, ...]:
        image = self.image
        return newer.lines_of(image.metadata_version, image.newer.problem, "the agent deletes nothing")

    def _tell_unknown(self) -> None:
        """Tell what kjbod does not know of the metadata, when it is something else than before."""
        lines = self._unknown_now()
        if self.image.newer.incomplete:
            self.placement.doubt()
        if lines != self._unknown:
            self._unknown = lines
            for line in lines:
                self._log.warning("metadata.unknown", reason=line)

    def _first_snapshot(self, snapshot: Snapshot, before: MetadataImage, changes: list[Change]) -> bool:
        """Follow a snapshot before any replica was looked at: ``before`` is what an earlier process had applied."""
        uncompared = None if same_controller(before, self.image) else snapshot.uncompared
        if snapshot.parted is None and uncompared is None:
            self._applied(changes)
            return True
        self.placement.doubt()
        if snapshot.parted is not None:
            line = self.history.lost(snapshot.parted, before, self.image, kept=None, wall_ms=self._clock.wall_ms())
        else:
            line = uncompared_line(str(uncompared), before, self.image)
        write(self._log, [line])
        self._applied(changes)
        return False

    def on_set_back(self, reason: str | None) -> None:
        """The controllers know only leader epochs before that which was followed; None: no longer."""
        write(self._log, self.history.on_behind(reason))

    def on_verdict(self, verdict: Verdict) -> None:
        """Handle a change of a directory's health."""
        self._reporter.verdict(verdict)
        directory_id = Uuid.parse(verdict.directory_id)
        self._health[directory_id] = verdict.state
        if verdict.state is Health.FAILED:
            self.directory_failed(directory_id, str(verdict.cause), verdict.evidence.text, verdict.at_ns // 1_000_000)
        self._cordon()

    def directory_failed(self, directory_id: Uuid, cause: str, text: str, since_ms: int) -> None:
        """Take a directory offline from now on. ``since_ms`` is the time of the verdict."""
        if directory_id in self._offline:
            return
        path = self._paths[directory_id]
        self._offline[directory_id] = _Offline(path, cause, text, since_ms)
        self._health[directory_id] = Health.FAILED
        self.failures, stop = failing.directory_failed(
            self.failures,
            directory_id,
            path=path,
            cause=text,
            now_ms=since_ms,
            wall_ms=self._clock.wall_ms() - (self._clock.monotonic_ms() - since_ms),
        )
        if stop is not None:
            self._account_for_failures()
            self.end(Ended(EXIT_DISK_FAILURE, stop.reason, clean=False))
            return
        if directory_id in self._log_dirs:
            self._feed(life.DirectoryFailed(directory_id))
        # All that takes time in proportion to the number of replicas comes after the heartbeat is on its way.
        asyncio.get_running_loop().call_soon(self._account_for_failures)

    # ---------------------------------------------------------------- directories that are loaded, or added, as it runs

    def is_offline(self, directory_id: Uuid) -> bool:
        return directory_id in self._offline

    def directory_loaded(self, directory: Directory, agent: DirectoryAgent, replicas: Sequence[Replica]) -> None:
        self.placement.add_directory(directory.directory_id, agent, directory.path, replicas)
        self._check_ready()
        self._wake.set()

    def directory_missing(self, path: str, directory_id: Uuid | None) -> None:
        self._unreadable = (*self._unreadable, path)
        if directory_id is not None:
            self.placement.fail(directory_id)
        self._check_ready()
        self._wake.set()

    def why_not_now(self, directories: int, failed: Uuid | None) -> str | None:
        if self.life.state in (life.BrokerState.PENDING_CONTROLLED_SHUTDOWN, life.BrokerState.SHUTTING_DOWN):
            return "cannot be added: the agent stops"
        if directories > 1 and not self._multiple:
            if not self.placement.published:
                return "waits for the metadata of the cluster: try again when there is a controller"
            if self.image.metadata_version < DIRECTORY_ASSIGNMENT:
                return "waits for metadata.version 3.7-IV2 or later (kafka-features upgrade): several log.dirs need it"
        failure = None if failed is None else self.failures.of(failed)
        if failure is not None and not failure.settled:
            return f"waits for the controller to record that its directory {failed} failed: try again soon"
        return None

    def registered_elsewhere(self) -> Mapping[Uuid, int]:
        own = self.life.identity.broker_id
        return {d: number for number, one in self.image.brokers.items() if number != own for d in one.log_dirs}

    def directory_added(self, added: Added) -> asyncio.Future[bool]:
        directory_id, path = added.directory.directory_id, added.directory.path
        self._paths[directory_id] = path
        self._log_dirs = frozenset(added.log_dirs)
        self._multiple = self.fencing.multiple = self._multiple or len(added.log_dirs) > 1
        self._unreadable = tuple(p for p in self._unreadable if p != path)
        for gone in (*added.retired, directory_id):
            self.failures = failing.retired(self.failures, gone)
            self._offline.pop(gone, None)
            self._health.pop(gone, None)
        self.failures = failing.added(self.failures, directory_id)
        self.placement.inventory.begin_directory(directory_id, path)
        taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._registering.append((added, taken))
        self._feed(life.RegisterAgain(added.log_dirs, frozenset({directory_id})))
        self._cordon()
        return taken

    def directory_taken(self, added: Added, replicas: Sequence[Replica]) -> None:
        directory_id = added.directory.directory_id
        for gone in (*added.retired, directory_id, *((None,) if added.unknown else ())):
            self.placement.forget_directory(gone)
        self.placement.add_directory(directory_id, added.agent, added.directory.path, replicas)
        self.mover.directory_replaced(directory_id)
        if directory_id in self._offline:  # it failed meanwhile
            self.mover.directory_failed(directory_id)
            for partition in self.placement.fail(directory_id):
                self.assign(partition, directory_id)
        else:
            self._lead_again(directory_id, replicas)
        self._check_ready()
        self._wake.set()

    def _lead_again(self, directory_id: Uuid, replicas: Sequence[Replica]) -> None:
        """A registration elects no leader; an assignment does, also of what is recorded already
        (``PartitionChangeBuilder``). So partitions that lost their last leader with a directory get it back with it."""
        for replica in replicas:
            if replica.topic_id is None or replica.suffix:
                continue
            partition = TopicIdPartition(replica.topic_id, replica.partition)
            hosted = self.placement.hosting.partitions.get(partition)
            known = self.image.partition(partition.topic_id, partition.partition)
            if hosted and hosted.directory == directory_id and known is not None and known.leader == NO_LEADER:
                self.assign(partition, directory_id)

    def directory_refused(self, added: Added, reason: str) -> None:
        self.directory_failed(added.directory.directory_id, "controller", reason, self._clock.monotonic_ms())

    def _registered(self, effect: life.Registered) -> None:
        self._reporter.registered(effect.broker_epoch)
        self._answered = set(effect.log_dirs)
        self._check_registering()

    def _check_registering(self) -> None:
        """Find in the metadata what became of a registration that was answered: a controller by the KIP does not bring
        a directory back that has failed under this incarnation."""
        own = self.image.brokers.get(self.life.identity.broker_id)
        if not self._registering or own is None or own.incarnation_id != self.life.identity.incarnation_id:
            return
        waiting, self._registering = self._registering, []
        without = self.image.metadata_version < DIRECTORY_ASSIGNMENT
        for added, taken in waiting:
            answered = added.directory.directory_id in self._answered and self._answered.isdisjoint(added.retired)
            there = added.directory.directory_id in own.log_dirs and not set(added.retired) & set(own.log_dirs)
            if answered and (there or without):
                taken.set_result(True)
            elif answered and self.life.registered and self.life.caught_up:
                taken.set_result(False)
            else:
                self._registering.append((added, taken))

    def _account_for_failures(self) -> None:
        """Report the replicas in failed directories, and handle these replicas."""
        for directory_id, offline in self._offline.items():
            if offline.accounted:
                continue
            offline.accounted = True
            leaders = self._leaders(directory_id)
            offline.leaders, offline.moved = leaders or 0, not leaders
            partitions = self._replicas_in(directory_id)
            self._reporter.directory_failed(
                directory_id, offline.path, offline.cause, offline.text, partitions=partitions, leaders=leaders
            )
            self.mover.directory_failed(directory_id)  # before: what it promotes now no longer lies there
            for partition in self.placement.fail(directory_id):
                self.assign(partition, directory_id)
        self._wake.set()

    def _announce(self, directories: Mapping[Uuid, str]) -> None:
        """A heartbeat with these directories has just been sent, for the first time."""
        self._account_for_failures()
        self._reporter.offline_sent(directories)

    # ------------------------------------------------------------------------------------- what the placement tells it

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        now_ms = self._clock.monotonic_ms()
        if directory_id in self._offline and partition not in self.assignments.acknowledged:
            self.failures = failing.misplaced(self.failures, directory_id, [partition], now_ms)
        if self.image.metadata_version < DIRECTORY_ASSIGNMENT:
            return  # the cluster has no place for it yet; reviewed again when it has
        self.assignments.submit(partition, directory_id, now_ms)
        self._wake.set()

    def forget(self, partition: TopicIdPartition) -> None:
        self.assignments.discard(partition)
        self.failures = failing.placed(self.failures, [partition])

    def created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid) -> None:
        self._reporter.replica_created(topic, partition, directory_id, self._paths[directory_id])

    def resume_move(self, wanted: Wanted, directory_id: Uuid, future_name: str) -> None:
        self.mover.resume(wanted, directory_id, future_name)

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        if self.monitor is not None:
            self.monitor.report_error(self._paths[directory_id], error.errno, error.call)

    def refuse(self, reason: str, *, config: bool = False) -> None:
        self.end(Ended(EXIT_CONFIG if config else EXIT_FAILURE, reason, clean=False))

    def settled(self) -> None:
        self._check_ready()

    # ------------------------------------------------------------------------------------------ what the mover tells it

    def assign_move(self, partition: TopicIdPartition, directory_id: Uuid) -> bool:
        if self.clean_shutdown is not None:
            self.clean_shutdown.moving(self.placement.inventory.locate(partition), directory_id)
        self.assign(partition, directory_id)
        return partition in self.assignments.ready or partition in self.assignments.in_flight

    def doubt(self, directory_id: Uuid, since_ms: int) -> str | None:
        return None if self.monitor is None else self.monitor.doubt(self._paths[directory_id], since_ms)

    def find_partition(self, topic: str, partition: int) -> TopicIdPartition | None:
        topic_id = self.image.topic_ids.get(topic)
        known = topic_id is not None and self.image.partition(topic_id, partition) is not None
        return TopicIdPartition(topic_id, partition) if known and topic_id is not None else None

    def cordoned(self) -> frozenset[Uuid]:
        is_cordoned = self.placement.inventory.chooser.is_cordoned
        return frozenset(d for d in self._log_dirs if is_cordoned(d))

    def room(self, directory_id: Uuid) -> Room | None:
        seen = None if self.monitor is None else self.monitor.last_seen(self._paths[directory_id])
        if seen is None:
            return None
        return Room(file_system=seen.identity.device, total_bytes=seen.total_bytes, usable_bytes=seen.usable_bytes)

    def _follow_move_rate(self) -> None:
        """A dynamic configuration of this broker goes before that of all brokers."""
        names = (str(self.life.identity.broker_id), "")
        values = (move_rate(self.image.configs.get((BROKER, name), {}).get(MOVE_RATE, "")) for name in names)
        self.mover.set_rate(next((value for value in values if value is not None), None))

    def _tell_mover(self, outcome: Outcome) -> None:
        """Tell the mover what the controller answered, unless something newer waits to be sent."""
        for partition, directory_id in outcome.accepted.items():
            if partition not in self.assignments.ready:
                self.mover.acknowledged(partition, directory_id)
        for partition in outcome.failed:
            target = self.assignments.target(partition)
            if target is not None:
                self.mover.refused(partition, target)

    # -------------------------------------------------------------------------------------------------------- its time

    async def run_timers(self, watchdog_interval_ms: int | None) -> None:
        """Run the timers, until cancelled."""
        longest_ms = min(IDLE_MS, watchdog_interval_ms or IDLE_MS)
        while True:
            now_ms = self._clock.monotonic_ms()
            self._notice_pause(now_ms)
            self._pulse.round_due_ms = now_ms  # a pause may come in the middle of a round, too
            self._pet(now_ms)
            self._feed(life.TimePassed())
            self._send_assignments(now_ms)
            self._look_at_room(now_ms)
            self.placement.review(self.assignments.expired(now_ms))
            self._check_deadlines(now_ms)
            self._check_ready()
            work = [*self._work_text(), *self.fencing.unmade_words()]
            write(self._log, self.fencing.lines(now_ms, fenced=not self.life.ready_to_unfence, work=work))
            self._tell_status()
            # What was done just now woke this very loop; waiting for it would never yield to the others.
            self._wake.clear()
            ended_ms = self._clock.monotonic_ms()
            self._notice_pause(ended_ms)
            due = (
                life.wakeup_ms(self.life),
                # Assignments that wait for a controller wait for an event, however long they have been due.
                self.assignments.wakeup_ms() if self._can_assign else None,
                failing.next_deadline_ms(self.failures, now_ms),
            )
            next_ms = min((ms for ms in due if ms is not None), default=now_ms + longest_ms)
            wait_ms = max(1, min(next_ms - ended_ms, longest_ms))
            self._pulse.round_due_ms = ended_ms + wait_ms
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()

    def _pet(self, now_ms: int) -> None:
        still = self._standing_still(now_ms)
        if still is None:
            self._pulse.still_since_ms, self._pulse.still_logged = None, False
        elif self._pulse.still_since_ms is None:
            self._pulse.still_since_ms = now_ms
        if self._pulse.still_since_ms is None or now_ms - self._pulse.still_since_ms < STANDSTILL_CONFIRMED_MS:
            if self._unfenced_once and not self._ready_due:
                systemd.notify_watchdog()
            elif self.life.active:  # in a stop it would mean more time to stop
                systemd.notify_starting(STARTING_TIMEOUT_MS)
        elif not self._pulse.still_logged:
            self._pulse.still_logged = True
            self._log.error("agent.standing.still", reason=still)

    def _standing_still(self, now_ms: int) -> str | None:
        """The part that makes no progress although the event loop goes round, in words; None: none."""
        silent_ms = now_ms - self._pulse.beaten_ms
        if self.life.active and silent_ms > 2 * self.life.timing.heartbeat_interval_ms + STANDSTILL_MS:
            return f"no request to the controller has ended, well or not, for {silent_ms} ms"
        return None if self.monitor is None else self.monitor.standing_still(now_ms)

    def vitals(self) -> Vitals:
        """Return liveness (is the watchdog fed) and readiness (is the broker unfenced)."""
        stuck = self._standing_still(self._clock.monotonic_ms()) if self._pulse.still_logged else None
        return Vitals(stuck, unready(self.life, self.contact) if self._halt is None else self._halt.reason)

    def _notice_pause(self, now_ms: int) -> None:
        """Note a pause, for whoever comes first after it; the timers of the event loop go before what lies in the
        sockets."""
        due_ms = self._pulse.round_due_ms
        if due_ms is None or now_ms - due_ms < PAUSE_MS:
            return
        self._pulse.round_due_ms = now_ms
        lost_ms = now_ms - due_ms
        self._log.warning("agent.paused", lost_ms=lost_ms)
        self.failures = failing.resumed(self.failures, now_ms + self.life.timing.heartbeat_interval_ms)
        self.assignments.restart_patience(now_ms)
        self._feed(life.Paused(lost_ms))

    def _check_deadlines(self, now_ms: int) -> None:
        self._notice_pause(now_ms)
        if not failing.is_overdue(self.failures, now_ms):
            return
        by_directory = self.placement.leaders()
        stop = failing.decide(self.failures, lambda d: None if by_directory is None else by_directory.get(d, 0), now_ms)
        if stop is not None:
            for failure in self.failures.failed:
                if not failure.settled and now_ms >= failure.deadline_ms:
                    self._reporter.timed_out(failure.directory_id, failure.path)
            trouble = f": {self.life.trouble}" if self.life.trouble else ""
            self.end(Ended(EXIT_DISK_FAILURE, f"{stop.reason}{trouble}", clean=False))

    # ---------------------------------------------------------------------------------------------------- its metadata

    def _applied(self, changes: list[Change], *, proven: bool = True, behind: bool = False) -> list[Update]:
        """Follow changes of the metadata; what they were for this broker. ``proven``, ``behind``: see
        :meth:`Placement.follow`."""
        if any(isinstance(change, BrokerChange) for change in changes):
            self.cordoning.brokers_changed(self.image)
        self._feed(life.MetadataApplied(self.image.offset))
        self._follow_registration(changes)
        self._follow_move_rate()
        if not self.placement.published:
            return []
        now_ms = self._clock.monotonic_ms()
        updates = self.placement.follow(changes, self.image, proven=proven, behind=behind)
        self._cordon()
        self.mover.follow(updates, proven=proven)
        for update in updates:
            if update.new is not None:
                self._recorded(update.partition, update.new.directory)
        if self._offline:
            self._check_moved()
            self._check_deadlines(now_ms)
        self._check_ready()
        return updates

    def _recorded(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """The metadata show this directory for a replica, who ever told the controller."""
        self.assignments.recorded(partition, directory_id)
        if directory_id in self._offline:
            self.failures = failing.placed(self.failures, [partition])

    def _follow_registration(self, changes: list[Change]) -> None:
        """A registration from before directories were recorded is repeated once they can be
        (``BrokerRegistrationTracker``)."""
        broker_id = self.life.identity.broker_id
        touched = any(
            isinstance(c, FeatureChange) or (isinstance(c, BrokerChange) and c.broker_id == broker_id) for c in changes
        )
        if not touched:
            return
        self._cordon()
        if any(isinstance(c, FeatureChange) for c in changes):
            self._follow_features()
        own: BrokerRegistration | None = self.image.brokers.get(broker_id)
        ours = own is not None and own.incarnation_id == self.life.identity.incarnation_id
        if own is not None and ours and not own.log_dirs and self.image.metadata_version >= DIRECTORY_ASSIGNMENT:
            self._log.info("agent.registering.again", reason="the registration has no directories")
            self._feed(life.RegisterAgain())

    def _follow_features(self) -> None:
        if self.image.metadata_version >= DIRECTORY_ASSIGNMENT:
            self.placement.review(self.placement.hosting.partitions)
        elif self._multiple:
            # Kafka calls its metadata publishing fault handler (MetadataVersionConfigValidator): counted, not fatal.
            self._log.error(
                "metadata.version.too.old",
                metadata_version=self.image.metadata_version,
                needed=DIRECTORY_ASSIGNMENT,
                reason="several log.dirs need metadata.version 3.7-IV2 or later",
            )

    def _cordon(self) -> None:
        """Say which directories take no new replicas (KIP-1066): to the controller, and to people why."""
        is_nearly_full = self.placement.inventory.chooser.is_nearly_full
        reasons = {d: why_cordoned(self._health.get(d), nearly_full=is_nearly_full(d)) for d in self._log_dirs}
        cordoned, lines = self.cordoning.decide(
            self._log_dirs,
            {d: why for d, why in reasons.items() if why is not None},
            self.cordoned(),
            can_cordon=self.image.metadata_version >= CORDONED_LOG_DIRS,
            published=self.placement.published,
        )
        write(self._log, lines)
        self._feed(life.Cordoned(cordoned))

    def _online_path(self, directory_id: Uuid) -> str | None:
        return None if directory_id in self._offline else self._paths.get(directory_id)

    def _look_at_room(self, now_ms: int) -> None:
        """Check the free space of the directories regularly, because it changes without an event."""
        if self.placement.published and now_ms - self._room_ms >= ROOM_MS:
            self._room_ms = now_ms
            self.placement.observe()
            self._cordon()

    def _check_moved(self) -> None:
        waiting = [d for d, offline in self._offline.items() if not offline.moved]
        if not waiting:
            return
        by_directory = self.placement.leaders() or {}
        for directory_id in waiting:
            if by_directory.get(directory_id, 0) == 0:
                offline = self._offline[directory_id]
                offline.moved = True
                self._reporter.leadership_moved(directory_id, offline.path, offline.leaders)

    def _leaders(self, directory_id: Uuid) -> int | None:
        by_directory = self.placement.leaders()
        return None if by_directory is None else by_directory.get(directory_id, 0)

    def _replicas_in(self, directory_id: Uuid) -> int:
        return self.placement.inventory.replica_count(directory_id) if directory_id in self.placement.agents else 0

    def _check_ready(self) -> None:
        """KIP-858: a broker with several directories stays fenced until nothing is left to assign."""
        if self.life.ready_to_unfence or not self.placement.published or self.placement.busy:
            return
        if self.placement.inventory.loading:
            return
        now_ms = self._clock.monotonic_ms()
        if self.fencing.holds(now_ms):
            return
        without = any(not self.placement.inventory.copies(partition) for partition in self.placement.taken)
        if without and self.image.metadata_version < DIRECTORY_ASSIGNMENT:
            return  # the controller cannot be told of one replica: as a leader it would have no data
        write(self._log, self.fencing.waived(now_ms))
        self._feed(life.ReadyToUnfence())

    # ------------------------------------------------------------------------------------------------------- lifecycle

    def _feed(self, event: life.Event) -> None:
        """Give the lifecycle an event and carry out the effects. Events from these effects follow later."""
        self._events.append(event)
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._events:
                self.life, effects = life.step(self.life, self._events.popleft(), self._clock.monotonic_ms())
                for effect in effects:
                    self._carry_out(effect)
        finally:
            self._pumping = False
        if self._trouble is not None and self.life.failures == 0:
            self._recovered(self._trouble)
        self._check_registering()
        self._wake.set()

    def _carry_out(self, effect: life.Effect) -> None:
        match effect:
            case life.SendRegistration():
                self._spawn(self._register(effect))
            case life.SendHeartbeat():
                self._heartbeat(effect)
            case life.SendFarewell(request):
                self._say_farewell(request)
            case life.ForgetController():
                self._channel.forget()
            case life.Registered():
                self._registered(effect)
            case life.CaughtUp():
                self.placement.publish(self.image)
                self._cordon()
                self.caught_up.set()
            case life.Unfenced():
                self._unfenced()
            case life.Fenced():
                if self.life.state is life.BrokerState.RUNNING:
                    self._reporter.fenced()
            case life.OfflineAcknowledged(directory_ids):
                self._acknowledged(directory_ids)
            case life.OfflineForgotten(directory_ids):
                self.failures = failing.forgotten(self.failures, directory_ids, self._clock.monotonic_ms())
            case life.Rejected():
                self._rejected(effect)
            case life.Stopped():
                self._stopped(effect)

    async def _register(self, effect: life.SendRegistration) -> None:
        def prepare(connection: Connection) -> RequestBody[Any]:
            version = connection.version_of(ApiKey.BROKER_REGISTRATION)
            features = registered_features(connection.features.supported, version)
            self._feed(life.FeaturesKnown(features))
            request: BrokerRegistrationRequest = structs.replace(effect.request, features=features)
            return request

        try:
            answer = await self._channel.request(
                prepare,
                timeout_ms=effect.timeout_ms,
                wanted=lambda: life.is_in_flight(self.life, effect.serial),
                patience=self._patience(self.life.offline),
            )
        except (Disconnected, UnsupportedVersionError) as error:
            self._beat_ended(life.RequestFailed(effect.serial, str(error)))
        else:
            reason = newer.why_not_registered(self.image.features)
            self._beat_ended(life.RegistrationAnswered(effect.serial, answer.error_code, answer.broker_epoch, reason))

    def _heartbeat(self, effect: life.SendHeartbeat) -> None:
        first = {d: self._offline[d].path for d in effect.news if not self._offline[d].sent}
        self._spawn(self._beat(effect))
        if first:
            for directory_id in first:
                self._offline[directory_id].sent = True
            asyncio.get_running_loop().call_soon(self._announce, first)

    def _patience(self, news: Collection[Uuid]) -> Patience | None:
        """Patience of a request that reports failed directories; None: the request reports none."""
        if not news:
            return None
        interval_ms = self.life.timing.heartbeat_interval_ms

        def is_answering() -> bool:
            now_ms, answered_ms = self._clock.monotonic_ms(), self.controller_answered_ms()
            if answered_ms is None or now_ms - answered_ms >= interval_ms:
                return False
            self._pulse.beaten_ms = now_ms  # it waits for somebody who is alive: it does not stand still
            return True

        return Patience(self.failures.timeout_ms, is_answering)

    async def _beat(self, effect: life.SendHeartbeat) -> None:
        request = effect.request
        try:
            answer = await self._channel.request(
                lambda connection: _fitting(request, connection),
                timeout_ms=effect.timeout_ms,
                wanted=lambda: life.is_in_flight(self.life, effect.serial),
                patience=self._patience(effect.news),
            )
        except (Disconnected, UnsupportedVersionError) as error:
            self._beat_ended(life.RequestFailed(effect.serial, str(error)))
        else:
            self._beat_ended(
                life.HeartbeatAnswered(
                    effect.serial, answer.error_code, answer.is_caught_up, answer.is_fenced, answer.should_shut_down
                )
            )

    def _beat_ended(self, event: life.RegistrationAnswered | life.HeartbeatAnswered | life.RequestFailed) -> None:
        self._pulse.beaten_ms = self._clock.monotonic_ms()
        self._feed(event)

    def _say_farewell(self, request: BrokerHeartbeatRequest) -> None:
        if self._channel.leader is not None:
            self.farewell = asyncio.Event()
            self._spawn(self._send_farewell(request, self.farewell))

    async def _send_farewell(self, request: BrokerHeartbeatRequest, done: asyncio.Event) -> None:
        with contextlib.suppress(Disconnected, UnsupportedVersionError):
            await self._channel.request(
                lambda connection: _fitting(request, connection), timeout_ms=FAREWELL_TIMEOUT_MS
            )
        done.set()

    def _unfenced(self) -> None:
        self._reporter.unfenced()
        if not self._unfenced_once:
            self._unfenced_once = self._ready_due = True
            self._tell_status()

    def _acknowledged(self, directory_ids: tuple[Uuid, ...]) -> None:
        now_ms = self._clock.monotonic_ms()
        self.failures = failing.reported(self.failures, directory_ids)
        paths = {d: self._offline[d].path for d in directory_ids}
        self._reporter.offline_acknowledged(paths, [now_ms - self._offline[d].since_ms for d in directory_ids])

    def _rejected(self, effect: life.Rejected) -> None:
        """A line per kind of trouble and minute, not per attempt."""
        now_ms = self._clock.monotonic_ms()
        if self._trouble is None:
            self._trouble = _Trouble(now_ms, now_ms)
        trouble, kind = self._trouble, re.sub(r"\d+", "0", effect.reason)
        trouble.failures += 1
        if kind in trouble.kinds and now_ms - trouble.logged_ms < TROUBLE_AGAIN_MS:
            return
        trouble.kinds.add(kind)
        trouble.logged_ms = now_ms
        self._log.warning(
            "controller.request.failed",
            request="heartbeat" if effect.heartbeat else "registration",
            reason=effect.reason,
            retry_ms=effect.retry_ms,
            failures=trouble.failures,
            since_ms=now_ms - trouble.since_ms,
        )

    def _recovered(self, trouble: _Trouble) -> None:
        """Log that the controller answers again."""
        self._trouble = None
        self.assignments.restart_patience(self._clock.monotonic_ms())
        self._log.info(
            "controller.request.recovered",
            failures=trouble.failures,
            after_ms=self._clock.monotonic_ms() - trouble.since_ms,
        )

    def _stopped(self, effect: life.Stopped) -> None:
        if self.ended.done():
            return
        if self._halt is not None:
            self.ended.set_result(self._halt)
            return
        exit_code = _ENDINGS[effect.ending]
        self.ended.set_result(Ended(exit_code, effect.reason, clean=exit_code == 0))

    # ----------------------------------------------------------------------------------------------------- assignments

    @property
    def _can_assign(self) -> bool:
        return self.life.registered and self.life.active and self._assign_channel.leader is not None

    def _send_assignments(self, now_ms: int) -> None:
        if not self._can_assign:
            return
        request = self.assignments.take(self.life.broker_epoch, self.placement.hosting.partitions.__contains__, now_ms)
        if request is not None:
            self._log.info("assignments.sent", count=len(self.assignments.in_flight))
            self._spawn(self._assign(request))

    async def _assign(self, request: AssignReplicasToDirsRequest) -> None:
        try:
            answer = await self._assign_channel.request(lambda _: request, timeout_ms=ASSIGN_TIMEOUT_MS)
        except (Disconnected, UnsupportedVersionError) as error:
            self._assign_channel.forget()
            outcome = self.assignments.failed(str(error), self._clock.monotonic_ms())
        else:
            outcome = self.assignments.answered(answer, self._clock.monotonic_ms())
        self._assigned(outcome)

    def _assigned(self, outcome: Outcome) -> None:
        write(self._log, self.fencing.answered(outcome, self._clock.monotonic_ms()))
        if outcome.accepted:
            self._reporter.assignments_acknowledged(len(outcome.accepted))
            in_failed = [p for p, d in outcome.accepted.items() if d in self._offline]
            self.failures = failing.placed(self.failures, in_failed)
        self._tell_mover(outcome)
        self._check_ready()
        self._wake.set()

    def _undecided(self) -> Mapping[TopicIdPartition, None]:
        """Replicas of ours of which the metadata do not know the directory, where they have room for it."""
        known = self.placement.published and self.image.metadata_version >= DIRECTORY_ASSIGNMENT
        return self.placement.hosting.undecided if known else {}

    def _partition_name(self, partition: TopicIdPartition) -> str:
        hosted = self.placement.hosting.partitions.get(partition)
        return f"{partition.topic_id if hosted is None else hosted.topic}-{partition.partition}"

    def _wall_ms_at(self, monotonic_ms: int) -> int:
        return self._clock.wall_ms() - (self._clock.monotonic_ms() - monotonic_ms)

    # ---------------------------------------------------------------------------------------------------------- status

    @property
    def contact(self) -> Contact:
        """The controller as it is known at this moment."""
        at = self._controller
        return contact(
            self.life,
            self._clock.monotonic_ms(),
            self._clock.wall_ms(),
            self._started_ms,
            None if at is None else str(HostPort(at.host, at.port)),
        )

    def condition(self, *, ago: bool = True) -> Condition:
        """Condition of the agent at this moment (:mod:`kjbod_agent.condition`)."""
        return condition(
            self.life,
            self.contact,
            self.directory_states(),
            running_ms=self._clock.monotonic_ms() - self._started_ms,
            unrecorded=sum(not failure.settled for failure in self.failures.failed),
            stuck=self.fencing.stuck,
            unfollowed=self.unfollowed(),
            certificates=self.certificates.reasons(self._clock.wall_ms()),
            lost=self.history.parted is not None,
            unknown=self._unknown_now(),
            replicas=self._replica_troubles(),
            ago=ago,
        )

    def _replica_troubles(self) -> list[str]:
        """Reasons not to rely on replicas that the metadata place here, in words."""
        if not self.placement.published:
            return []
        found = [*self.placement.missing(), *self.fencing.unmade_words()]
        if self._multiple and self.image.metadata_version < DIRECTORY_ASSIGNMENT:
            found.append(
                "several log.dirs need metadata.version 3.7-IV2 or later (kafka-features upgrade): the controller does "
                "not know which replicas a failed directory holds"
            )
        return found

    def _tell_status(self) -> None:
        """Tell the service manager what is new; what it did not take, in a moment of trouble of its own, again."""
        if self._halt is not None:
            return  # its last words say why
        text = self._status_text()
        if self._ready_due:
            taken = systemd.notify_ready(text)
            self._ready_due = not taken
        else:
            taken = text == self._status or systemd.notify_status(text)
        if taken:
            self._status = text

    def _work_text(self) -> list[str]:
        """Words for the work in the directories, while there is some."""
        inventory = self.placement.inventory
        parts = [f"{inventory.path(d)} is being loaded" for d in inventory.loading]
        if self.placement.inventory.creating:
            parts.append(f"{len(self.placement.inventory.creating):,} replicas to create")
        return parts

    def _status_text(self) -> str:
        # With moments, not ages: it is sent when it is another one, not each second.
        parts = [self.condition(ago=False).line]
        parts.extend(self._work_text())
        parts.extend(word for word in self.fencing.words(self._clock.monotonic_ms()) if word not in parts[0])
        parts.extend(f"{path} could not be read at the start" for path in self._unreadable)
        parts.extend(
            f"{failure.path} failed since {failure.since}{'' if failure.settled else ', not yet recorded'}"
            for failure in self.failures.failed
        )
        parts.extend(self.companion.words())
        return ", ".join(parts)


def _fitting(request: BrokerHeartbeatRequest, connection: Connection) -> BrokerHeartbeatRequest:
    """The heartbeat for this controller: an old one has no field for cordons, and no use for them."""
    if connection.version_of(ApiKey.BROKER_HEARTBEAT) < 2 and request.cordoned_log_dirs is not None:
        return structs.replace(request, cordoned_log_dirs=None)
    return request
