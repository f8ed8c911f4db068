"""The guard's composition root: makes and joins the parts, and owns the order of start and end.
:mod:`kjbod_host.daemon` has the code that is common to all daemons.

A guard runs beside an unmodified Kafka broker, and reads the broker's ``server.properties``. A guard judges disks with
the storage workers and the health monitor of an agent. It follows the metadata to know what Kafka has noticed. It takes
no ``.lock``, registers nothing, and writes only probe files into the log directories. Its core decides (:mod:`.core`).
In mode observe the guard logs the decisions. In mode act it has further parts (:mod:`.act_mode`), which carry them out.

The other parts work without a missing one. The guard looks again for a directory that cannot be read, watches disks
without a controller, and waits for a broker. A change is one line in the
log (:mod:`.change_reporter`).
"""

import asyncio
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.config.needs import DECISIVE
from kjbod.ids import Uuid, random_agent_incarnation
from kjbod.meta_properties import format_command
from kjbod.metadata.fetching import Leader
from kjbod.metrics.vitals import Vitals
from kjbod.runtime import systemd
from kjbod.runtime.logging import get_logger
from kjbod.security.certificates import Certificates
from kjbod.security.channel import NO_SECURITY, look_again
from kjbod.wire.client import opened_with
from kjbod_guard import rights
from kjbod_guard.act_mode import ActMode, NoJournalError, load_journal
from kjbod_guard.action_runner import ActionRunner
from kjbod_guard.answers import Answers
from kjbod_guard.binding import Holder, moved
from kjbod_guard.broker_steps import State
from kjbod_guard.canary_asking import listener_to_ask
from kjbod_guard.change_reporter import ChangeReporter
from kjbod_guard.core import GuardCore
from kjbod_guard.directory_steps import GONE
from kjbod_guard.finding import Finding
from kjbod_guard.following import Following, security_to_controllers
from kjbod_guard.helper_link import Started
from kjbod_guard.journal import NAME as JOURNAL_NAME
from kjbod_guard.journal import Journal
from kjbod_guard.ladder import Step
from kjbod_guard.looking import Looking
from kjbod_guard.observing import Observed
from kjbod_guard.own_files import find_own_files, on_watched_disks
from kjbod_guard.picture import Picture, replica_rows
from kjbod_guard.processes import Processes
from kjbod_guard.recalling import Recalling
from kjbod_guard.reporting import Reporting
from kjbod_guard.showing import Showing
from kjbod_guard.situation import Site, Situation
from kjbod_guard.stray_listing import StrayListing
from kjbod_guard.voters_asking import VotersAsking
from kjbod_guard.watching import Watching
from kjbod_host.channel import ControllerChannel
from kjbod_host.condition import Condition
from kjbod_host.daemon import Daemon
from kjbod_host.directories.start_up import Remembering
from kjbod_host.ending import Ended, Ending, second_signal
from kjbod_host.files.file_process import FileProcess
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.settings import health_settings
from kjbod_host.health.sources.linux import linux_sources
from kjbod_host.health.state import Health
from kjbod_host.health.watched import DirectoryStatus
from kjbod_host.smart.asking import SmartAsking
from kjbod_host.smart.processes import Processes as SmartProcesses
from kjbod_host.storage.api import StorageAgent, StorageOptions, helper_ids, worker_ids
from kjbod_host.storage.registry import create

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ROLE: Final = "guard"
ROUND_MS: Final = 1_000
"""Time between two looks at everything. New verdicts and metadata cause a look at once."""
AUDIT_TIMEOUT_MS: Final = 500


class Guard:
    """A run of the guard. Implements :class:`~kjbod_host.daemon.Work`.

    Args:
        config: of the broker, and kjbod's own keys.
        source: real path of the broker's file.
        clock: the time.
        rng: source of random numbers.
        helper: in mode act: the started helper, or why none was started.
    """

    def __init__(
        self, config: Config, source: str, clock: Clock, rng: random.Random, helper: Started | str | None = None
    ) -> None:
        self._config = config
        self._source = source
        self._clock = clock
        self._rng = rng
        # Before the event loop starts, because logins may be in separate files.
        security = security_to_controllers(config)
        # Without security no controller is ever known, so the guard connects to none.
        self._to_controllers = NO_SECURITY if isinstance(security, str) else security
        self._asked = listener_to_ask(config)
        self._certificates = Certificates()
        self._certificates.add("controllers", self._to_controllers)
        if not isinstance(self._asked, str):
            self._certificates.add(f"listener {self._asked.name}", self._asked.security)
        self._helper = helper
        self._mode = "observe" if helper is None else "act"
        self._acts: ActMode | None = None
        self._core = GuardCore(Site.of(config), Journal(), "")
        self._log = get_logger()
        self._ending = Ending("guard", clock)
        self._daemon = Daemon(self._ending, clock)
        self._remembering = Remembering(config, self._log, ROLE)
        self._processes = Processes()
        self._links = FileProcess("kjbod-links")
        self._ended: asyncio.Future[Ended]
        self._begun = False
        """Whether the directories were read, and all parts are there."""
        self._before: Mapping[str, Uuid]
        """Directory ids by path, from the state directory of the previous process."""
        self._storage: StorageAgent
        self._watching: Watching
        self._monitor: HealthMonitor
        self._looking: Looking
        self._finding: Finding
        self._again: asyncio.TimerHandle | None = None
        self._change_reporter: ChangeReporter
        self._showing: Showing
        self._reporting = Reporting(config, self._mode, clock, self._log)
        self._askers = SmartProcesses(config.kjbod_smart_socket)
        self._own_files: dict[str, str] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._following = Following(
            config,
            clock,
            rng,
            security=security,
            cluster_id=lambda: self._watching.cluster_id,
            evicted=lambda: self._core.journal.evicted,
            on_leader=self._on_leader,
            is_close=self._is_close,
            review=self.review,
        )
        self._voters: VotersAsking | None = None
        if "controller" in config.process_roles:
            channel = ControllerChannel(
                client_id=f"kjbod-guard-{config.node_id}",
                clock=clock,
                spawn=self._daemon.spawn,
                connect=opened_with(self._to_controllers),
            )
            self._voters = VotersAsking(channel, clock, self._in_doubt)

    async def run(self) -> int:
        """Run the guard from start to end.

        Raises:
            KjbodError: the start was refused.
        """
        options = StorageOptions(clock=self._clock, role=ROLE, log=self._daemon.note)
        self._storage = create(self._config.kjbod_storage_agent, options)
        return await self._daemon.run(self, "asked to stop before the directories were read")

    async def open(self) -> None:
        """Start the storage workers, and lock the state directory.

        Raises:
            KjbodError: the start is refused.
        """
        await self._storage.start()
        self._before = (await self._remembering.load()).ids

    async def serve(self) -> Ended:
        """Watch until a signal comes.

        Raises:
            KjbodError: the guard cannot go on.
        """
        config = self._config
        self._ended = asyncio.get_running_loop().create_future()
        paths = rights.log_paths(config)
        memory = Recalling(config, paths, self._remembering, self._links, self._clock, self._log)
        self._watching = watching = Watching(
            config.node_id, paths, self._storage, self._clock, self._log, self._daemon.spawn, self._watched_anew, memory
        )
        watching.command = format_command(config.source, dynamic_controller=config.is_dynamic_controller)
        incarnation_id = random_agent_incarnation(self._rng)
        self._own_files = await find_own_files(config, self._remembering.real_path)
        await memory.load()
        read = await watching.begin()
        self._daemon.spawn(memory.run())
        await self._reporting.open(incarnation_id, watching, self._remembering.files, self._daemon.spawn)
        for line in on_watched_disks(self._own_files, watching.owned):
            self._log.warning("guard.state.on.watched.disk", reason=line)
        for line in moved(self._before, watching.owned.values()):
            self._log.warning("guard.directory.moved", reason=line)
        self._monitor = self._make_monitor(read)
        journal, acts = await self._read_journal(), self._helper is not None
        # Before the metadata: evicted partitions are followed from their first record.
        self._core = GuardCore(Site.of(config), journal if acts else Journal(), str(incarnation_id))
        self._join(watching, "" if acts else journal.left)
        await self._start_parts()
        self._begun, self._daemon.on_signal = True, self._signalled
        self.review()
        if self._helper is not None:
            self._daemon.spawn(self._open_acts(self._helper))
        systemd.notify_ready(self.condition().line)
        ended = await self._ended
        self._ending.limit(ended)
        self._reporting.account.ending(ended.reason)
        await self._reporting.audit.settle(AUDIT_TIMEOUT_MS)
        return ended

    async def leave(self, ended: Ended) -> Ended:
        """End the workers and the reports."""
        systemd.notify_stopping(ended.reason)
        await self._storage.close()
        await self._reporting.end(ended.exit_code, ended.reason)
        return ended

    async def close(self) -> None:
        """Close workers, helper and state directory."""
        await self._reporting.close()  # the writer is not a task of this daemon
        if self._acts is not None:
            self._acts.close()
        self._processes.close()
        self._links.close()
        self._remembering.close()
        await self._storage.close()

    # ------------------------------------------------------------------------------------------------------- the parts

    async def _read_journal(self) -> Journal:
        """Return the journal of the previous guard. A guard that observes also starts without a journal."""
        try:
            return await load_journal(self._config, self._remembering.files, self._clock)
        except NoJournalError as error:
            if self._helper is not None:
                raise
            self._log.warning("guard.journal.not.read", reason=str(error))
            return Journal()

    def _join(self, watching: Watching, left: str) -> None:
        """Make the parts that look, find, tell and show, and join them."""
        if left:
            path = Path(self._config.kjbod_state_dir) / JOURNAL_NAME
            left = f"a guard that acted has left {left}: only one that acts undoes that (kjbod.guard.mode=act)"
            left += f"; where it was put back by hand: move {path} away"
            self._log.warning("guard.left.behind", reason=left)
        config, clock, monitor = self._config, self._clock, self._monitor
        undecided = [line for name, line in config.unread.items() if name in DECISIVE]
        # without these keys the guard does not act, even in mode act
        left = "; ".join(one for one in (left, *undecided) if one)
        self._finding = Finding(
            config,
            self._source,
            self._processes,
            watching,
            monitor,
            self._following,
            found=self._found,
            review=self.review,
        )
        self._looking = Looking(
            config, watching, monitor, self._finding, self._following, self._voters, self._own_files, clock
        )
        self._change_reporter = ChangeReporter(self._reporting.account, watching, self._core, clock)
        self._showing = Showing(config, self._mode, watching, monitor, self._core, clock, left, self._certificates)

    async def _open_acts(self, helper: Started | str) -> None:
        """Open the parts of a guard that acts. The helper may wait for a disk; the guard already watches all disks."""
        acts = ActMode(
            self._config,
            self._clock,
            self._log,
            self._reporting.account,
            self._core,
            security=self._to_controllers,
            asked=self._asked,
            spawn=self._daemon.spawn,
            review=self.review,
            observed=lambda: self._following.observed,
            failed=self._unsettled,
            well=self._well,
            bound=lambda: self._finding.unbound is None,
            situation=self._situation,
        )
        # A directory below a kjbod mask cannot be read, and is to be unmasked.
        masked = [path for path in self._watching.paths if self._is_masked(path)]
        files, paths = self._remembering.files, tuple(dict.fromkeys((*self._watching.owned, *masked)))
        later = [path for path in self._watching.paths if path not in paths]
        await acts.open(files, helper, paths, later, tuple(self._own_files.values()))
        self._acts, self._core.acts = acts, True
        acts.on_leader(self._following.leader)
        if self._finding.unbound is None:
            await acts.hold(self._finding.holder)
        self._daemon.spawn(acts.watch_threads())
        self._daemon.spawn(acts.watch_answers())
        self.review()

    def _is_masked(self, path: str) -> bool:
        return self._core.standing(path).means is Step.MASK or self._watching.is_masked(path)

    def _make_monitor(self, read: Any) -> HealthMonitor:
        return HealthMonitor(
            read,
            settings=health_settings(self._config),
            clock=self._clock,
            on_verdict=self._on_verdict,
            kernel_sources=linux_sources(),
            log=self._daemon.note,
        )

    async def _start_parts(self) -> None:
        self._daemon.meter(lambda: worker_ids(self._storage), self._helper_ids)
        smart = SmartAsking(
            self._config.kjbod_smart_interval_ms, self._askers, self._clock, self._log, self._monitor.status
        )
        self._monitor.smart = smart.of
        self._daemon.spawn(smart.run())
        self._daemon.spawn(self._monitor.run())
        self._watching.tend(self._monitor)
        self._daemon.spawn(self._following.run())
        self._daemon.spawn(self._finding.run())
        if self._voters is not None:
            self._daemon.spawn(self._voters.run())
        self._daemon.spawn(self._rounds(systemd.watchdog_interval_ms()))
        self._daemon.spawn(look_again(self._certificates))
        self._daemon.spawn(self._reporting.sample(self._watching, self._monitor, self._following))
        self._daemon.spawn(self._remembering.keep_current(self._read_status, self._clock))
        listing = StrayListing(self._config.log_dirs, self._watching, self._followed)
        usage = self._daemon.usage.read
        answers = Answers(self.picture, usage, self._replicas, self._acting, self._let_go, listing.list_all)
        await self._daemon.open_control(self._config, answers.handlers(), self._remembering.files)
        await self._daemon.open_metrics(self._config, self.picture, _load_metrics, self._vitals, self._certificates)

    def _vitals(self) -> Vitals:
        """Return liveness and readiness. A guard is ready when it has found its broker and follows the metadata."""
        now = self.picture()
        return Vitals(self._monitor.standing_still(self._clock.monotonic_ms()), now.unbound or now.blind)

    def _read_status(self) -> list[DirectoryStatus]:
        """Knowledge of the monitor about the directories that were read."""
        return [one for one in self._monitor.status() if one.path not in self._watching.unread]

    def _helper_ids(self) -> tuple[int, ...]:
        reports = self._reporting.process_ids()
        helper = () if self._acts is None else self._acts.process_ids()
        files = (*self._remembering.files.process_ids(), *self._links.process_ids())
        beside = helper_ids(self._storage)
        return (*beside, *files, *reports, *self._processes.process_ids(), *helper, *self._askers.process_ids())

    def _followed(self) -> Observed | None:
        """Return the metadata; None: they are not followed, or the picture of them is incomplete."""
        following = self._following
        return following.observed if following.is_followed and following.observed.incomplete is None else None

    def _replicas(self, path: str) -> list[dict[str, Any]]:
        following = self._following
        return replica_rows(following.observed, self._watching.directory_id(path)) if following.is_followed else []

    def _acting(self) -> ActionRunner | None:
        return None if self._acts is None else self._acts.acting

    async def _let_go(self, path: str, rest: bool) -> dict[str, str | None]:
        """Close a released directory, and do not look at that directory for a while."""
        held = None if self._acts is None else await self._acts.let_go(path)
        mount = self._watching.mount(path)
        if held is None and rest:
            self._watching.rest(path)
        where = ("mount_point", "source", "fstype")
        return {"held": held} | {name: None if mount is None else getattr(mount, name) for name in where}

    # ----------------------------------------------------------------------------------------------- news from other
    # parts

    def _on_leader(self, leader: Leader | None) -> None:
        if self._voters is not None:
            self._voters.on_leader(leader)
        if self._acts is not None:
            self._acts.on_leader(leader)

    async def _found(self, holder: Holder | None) -> None:
        if self._acts is not None:
            await self._acts.hold(holder)

    def _in_doubt(self) -> bool:
        """Whether the broker may have to be fenced soon."""
        return bool(self._unsettled()) or self._core.broker.state in (State.CRIPPLED, State.FENCING)

    def _is_close(self) -> bool:
        """Whether each change of the metadata needs a look at once."""
        return self._begun and (self._in_doubt() or self._core.in_doubt(self._clock.monotonic_ms()))

    def _unsettled(self) -> list[str]:
        """Paths of the directories that have failed, and that the metadata do not show offline. A broker that works on
        one without ``meta.properties`` is not in doubt."""
        verdicts = self._verdicts
        failed = [status.path for status in self._monitor.status() if status.health.health is Health.FAILED]
        failed = [path for path in failed if path not in verdicts or not verdicts[path].is_about_identity]
        return [path for path in failed if self._core.standing(path).state not in GONE]

    def _well(self) -> list[str]:
        """Paths of the directories that are watched, and about which there is no doubt."""
        found = {status.path: status.health for status in self._monitor.status()}
        watched = (path for path, entry in self._watching.entries.items() if entry.reason is None)
        return [
            path
            for path in watched
            if path in found and found[path].health is not Health.FAILED and not found[path].in_trouble
        ]

    def _on_verdict(self, verdict: Verdict) -> None:
        before = self._verdicts.get(verdict.path)
        self._verdicts[verdict.path] = verdict
        self._reporting.account.verdict(verdict)
        if verdict.state is Health.FAILED and (before is None or before.state is not Health.FAILED):
            directory_id = self._watching.directory_id(verdict.path)
            held = self._following.observed.held() if self._following.is_followed else {}
            self._reporting.account.failure(verdict, None if directory_id is None else held.get(directory_id))
        if verdict.state in (Health.SUSPECT, Health.FAILED) and self._acts is not None:
            self._acts.in_doubt()
        if verdict.state is not Health.FAILED:
            self._change_reporter.forget(verdict.path)
        self.review()

    def _watched_anew(self, path: str) -> None:
        """Forget the last verdict of a path that has another disk, or a disk that is healthy again."""
        self._verdicts.pop(path, None)
        self._change_reporter.forget(path)
        self._reporting.account.of_cluster(self._watching.cluster_id)
        if self._acts is not None:
            self._acts.watched_anew(path)
        self._remembering.is_new()
        self.review()

    def review(self) -> None:
        """Look at everything, report changes since the last report, and begin the tasks that are due."""
        if (now := self._situation()) is None:
            return
        look = self._core.look(now)
        self._change_reporter.tell(now, self._finding, self._verdicts)
        for path, (case, decided) in look.decided.items():
            self._change_reporter.would(path, case, decided, now, self._verdicts)
        if self._acts is not None:
            self._acts.acting.take(look)
        if self._again is not None:
            self._again.cancel()
        later = asyncio.get_running_loop().call_later
        self._again = None if look.again_ms is None else later(max(1, look.again_ms) / 1000, self.review)

    def _situation(self) -> Situation | None:
        """Return the present situation; None before all parts are open, and while the guard ends."""
        if not self._begun or self._ended.done():
            return None
        return self._looking.situation(self._acts, self._verdicts)

    def condition(self) -> Condition:
        """The condition of the guard in one line."""
        return self._showing.condition(self._looking.situation(self._acts, self._verdicts), self._acts)

    def picture(self) -> Picture:
        """Return the state of the guard at this moment, for status, log-dirs and metrics."""
        now = self._looking.situation(self._acts, self._verdicts)
        return self._showing.picture(now, self._acts, self._finding.holder, self._verdicts, self._following.leader)

    # ------------------------------------------------------------------------------------------------ tasks and ending

    async def _rounds(self, watchdog_interval_ms: int | None) -> None:
        """Look at everything each :data:`ROUND_MS`; feed systemd's watchdog only while the monitor makes progress."""
        told = ""
        while True:
            self._following.note_complete()
            for path in self._finding.outdated:  # not in a review: the monitor may be in the middle of a round
                self._watching.disown(path)
            self.review()
            if (line := self.condition().line) != told:
                told = line
                systemd.notify_status(line)
            standing = self._monitor.standing_still(self._clock.monotonic_ms())
            if standing is None:
                systemd.notify_watchdog()
            else:
                self._log.error("guard.stands.still", reason=standing)
            await asyncio.sleep(min(ROUND_MS, watchdog_interval_ms or ROUND_MS) / 1000)

    def _signalled(self, number: int) -> None:
        """Handle SIGTERM or SIGINT: stop in good order; after a second signal stop at once."""
        if not self._ended.done():
            self._ended.set_result(Ended(0, signal.Signals(number).name, clean=True))
        elif self._ending.signals > 1:
            self._ending.limit(second_signal(number), 0)


def _load_metrics() -> "Callable[[Picture], Iterable[Metric]]":
    from kjbod_guard.metrics import metrics_of

    return metrics_of
