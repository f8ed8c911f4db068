"""The shell that shows the guard at one moment: its condition, and its picture for status, log-dirs and metrics."""

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.metadata.fetching import Leader
from kjbod.security.certificates import NO_CERTIFICATES, Certificates
from kjbod_agent.condition import Condition
from kjbod_agent.guard import broker_steps
from kjbod_agent.guard.condition import condition
from kjbod_agent.guard.deciding import Deciding, Seen
from kjbod_agent.guard.ladder import NOTHING, KafkaView
from kjbod_agent.guard.picture import Picture, rows
from kjbod_agent.guard.watching import Watching
from kjbod_agent.health.monitor import HealthMonitor
from kjbod_agent.health.state import Health


class Showing:
    """The guard, as others see it.

    Args:
        config: of the broker.
        mode: ``observe`` or ``act``.
        watching: the directories.
        monitor: judges their disks.
        deciding: what would be done.
        clock: the time.
        left: what a guard before this one has done, and this one, which observes, does not undo, in words.
        certificates: of the guard.
    """

    def __init__(
        self,
        config: Config,
        mode: str,
        watching: Watching,
        monitor: HealthMonitor,
        deciding: Deciding,
        clock: Clock,
        left: str = "",
        certificates: Certificates = NO_CERTIFICATES,
    ) -> None:
        self._config = config
        self._mode = mode
        self._watching = watching
        self._monitor = monitor
        self._deciding = deciding
        self._clock = clock
        self._left = left
        self._certificates = certificates

    def condition(self, seen: Seen) -> Condition:
        """The condition of the guard in one line."""
        healths = self._deciding.healths()
        failed = [path for path, health in healths.items() if health is Health.FAILED]
        views = {path: self._deciding.view(path, seen) for path in failed if seen.unbound is None}
        return condition(
            {path: str(healths.get(path, "unwatched")) for path in self._watching.paths},
            unnoticed=[path for path, view in views.items() if view is KafkaView.ONLINE],
            uncertain=[path for path, view in views.items() if view is KafkaView.UNKNOWN],
            unbound=seen.unbound,
            blind=seen.blind,
            offline=[path for path in healths if self._deciding.view(path, seen) is KafkaView.OFFLINE],
            lost=None if seen.acts is None else broker_steps.lost(seen.acts.acting.broker),
            helpless=[
                path for path in self._watching.helpless if self._deciding.view(path, seen) is not KafkaView.OFFLINE
            ],
            unwritten="" if seen.acts is None else seen.acts.acting.unwritten,
            left=self._left,
            certificates=self._certificates.reasons(self._clock.wall_ms()),
        )

    def picture(self, seen: Seen, leader: Leader | None) -> Picture:
        """Everything at this moment; ``leader`` is the active controller, as far as it is known."""
        statuses = {status.path: status for status in self._monitor.status()}
        found_steps = self._deciding.decide_all(seen)
        decided = dict.fromkeys(statuses, NOTHING) | {path: pair[1] for path, pair in found_steps.items()}
        acts, blind = seen.acts, seen.blind
        found = None if blind else seen.observed.registration
        return Picture(
            node_id=self._config.node_id,
            mode=self._mode,
            broker_state=None if acts is None else str(acts.acting.broker.state),
            broker_reason=None if acts is None else acts.acting.broker.reason,
            deeds=None if acts is None else acts.deeds(seen.holder),
            cluster_id=self._watching.cluster_id,
            condition=self.condition(seen),
            unbound=seen.unbound,
            pid=None if seen.holder is None else seen.holder.pid,
            blind=blind,
            controller=None if leader is None else f"{leader.host}:{leader.port}",
            metadata_offset=seen.observed.offset,
            metadata_version=seen.observed.metadata_version if seen.observed.complete else None,
            broker_epoch=None if found is None else found.epoch,
            incarnation_id=None if found is None else str(found.incarnation_id),
            fenced=None if found is None else found.fenced,
            directories=rows(
                self._watching,
                statuses,
                seen.verdicts,
                {path: self._deciding.view(path, seen) for path in self._watching.paths},
                decided,
                seen.observed if blind is None else None,
                log_dirs=self._config.log_dirs,
                standings={} if acts is None else acts.acting.directories,
                wall_of=lambda ms: self._clock.wall_ms() - (self._clock.monotonic_ms() - ms),
            ),
            disks=statuses,
            certificates=self._certificates,
        )
