"""The agent's composition root: makes the parts, joins them, and owns the order of start and end. What its process has
in common with other daemons is :mod:`kjbod_host.daemon`'s.

Start: configuration, state directory, directories (:mod:`kjbod_host.directories.start_up`), then everything that runs
for as long as the agent: metadata follower, health monitor, placement, mover, timers, samples, metrics, listeners; and
what reads the replicas (:mod:`.directories.loading`). Directories may be added later (:mod:`.directories.additions`).
When a task ends with an error the process ends with its reason: half an agent is worse than none, because the half that
heartbeats keeps partitions on the half that is dead.

On a combined node the controller is a :class:`~.companion.Companion` in this process. All that may refuse the start,
directories, locks and ports of both, is looked at before it serves or writes; it serves before the agent registers, and
closes after all of the agent.

End: the broker's :attr:`~kjbod_agent.broker.Broker.ended` says how, and :mod:`kjbod_host.ending` sees to it: after a
disk failure within :data:`~kjbod_host.ending.HALT_TIMEOUT_MS`. The service manager's status text says so first.

What that thread cannot end is a process of which another thread is stuck in the kernel: not even SIGKILL does, and its
ports stay taken. All that touches a log directory, ``kjbod.state.dir`` or ``kjbod.reports.dir`` is in other processes
(:mod:`kjbod_host.storage`, :mod:`kjbod_host.files`); in this one is stderr, which must not be a file on a disk that
may hang, and the writer of a companion's log: its sockets are closed before the end.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kjbod.clock import Clock, SystemClock, system_random
from kjbod.config import Config, load_config
from kjbod.config.endpoints import SECURITY_PROTOCOLS
from kjbod.config.load import Check, agent_problems, server_problems
from kjbod.config.needs import AGENT_NEEDS, SERVER_NEEDS
from kjbod.config.unused import name_keys_without_effect
from kjbod.errors import KjbodError
from kjbod.ids import Uuid, random_agent_incarnation
from kjbod.metadata.fetching import Committed, Leader, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.runtime import memory, systemd
from kjbod.runtime.logging import get_logger
from kjbod.runtime.loop import run_daemon
from kjbod.security.certificates import Certificates
from kjbod.security.channel import NO_SECURITY, Security, look_again
from kjbod.security.opening import security_of
from kjbod.wire.client import opened_with
from kjbod.wire.connection_setup import ConnectionSetup
from kjbod.wire.frames import preload
from kjbod.wire.messages import API, ApiKey, BrokerRegistrationRequestListener
from kjbod_agent import lifecycle
from kjbod_agent.admin.commands import CommandParts, Commands
from kjbod_agent.admin.forwarding import Forwarder
from kjbod_agent.admin.listener import PRELOADED, Listeners, Parts, listener_problems, require_free_ports
from kjbod_agent.admin.view import DirectoryViews, log_directories, metadata_directory
from kjbod_agent.broker import FAREWELL_TIMEOUT_MS, Broker
from kjbod_agent.companion import ALONE, Companion
from kjbod_agent.condition import Unfollowed
from kjbod_agent.directories.additions import AdditionError, Additions
from kjbod_agent.directories.clean_shutdown import CleanShutdown
from kjbod_agent.directories.loading import Loading
from kjbod_agent.failures import Failures
from kjbod_agent.keeping import Keeping, Start
from kjbod_agent.moves.mover import Mover
from kjbod_agent.replicas.choice import Capacity, Chooser, Policy, Site
from kjbod_agent.replicas.hosting import Hosting, cordoned_log_dirs
from kjbod_agent.replicas.inventory import Inventory
from kjbod_agent.replicas.placement import Placement
from kjbod_agent.replicas.stray_memory import Note, StrayMemory
from kjbod_host.channel import ControllerChannel
from kjbod_host.daemon import Daemon, begin
from kjbod_host.directories.start_up import Opened, Remembering, mark_clean, open_directories
from kjbod_host.directories.start_up_rules import StartUpError
from kjbod_host.ending import END_TIMEOUT_MS, Ended, Ending, second_signal
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.settings import health_settings
from kjbod_host.health.sources.linux import linux_sources
from kjbod_host.health.verdict import Health
from kjbod_host.quorum import connection_setup, quorum, servers, voter_addresses
from kjbod_host.report_writer import Limits, ReportWriter
from kjbod_host.reporter import Reporter, Sender
from kjbod_host.smart.asking import SmartAsking
from kjbod_host.smart.processes import Processes as SmartProcesses
from kjbod_host.storage.api import StorageAgent, StorageOptions, helper_ids, worker_ids
from kjbod_host.storage.registry import create
from kjbod_host.storage.worker import LINK

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kjbod_agent.metrics import Move as MoveMetric
    from kjbod_agent.metrics import Snapshot as Reading
    from kjbod_host.metrics import Disk

    Picture = tuple[Reading, Callable[[], Iterable[Metric]]]

START_TASKS: Final = 18
"""Threads and processes of a start, a worker for each directory aside: log, end, uvloop's four and what runs beside the
loop; zygote, keeper, files, kept metadata; and some to spare."""
START_FILES: Final = 64
FILES_OF_DIRECTORY: Final = 4
"""Sockets and status files of a worker, what is asked of the kernel about its disk, and a move."""
HALT_REPORTS_TIMEOUT_MS: Final = 200
END_REPORTS_TIMEOUT_MS: Final = 1_000
TIDY_AFTER_MS: Final = 5_000
"""Between two looks whether there are other replicas, and memory to give back."""
CONTROLLED_SHUTDOWN_TIMEOUT_MS: Final = 30_000
"""With :data:`~kjbod_host.ending.END_TIMEOUT_MS` less than ``TimeoutStopSec=`` of the unit, so that the end is ours."""
_SPOKEN: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.FETCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
)


def main(
    config_path: Path,
    problems: Check = agent_problems,
    companion_of: Callable[[Config], Companion] = lambda _: ALONE,
    *,
    take_over: bool = False,
) -> int:
    """Run the agent with the ``server.properties`` at ``config_path`` until it ends; gives the exit code.

    0 after SIGTERM, 74 when it gave up because of failed log directories, 78 when the configuration cannot work, 1
    otherwise. Logs go to stderr: for people on a terminal, else as JSON lines.

    Args:
        config_path: of the file.
        problems: what is asked of its roles.
        companion_of: makes the other half of the node.
        take_over: whether the agent may start on directories that a Kafka broker has used; False: as
            ``kjbod.agent.take.over`` says.

    Raises:
        KjbodError: the agent could not start; one line says why, nothing was changed.
    """
    with systemd.refusal_told():
        needs = SERVER_NEEDS if problems is server_problems else AGENT_NEEDS
        config = load_config(config_path, problems, *CHECKS, needs=needs)
        if take_over:
            config = replace(config, kjbod_agent_take_over=True)
        listeners = registered_listeners(config)
        security = security_of(config)
        companion = companion_of(config)
        directories = len({*config.log_dirs, config.metadata_log_dir})
        begin(
            "agent",
            tasks=START_TASKS + directories + companion.start_tasks,
            files=START_FILES + FILES_OF_DIRECTORY * directories + companion.start_files,
        )
        security.load()
        name_keys_without_effect(config, ",".join(config.process_roles), get_logger().info)
        # On a busy host this takes seconds, in which an event loop would neither heartbeat nor judge a disk.
        preload({key: (API[key].max_version, API[key].max_version) for key in _SPOKEN} | dict(PRELOADED))
        return run_daemon(lambda: Agent(config, listeners, SystemClock(), system_random(), security, companion).run())


def registered_listeners(config: Config) -> tuple[BrokerRegistrationRequestListener, ...]:
    """Return the listeners to register, without problems by :func:`_registration_problems`."""
    return tuple(
        BrokerRegistrationRequestListener(
            name=one.name,
            host=one.host,
            port=one.port,
            security_protocol=SECURITY_PROTOCOLS.index(one.protocol),
        )
        for one in config.advertised_broker_listeners
    )


def _registration_problems(config: Config) -> list[str]:
    """A port of 0, which makes a real controller resign (seen on 4.3.1)."""
    return [
        f"{config.source}: advertised.listeners: {one}: a broker cannot be reached at port 0"
        for one in config.advertised_broker_listeners
        if one.port == 0
    ]


CHECKS: Final[tuple[Check, ...]] = (listener_problems, _registration_problems)
"""What is asked of the file of any node that runs an agent."""


class Agent:
    """A run of the agent. Implements :class:`~kjbod_host.daemon.Work`."""

    def __init__(
        self,
        config: Config,
        listeners: tuple[BrokerRegistrationRequestListener, ...],
        clock: Clock,
        rng: random.Random,
        security: Security = NO_SECURITY,
        companion: Companion = ALONE,
    ) -> None:
        self._config = config
        self._companion = companion
        self._listeners = listeners
        self._security = security
        self._certificates = Certificates()
        self._certificates.add("controllers", security)
        self._clock = clock
        self._rng = rng
        self._stray_memory = StrayMemory(Path(config.kjbod_state_dir), config.node_id)
        self._stray_notes: dict[tuple[Uuid, str], Note] = {}
        self._log = get_logger()
        self._broker: Broker | None = None
        self._ending = Ending("agent", clock)
        self._ending.lets_go = companion is not ALONE
        self._daemon = Daemon(self._ending, clock)
        self._storage: StorageAgent
        self._opened: Opened
        self._reporter: Reporter
        self._incarnation_id: Uuid
        self._additions: Additions | None = None
        self.remembering = Remembering(config, self._log)
        self.view: DirectoryViews
        self._listeners_open: Listeners | None = None
        self._forward_channel: ControllerChannel
        self._metadata: MetadataFollower | None = None
        self._keeping: Keeping | None = None
        self._report_writer: ReportWriter | None = None
        self._askers = SmartProcesses(config.kjbod_smart_socket)

    async def run(self) -> int:
        """Start, serve, end.

        Raises:
            KjbodError: the start was refused.
        """
        options = StorageOptions(clock=self._clock, role=self._config.kjbod_role, log=self._daemon.note)
        self._storage = create(self._config.kjbod_storage_agent, options)
        return await self._daemon.run(self, "asked to stop before the directories were loaded")

    async def open(self) -> None:
        """Open the directories; on a combined node the controller serves then.

        Raises:
            KjbodError: the start is refused.
        """
        try:
            await self._storage.start()
            if self._companion is not ALONE:
                await require_free_ports(self._config, self._log)
            self._opened = await open_directories(
                self._config,
                self._storage,
                self._clock,
                self._rng,
                self._log,
                self.remembering,
                open_companion=self._companion.open,
            )
            await self._companion.start()
            with contextlib.suppress(OSError, StartUpError):  # it is only a memory
                content = await self.remembering.read_file(str(self._stray_memory.path))
                self._stray_notes = self._stray_memory.parse(content)
            incarnation_id = self._incarnation_id = random_agent_incarnation(self._rng)
            reports = self._report_writer = self._reports(incarnation_id)
            await reports.start()
            self._reporter = self._make_reporter(self._opened, incarnation_id, reports)
        except (asyncio.CancelledError, KjbodError) as error:
            if self._companion is not ALONE:
                await self._close_companion(error)
            raise

    async def _close_companion(self, error: BaseException) -> None:
        """Close it after a start that was not completed. Its disk may keep a thread, and that the process."""
        if isinstance(error, KjbodError):
            self._ending.limit(Ended(error.exit_code, str(error), clean=False), END_TIMEOUT_MS)
        await self._storage.close()
        self.remembering.close()
        await self._companion.close()

    async def add_directory(self, path: str) -> str:
        """Add a directory of ``log.dirs`` while the agent runs, see :mod:`kjbod_agent.directories.additions`; one
        line that says what was done.

        Raises:
            KjbodError: it cannot be added (now); one line says why and what to do, or what is waited for.
        """
        if self._additions is None:
            raise AdditionError(f"{path}: the agent is still starting: try again soon")
        return await self._additions.add(path)

    # ------------------------------------------------------------------------------------------------------- the parts

    async def serve(self) -> Ended:
        """Start all parts, wait for the end, and tell the controller.

        Raises:
            KjbodError: a port is taken.
        """
        opened, reporter = self._opened, self._reporter
        reporter.started(
            {d.path: d.directory_id for d in opened.start_up.log_dirs},
            {u.path: u.reason for u in opened.start_up.unreadable},
        )
        broker = self._broker = self._make_broker(opened, self._incarnation_id, reporter)
        self._daemon.on_signal = self._signalled
        await self._start_parts(broker, opened, reporter)
        broker.start()
        ended = await asyncio.shield(broker.ended)
        self._ending.limit(ended)
        reporter.stopping(ended.reason)
        await _wait_for_farewell(broker)
        await broker.mover.close()
        if self._listeners_open is not None:
            await self._listeners_open.close()
        return ended

    async def leave(self, ended: Ended) -> Ended:
        """Leave directories, workers and reports in good order."""
        broker, opened = self._broker, self._opened
        if broker is not None and broker.halted is not None:
            ended = broker.halted
            self._ending.limit(ended)
        if not ended.clean:
            systemd.notify_stopping(ended.reason)
        if self._listeners_open is not None:
            await self._listeners_open.close()
        if ended.clean and broker is not None:
            epoch = broker.life.broker_epoch
            epoch = opened.start_up.previous_broker_epoch if epoch == lifecycle.NO_EPOCH else epoch
            clean = set() if broker.clean_shutdown is None else broker.clean_shutdown.clean()
            usable = broker.failures.usable & clean
            await mark_clean(opened, [d for d in opened.agents if d in usable], epoch)
        await self._storage.close()
        self._reporter.stopped(ended.exit_code, ended.reason)
        assert self._report_writer is not None
        await self._report_writer.close(END_REPORTS_TIMEOUT_MS if ended.exit_code == 0 else HALT_REPORTS_TIMEOUT_MS)
        self.remembering.close()
        # Last: a thread of it may be stuck in the kernel, which would keep whatever is open in this process.
        await self._companion.close()
        return ended

    async def close(self) -> None:
        """Release state directory and workers."""
        self.remembering.close()
        if self._keeping is not None:
            self._keeping.close()
        await self._storage.close()

    def _make_broker(self, opened: Opened, incarnation_id: Uuid, reporter: Reporter) -> Broker:
        config, start_up = self._config, opened.start_up
        log_dirs = tuple(d.directory_id for d in start_up.log_dirs)
        broker = Broker(
            identity=lifecycle.Identity(
                broker_id=config.node_id,
                cluster_id=start_up.cluster_id,
                incarnation_id=incarnation_id,
                listeners=self._listeners,
                log_dirs=log_dirs,
                rack=config.broker_rack,
                previous_broker_epoch=start_up.previous_broker_epoch,
            ),
            timing=lifecycle.Timing(
                heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
                session_timeout_ms=config.broker_session_timeout_ms,
                registration_timeout_ms=config.initial_broker_registration_timeout_ms,
                controlled_shutdown_timeout_ms=CONTROLLED_SHUTDOWN_TIMEOUT_MS,
            ),
            failures=Failures(
                timeout_ms=config.log_dir_failure_timeout_ms,
                usable=frozenset(log_dirs),
                metadata_directory=start_up.metadata.directory_id,
            ),
            paths={d.directory_id: d.path for d in start_up.all},
            multiple=len(config.log_dirs) > 1,
            accept=config.kjbod_placement_accept,
            controlled_shutdown=config.controlled_shutdown_enable,
            lifecycle_channel=self._channel(),
            assignments_channel=self._channel(),
            reporter=reporter,
            clock=self._clock,
            spawn=self._daemon.spawn,
            log=self._log,
            unreadable=tuple(u.path for u in start_up.unreadable if u.path not in opened.late),
            assignment_timeout_ms=config.kjbod_assignment_timeout_ms,
        )
        broker.placement = Placement(
            hosting=Hosting(config.node_id),
            inventory=_inventory(opened),
            agents={d: opened.agents[d] for d in log_dirs},
            owner=broker,
            unique=lambda: self._rng.randbytes(16).hex(),
            log=self._log,
            clock=self._clock,
            delete_delay_ms=config.file_delete_delay_ms,
            memory=self._stray_memory,
            write_file=self.remembering.write_file,
            notes=self._stray_notes,
        )
        broker.placement.inventory.chooser = Chooser(
            cast("Policy", config.kjbod_placement), config.kjbod_placement_full_percent, self._rng.random
        )
        broker.mover = self._make_mover(broker, opened)
        return broker

    def _make_mover(self, broker: Broker, opened: Opened) -> Mover:
        config = self._config
        return Mover(
            placement=broker.placement,
            storage=self._storage,
            owner=broker,
            directories=lambda: {e.path: e.directory_id for e in log_directories(opened, self.remembering.memory)},
            unique=lambda: self._rng.randbytes(16).hex(),
            clock=self._clock,
            log=self._log,
            concurrency=config.kjbod_move_concurrency,
            bytes_per_second=config.kjbod_move_bytes_per_second,
            total_bytes_per_second=config.replica_alter_log_dirs_io_max_bytes_per_second,
        )

    async def _start_parts(self, broker: Broker, opened: Opened, reporter: Reporter) -> None:
        """:meth:`_run_parts`, until it is done or the broker ends: a listener may wait for its name for a minute."""
        starting = self._daemon.task(self._run_parts(broker, opened, reporter))
        waited: set[asyncio.Future[Any]] = {starting, broker.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        starting.cancel()

    async def _run_parts(self, broker: Broker, opened: Opened, reporter: Reporter) -> None:
        """Start all parts that run until the agent ends."""
        self._daemon.spawn(self._companion.run())
        broker.companion = self._companion
        self._certificates.include(self._companion.certificates)
        self._daemon.meter(self._worker_ids, self._helper_ids)
        monitor = self._monitor(broker, opened)
        broker.monitor = monitor
        smart = SmartAsking(self._config.kjbod_smart_interval_ms, self._askers, self._clock, self._log, monitor.status)
        monitor.smart = smart.of
        broker.placement.sites = lambda: _sites(broker, monitor, opened, self._config)
        self._tell_links(opened)
        broker.clean_shutdown = CleanShutdown(
            lambda: opened.start_up.log_dirs,
            # Not before there is nothing more urgent to read.
            lambda d: opened.agents.get(d) if broker.life.ready_to_unfence and d in broker.failures.usable else None,
            lambda: bool(opened.start_up.unreadable),
        )
        self._daemon.spawn(broker.clean_shutdown.run())
        now_ms = self._clock.monotonic_ms()
        for directory_id, reason in opened.failed.items():
            broker.directory_failed(directory_id, "error", reason, now_ms)
        self._forward_channel = self._channel()
        self._keeping = self._keeper(opened)
        broker.unfollowed = self._unfollowed
        broker.controller_answered_ms = lambda: None if self._metadata is None else self._metadata.answered_ms
        broker.certificates = self._certificates
        self._daemon.spawn(look_again(self._certificates))
        self._daemon.spawn(self._follow(broker, opened))
        self._daemon.spawn(monitor.run())
        self._daemon.spawn(broker.placement.run())
        self._daemon.spawn(broker.mover.run())
        self._daemon.spawn(broker.run_timers(systemd.watchdog_interval_ms()))
        self._daemon.spawn(self._save_memory(broker.placement))
        self._daemon.spawn(self._loading(broker, monitor, opened).run())
        self._daemon.spawn(smart.run())
        self._daemon.spawn(self.remembering.keep_current(monitor.status, self._clock))
        self._daemon.spawn(self._sample(broker, monitor, reporter, opened))
        await self._listen(broker, monitor, opened)
        await self._open_control(broker, monitor, opened)
        beside = self._companion.pictures()
        await self._daemon.open_metrics(
            self._config,
            lambda: (_reading(broker, monitor, opened, self._keeping), beside()),
            _load_metrics,
            broker.vitals,
            self._certificates,
        )

    async def _listen(self, broker: Broker, monitor: HealthMonitor, opened: Opened) -> None:
        """Open the listeners; requests wait until the metadata are known."""
        self.view = DirectoryViews(
            lambda: log_directories(opened, self.remembering.memory),
            broker=broker,
            monitor=monitor,
            clock=self._clock,
            spawn=self._daemon.spawn,
            metadata=lambda: metadata_directory(opened, self.remembering.memory),
        )
        broker.directory_states = self.view.states
        parts = Parts(
            broker=broker,
            view=self.view,
            mover=lambda: broker.mover,
            forwarder=Forwarder(self._forward_channel, self._clock, self._config.request_timeout_ms),
            cluster_id=opened.start_up.cluster_id,
            log_dirs=lambda: [entry.path for entry in log_directories(opened, self.remembering.memory)],
        )
        self._listeners_open = Listeners(self._config, parts, self._certificates, clock=self._clock, log=self._log)
        await self._listeners_open.open()
        self._daemon.spawn(self._listeners_open.stores.run())

    async def _open_control(self, broker: Broker, monitor: HealthMonitor, opened: Opened) -> None:
        parts = CommandParts(
            broker=broker,
            mover=lambda: broker.mover,
            view=self.view,
            causes=lambda: {status.path: str(status.health.cause) for status in monitor.status()},
            log_dirs=lambda: log_directories(opened, self.remembering.memory),
            add_directory=self.add_directory,
            companion=self._companion.as_json,
            usage=self._daemon.usage.read,
            spawn=self._daemon.spawn,
        )
        await self._daemon.open_control(self._config, Commands(parts).handlers(), self.remembering.files)

    def _tell_links(self, opened: Opened) -> None:
        """Kafka would follow a link with the name of a replica, perhaps to a disk that nobody watches."""
        for directory in opened.start_up.log_dirs:
            for replica in directory.loaded.replicas:
                if replica.trouble != LINK:
                    continue
                self._log.warning(
                    "replica.linked",
                    path=f"{directory.path}/{replica.name}",
                    reason="a symbolic link is not followed and not changed: move what it leads to into its place",
                )

    def _loading(self, broker: Broker, monitor: HealthMonitor, opened: Opened) -> Loading:
        additions = self._additions = Additions(
            config=self._config,
            storage=self._storage,
            opened=opened,
            remembering=self.remembering,
            owner=broker,
            monitor=monitor,
            clock=self._clock,
            rng=self._rng,
            log=self._log,
            spawn=self._daemon.spawn,
            checks=(server_problems, *CHECKS),
        )
        return Loading(
            opened,
            broker,
            adopt=lambda path: additions.add(path, renew=False),
            agent_at=self._storage.directory,
            clock=self._clock,
            log=self._log,
        )

    def _monitor(self, broker: Broker, opened: Opened) -> HealthMonitor:
        return HealthMonitor(
            [
                (opened.agents[d.directory_id], d.loaded, str(d.directory_id))
                for d in opened.start_up.all
                if d.directory_id not in opened.failed
            ],
            settings=health_settings(self._config),
            clock=self._clock,
            on_verdict=broker.on_verdict,
            kernel_sources=linux_sources(),
            log=self._daemon.note,
        )

    def _keeper(self, opened: Opened) -> Keeping | None:
        """Keeper of the metadata in ``metadata.log.dir``; None where that is a controller's, or not locked."""
        config, metadata = self._config, opened.start_up.metadata
        locked = metadata.directory_id not in opened.failed and metadata.directory_id not in opened.unprepared
        if "controller" in config.process_roles or not locked:
            return None
        return Keeping(
            metadata.path,
            Path(config.kjbod_state_dir),
            cluster_id=opened.start_up.cluster_id,
            node_id=config.node_id,
            spawn=self._daemon.spawn,
            log=self._log,
        )

    async def _follow(self, broker: Broker, opened: Opened) -> None:
        """Follow the metadata, from the position of an earlier process if it is known."""
        keeping = self._keeping
        start = None if keeping is None else await keeping.load()
        broker.known = None if start is None else start.image
        self._metadata = self._follower(broker, opened, start)
        del start  # or what the leader does not have stays in memory
        if keeping is not None:
            self._daemon.spawn(keeping.run())
        await self._metadata.run()

    def _follower(self, broker: Broker, opened: Opened, start: Start | None) -> MetadataFollower:
        keeping = self._keeping
        kept, level = (None, 0) if start is None else (start.kept, start.kraft_version)

        def on_committed(committed: Committed) -> None:
            broker.on_committed(committed)
            if keeping is not None:
                keeping.committed(committed)

        def on_snapshot(snapshot: Snapshot) -> None:
            contained = broker.on_snapshot(snapshot)
            if keeping is not None:
                keeping.replaced(snapshot, contained=contained)

        def on_confirmed() -> None:
            self._log.info("metadata.kept.confirmed", offset=-1 if broker.known is None else broker.known.offset)
            broker.on_confirmed(level)

        def on_leader(leader: Leader | None) -> None:
            broker.on_leader(leader)
            self._forward_channel.set_leader(leader)

        config = self._config
        return MetadataFollower(
            servers(config),
            client_id=f"raft-client-{config.node_id}",
            clock=self._clock,
            rng=self._rng,
            on_committed=on_committed,
            on_snapshot=on_snapshot,
            on_leader=on_leader,
            on_set_back=broker.on_set_back,
            kept=kept,
            on_confirmed=on_confirmed,
            on_downloaded=(lambda snapshot_id, data: None) if keeping is None else keeping.downloaded,
            cluster_id=opened.start_up.cluster_id,
            replica_id=config.node_id,
            directory_id=opened.start_up.metadata.directory_id,
            voters=voter_addresses(config),
            quorum=quorum(config),
            setup=self._connection_setup(),
            connect=opened_with(self._security),
        )

    def _channel(self) -> ControllerChannel:
        return ControllerChannel(
            client_id=str(self._config.node_id),
            clock=self._clock,
            spawn=self._daemon.spawn,
            trouble=self._metadata_trouble,
            setup=self._connection_setup(),
            timeout_max_ms=self._config.controller_socket_timeout_ms,
            connect=opened_with(self._security),
        )

    def _connection_setup(self) -> ConnectionSetup:
        return connection_setup(self._config, self._rng)

    def _unfollowed(self) -> Unfollowed | None:
        since_ms = None if self._metadata is None else self._metadata.failing_since_ms
        if since_ms is None:
            return None
        return Unfollowed(self._clock.monotonic_ms() - since_ms, self._metadata_trouble())

    def _metadata_trouble(self) -> str:
        """Return why the metadata, and so the active controller, cannot be fetched; empty: they can be."""
        return "" if self._metadata is None else self._metadata.problem or ""

    def _worker_ids(self) -> tuple[int, ...]:
        return (*worker_ids(self._storage), *self._companion.process_ids())

    def _helper_ids(self) -> tuple[int, ...]:
        """Zygote and keeper, and what does the file calls of state and reports."""
        reports = self._report_writer
        of_reports = () if reports is None else reports.process_ids()
        of_keeping = () if self._keeping is None else self._keeping.process_ids()
        files = (*self.remembering.files.process_ids(), *of_reports, *of_keeping)
        return (*helper_ids(self._storage), *files, *self._askers.process_ids())

    def _reports(self, incarnation_id: Uuid) -> ReportWriter:
        config = self._config
        return ReportWriter(
            Path(config.kjbod_reports_dir),
            host=self._host,
            boot_id=str(incarnation_id),
            clock=self._clock,
            limits=Limits(rotate_interval_ms=config.kjbod_reports_rotate_interval_ms),
        )

    def _make_reporter(self, opened: Opened, incarnation_id: Uuid, reports: ReportWriter) -> Reporter:
        sender = Sender(
            host=self._host,
            broker_id=self._config.node_id,
            boot_id=str(incarnation_id),
            fleet=opened.start_up.cluster_id,
            rack=self._config.broker_rack,
        )
        return Reporter(sender, self._clock, self._log, reports)

    @property
    def _host(self) -> str:
        return self._config.kjbod_host or socket.gethostname()

    async def _sample(self, broker: Broker, monitor: HealthMonitor, reporter: Reporter, opened: Opened) -> None:
        """Write a line per directory into the health report, each ``kjbod.reports.interval.ms``."""
        while True:
            leaders = broker.placement.leaders() or {}
            inventory = broker.placement.inventory
            reporter.sample(
                monitor.status(),
                {str(d): inventory.replica_count(d) for d in broker.placement.agents},
                {str(d): count for d, count in leaders.items()},
            )
            reporter.sample_unreadable({u.path: u.directory_id for u in opened.start_up.unreadable})
            await asyncio.sleep(self._config.kjbod_reports_interval_ms / 1000)

    async def _save_memory(self, placement: Placement) -> None:
        """Tidy up after each burst of replicas, the one at the start included."""
        tidied = -1
        while True:
            await asyncio.sleep(TIDY_AFTER_MS / 1000)
            replicas = sum(placement.inventory.replica_count(directory) for directory in placement.agents)
            if replicas != tidied and placement.published and not placement.busy:
                tidied = replicas
                memory.settle()

    def _signalled(self, number: int) -> None:
        """Handle SIGTERM or SIGINT: stop in good order; after a second signal stop at once."""
        assert self._broker is not None
        if self._ending.decided:
            return
        if self._ending.signals == 1:
            self._broker.stop()
        else:
            self._broker.end(second_signal(number))


async def _wait_for_farewell(broker: Broker) -> None:
    if broker.farewell is None:
        return
    try:
        async with asyncio.timeout(FAREWELL_TIMEOUT_MS / 1000):
            await broker.farewell.wait()
    except TimeoutError:
        return


def _inventory(opened: Opened) -> Inventory:
    """Inventory of the directories that there are; what lies in them is told when they are loaded. Those that are late
    may yet come."""
    start_up = opened.start_up
    late = [(u.directory_id, u.path) for u in start_up.unreadable if u.path in opened.late and u.directory_id]
    return Inventory(
        [*((d.directory_id, d.path) for d in start_up.log_dirs), *late],
        # One that is late, and whose id nobody remembers, may hold anything as long as it is not there.
        [u.directory_id for u in start_up.unreadable if u.path not in opened.late or u.directory_id is None],
        # Nothing of them was read, not of those either that have failed since: they may hold anything.
        loading=[*(d.directory_id for d in start_up.log_dirs), *(directory_id for directory_id, _ in late)],
    )


def _sites(broker: Broker, monitor: HealthMonitor, opened: Opened, config: Config) -> dict[Uuid, Site]:
    """Directories as they are now, for the choice of one for a new replica."""
    directories = opened.start_up.log_dirs
    paths = [directory.path for directory in directories]
    cordoned = cordoned_log_dirs(broker.image, config.node_id, config.cordoned_log_dirs, paths)
    watched = {status.path: status for status in monitor.status()}
    moving: dict[Uuid, int] = {}
    for move in broker.mover.moves:
        moving[move.destination] = moving.get(move.destination, 0) + max(0, move.total_bytes - move.copied_bytes)
    sites = {}
    for directory in directories:
        status = watched.get(directory.path)
        sample = directory.loaded if status is None or status.last_probe is None else status.last_probe
        health = Health.ONLINE if status is None else status.health.health
        sites[directory.directory_id] = Site(
            capacity=Capacity(sample.total_bytes, sample.usable_bytes),
            doubtful=health in (Health.SLOW, Health.HELD, Health.SUSPECT),
            no_room=health is Health.FULL,
            cordoned=directory.path in cordoned,
            moving_bytes=moving.get(directory.directory_id, 0),
        )
    return sites


def _reading(broker: Broker, monitor: HealthMonitor, opened: Opened, keeping: Keeping | None) -> "Reading":
    """The agent at this moment, for metrics."""
    from kjbod_agent.metrics import UNREADABLE
    from kjbod_agent.metrics import Snapshot as Reading
    from kjbod_host.metrics import disk_of

    start_up, placement = opened.start_up, broker.placement
    leaders = placement.leaders() or {}
    watched = monitor.status()
    health = {status.path: str(status.health.health) for status in watched}
    failed = {failure.path for failure in broker.failures.failed}
    unreadable = {one.path for one in start_up.unreadable}
    own = broker.image.brokers.get(placement.hosting.broker_id)
    cordoned = () if own is None else own.cordoned_log_dirs or ()
    return Reading(
        broker_state=int(broker.life.state),
        broker_epoch=broker.life.broker_epoch,
        fenced=broker.life.fenced,
        last_heartbeat_ms=broker.contact.last_answer_ms or 0,
        metadata_offset=broker.life.metadata_offset,
        certificates=tuple(broker.certificates.ends()),
        kept_offset=-1 if keeping is None or keeping.stopped is not None else keeping.offset,
        unfollowed_ms=0 if (silence := broker.unfollowed()) is None else silence.for_ms,
        queued_assignments=broker.fencing.unrecorded,
        offline={d.path: d.path in failed for d in start_up.log_dirs} | dict.fromkeys(unreadable, True),
        health=health | dict.fromkeys(sorted(failed - unreadable), "failed") | dict.fromkeys(unreadable, UNREADABLE),
        replicas={d.path: placement.inventory.replica_count(d.directory_id) for d in start_up.log_dirs},
        leaders={d.path: leaders.get(d.directory_id, 0) for d in start_up.log_dirs},
        stuck_assignments=broker.fencing.stuck,
        creating=len(placement.inventory.creating),
        loading={d.path: len(d.loaded.replicas) if d.directory_id in opened.loading else 0 for d in start_up.log_dirs},
        strays=len(placement.strays),
        moves=_moves(broker, {d.directory_id: d.path for d in start_up.log_dirs}),
        cordoned={d.path: d.directory_id in cordoned for d in start_up.log_dirs},
        disks={one.path: _unread_disk(one.directory_id) for one in start_up.unreadable}
        | {status.path: disk_of(status) for status in watched},
    )


def _unread_disk(directory_id: Uuid | None) -> "Disk":
    from kjbod_host.metrics import Disk

    return Disk(directory_id="" if directory_id is None else str(directory_id))


def _load_metrics() -> "Callable[[Picture], Iterable[Metric]]":
    from kjbod_agent.metrics import AgentCollector

    return lambda now: (*AgentCollector(lambda: now[0]).collect(), *now[1]())


def _moves(broker: Broker, paths: Mapping[Uuid, str]) -> "list[MoveMetric]":
    from kjbod_agent.metrics import WAITING
    from kjbod_agent.metrics import Move as MoveMetric

    return [
        MoveMetric(
            topic=view.topic,
            partition=view.partition.partition,
            source="" if view.source is None else paths.get(view.source, str(view.source)),
            destination=paths.get(view.destination, str(view.destination)),
            state=WAITING if view.waiting else str(view.state.value),
            total_bytes=view.total_bytes,
            copied_bytes=view.copied_bytes,
            bytes_per_second=view.bytes_per_second,
        )
        for view in broker.mover.moves
    ]
