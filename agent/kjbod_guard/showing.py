"""The shell that shows the guard at one moment: its condition, and its picture for status, log-dirs and metrics."""

from collections.abc import Mapping

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.metadata.fetching import Leader
from kjbod.security.certificates import NO_CERTIFICATES, Certificates
from kjbod_guard import broker_steps, redundancy, suspects
from kjbod_guard.act_mode import ActMode
from kjbod_guard.binding import Holder
from kjbod_guard.condition import condition
from kjbod_guard.core import GuardCore
from kjbod_guard.ladder import NOTHING, KafkaView
from kjbod_guard.picture import Picture, rows
from kjbod_guard.situation import Situation
from kjbod_guard.watching import Watching
from kjbod_host.condition import Condition
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.state import Health


class Showing:
    """Maker of the condition and the picture of a guard.

    Args:
        config: of the broker.
        mode: ``observe`` or ``act``.
        watching: the directories.
        monitor: judges their disks.
        core: decides the steps.
        clock: the time.
        left: actions of an earlier guard that this guard, which observes, does not undo, in words.
        certificates: of the guard.
    """

    def __init__(
        self,
        config: Config,
        mode: str,
        watching: Watching,
        monitor: HealthMonitor,
        core: GuardCore,
        clock: Clock,
        left: str = "",
        certificates: Certificates = NO_CERTIFICATES,
    ) -> None:
        self._config = config
        self._mode = mode
        self._watching = watching
        self._monitor = monitor
        self._core = core
        self._clock = clock
        self._left = left
        self._certificates = certificates

    def condition(self, now: Situation, acts: ActMode | None) -> Condition:
        """Return the condition of the guard in one line."""
        core = self._core
        views = {path: core.view(path, now) for path in now.disks}
        failed = [path for path, disk in now.disks.items() if disk.health is Health.FAILED and now.unbound is None]
        answers = [path for path in failed if now.disks[path].over is not None]
        silent = [path for path in failed if path not in answers]
        return condition(
            {path: "unwatched" if disk.health is None else str(disk.health) for path, disk in now.disks.items()},
            unnoticed=[path for path in silent if views[path] is KafkaView.ONLINE],
            uncertain=[path for path in silent if views[path] is KafkaView.UNKNOWN],
            answering=answers,
            unbound=now.unbound,
            blind=now.blind,
            offline=[path for path, view in views.items() if view is KafkaView.OFFLINE and now.disks[path].health],
            lost=None if acts is None else broker_steps.lost(core.broker),
            helpless=[path for path in self._watching.helpless if views[path] is not KafkaView.OFFLINE],
            unwritten="" if acts is None else acts.acting.unwritten,
            unable=() if acts is None else acts.unable,
            redundancy=()
            if now.blind is not None
            else redundancy.problems(core.journal, now.observed, core.needs(now.observed)),
            left=self._left,
            certificates=self._certificates.reasons(self._clock.wall_ms()),
            unknown=() if now.blind is not None else now.observed.unknown,
            causes={path: disk.cause for path, disk in now.disks.items()},
            is_stuck=core.broker.state is broker_steps.State.CRIPPLED,
        )

    def picture(
        self,
        now: Situation,
        acts: ActMode | None,
        holder: Holder | None,
        verdicts: Mapping[str, Verdict],
        leader: Leader | None,
    ) -> Picture:
        """Return the picture of this moment; ``leader`` is the active controller, if known."""
        statuses = {status.path: status for status in self._monitor.status()}
        core, observed = self._core, now.observed
        decided = {**dict.fromkeys(statuses, (None, NOTHING)), **core.decide(now)}
        registration = None if now.blind else now.observed.registration
        return Picture(
            node_id=self._config.node_id,
            mode=self._mode,
            broker_state=None if acts is None else str(self._core.broker.state),
            broker_reason=None if acts is None else self._core.broker.reason,
            counters=None if acts is None else acts.counters(holder),
            needs=None if now.blind else core.needs(observed),
            refused=redundancy.refusals(core.refused, core.journal, observed, now.now_ms, now.wall_ms),
            suspects=sorted(suspects.current(observed.suspects, observed.neighbours)),
            cluster_id=self._watching.cluster_id,
            condition=self.condition(now, acts),
            unbound=now.unbound,
            pid=now.pid,
            blind=now.blind,
            unknown=observed.unknown,
            incomplete=observed.incomplete,
            unknown_records=observed.newer.total,
            controller=None if leader is None else f"{leader.host}:{leader.port}",
            metadata_offset=now.observed.offset,
            metadata_version=now.observed.metadata_version if now.observed.complete else None,
            broker_epoch=None if registration is None else registration.epoch,
            incarnation_id=None if registration is None else str(registration.incarnation_id),
            fenced=None if registration is None else registration.fenced,
            directories=rows(
                self._watching,
                statuses,
                verdicts,
                {path: self._core.view(path, now) for path in self._watching.paths},
                decided,
                now.observed if now.blind is None else None,
                log_dirs=self._config.log_dirs,
                standings={} if acts is None else self._core.directories,
                wall_of=lambda ms: self._clock.wall_ms() - (self._clock.monotonic_ms() - ms),
            ),
            disks=statuses,
            certificates=self._certificates,
        )
