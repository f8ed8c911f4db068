"""Decisions of a guard: what it knows of disks, broker and metadata, as facts for the ladder.

They are the same for a guard that observes and for one that acts: what is decided about a directory is what
:func:`.ladder.would` says of its case, and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.ids import Uuid
from kjbod.metadata.image import BrokerRegistration
from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard import broker_steps, directory_steps, slow_steps
from kjbod_agent.guard.acts import Acts
from kjbod_agent.guard.binding import Holder
from kjbod_agent.guard.broker_steps import claimed_at, is_claimed
from kjbod_agent.guard.budget import turn_ms
from kjbod_agent.guard.directory_steps import is_unrecorded
from kjbod_agent.guard.ladder import NOTHING, Case, KafkaView, Step, Would, before_start, is_cut_in_fence, would
from kjbod_agent.guard.majority import Quorum
from kjbod_agent.guard.observing import Observed
from kjbod_agent.guard.prospects import Now, Prospects, is_well, waits_for_host
from kjbod_agent.guard.surroundings import why_shared
from kjbod_agent.guard.watching import Watching, mounts_now
from kjbod_agent.health.evidence import Verdict
from kjbod_agent.health.monitor import HealthMonitor
from kjbod_agent.health.state import Cause, Health
from kjbod_agent.health.watched import DirectoryStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Knowledge of everything but the disks at one moment.

    Attributes:
        observed: the metadata, as far as they were read.
        blind: why they are not followed; None: they are.
        unbound: why there is no broker for which to watch; None: there is.
        looked: whether it is known which process holds the log directories, if any.
        holder: the broker's process.
        ended_pid: of a broker's process of which the kernel told that it has ended.
        acts: what a guard in mode act has; None in mode observe, and before that is open.
        verdicts: the last ones, by path.
        registered_ms: when the broker was seen to have registered anew; 0: not while we watched.
        quorum: of the controllers, as far as it is known; None: the node is no controller.
        is_kept: tells of a path whether its mount has changed for the guard, and not for the broker.
    """

    observed: Observed
    blind: str | None
    unbound: str | None
    looked: bool
    holder: Holder | None
    ended_pid: int | None
    acts: Acts | None
    verdicts: Mapping[str, Verdict]
    registered_ms: int = 0
    quorum: Quorum | None = None
    is_kept: Callable[[str], bool] = lambda path: False


class Deciding:
    """Decisions about the directories and the broker.

    Args:
        config: of the broker, and kjbod's own keys.
        watching: the directories.
        monitor: judges their disks.
        prospects: what may be done about them.
        clock: the time.
        own_files: where kjbod's own files are, by what they are.
    """

    def __init__(
        self,
        config: Config,
        watching: Watching,
        monitor: HealthMonitor,
        prospects: Prospects,
        clock: Clock,
        own_files: Mapping[str, str],
    ) -> None:
        self._config = config
        self._watching = watching
        self._monitor = monitor
        self._prospects = prospects
        self._clock = clock
        self._own_files = own_files

    def view(self, path: str, seen: Seen) -> KafkaView:
        """State of a directory as Kafka has it."""
        if seen.blind is not None:
            return KafkaView.UNKNOWN
        if path not in self._config.log_dirs:  # of the metadata alone: it is in no registration
            found = seen.observed.registration
            return KafkaView.UNKNOWN if found is None or self._is_fenced(found, seen) else KafkaView.ONLINE
        return seen.observed.view(self._known_id(path, seen))

    @staticmethod
    def _is_fenced(registration: BrokerRegistration, seen: Seen) -> bool:
        """Whether somebody else has fenced the broker: a fence that the guard has claimed says nothing about it."""
        return registration.fenced and (seen.acts is None or not is_claimed(seen.acts.acting.broker))

    def _known_id(self, path: str, seen: Seen) -> Uuid | None:
        """Id of a directory as it was read, or, where nobody can read it any more, as a guard before us had read it."""
        owned = self._watching.directory_id(path)
        if owned is not None or seen.acts is None:
            return owned
        before = seen.acts.acting.directory_id(path)
        return None if before is None else Uuid.parse(before)

    def healths(self) -> dict[str, Health]:
        """Verdicts on the directories that are watched, by path."""
        added = (path for path, entry in self._watching.entries.items() if entry.reason is None)
        return {path: self._monitor.health(path).health for path in added}

    def failed(self, verdicts: Mapping[str, Verdict]) -> list[str]:
        """Paths of the directories whose disks have failed, as far as anybody can tell: a broker that works on one
        without ``meta.properties`` is not in doubt."""
        failed = [path for path, health in self.healths().items() if health is Health.FAILED]
        return [path for path in failed if path not in verdicts or not verdicts[path].is_about_identity]

    def well(self) -> list[str]:
        """Paths of the directories that are watched, and about which there is no doubt."""
        found = {path: self._monitor.health(path) for path in self.healths()}
        return [path for path, one in found.items() if one.health is not Health.FAILED and not one.in_trouble]

    def now(self, seen: Seen) -> Now:
        """Circumstances of all directories at this moment."""
        failed = self.failed(seen.verdicts)
        healthy = [path for path in self.healths() if path not in failed]
        ids = [self._watching.directory_id(path) for path in healthy]
        now_ms, last_ms = self._clock.monotonic_ms(), None
        acts = seen.acts
        fenced = None if acts is None else acts.acting.journal.fenced
        found = seen.observed.registration
        if fenced is not None and (found is None or fenced[0] != found.epoch):
            last_ms = fenced[1]
        return Now(
            observed=seen.observed,
            healthy=frozenset(one for one in ids if one is not None),
            blind=seen.blind,
            no_hand=None if acts is None else acts.no_hand,
            last_fence_ms=last_ms,
            quorum=seen.quorum,
            claimed_at=None if acts is None else claimed_at(acts.acting.broker, seen.observed.fenced_at),
            now_ms=now_ms,
        )

    def decide_all(self, seen: Seen) -> dict[str, tuple[Case, Would]]:
        """Steps for the directories that have failed, or that Kafka has offline, by path."""
        offline = [path for path in self._watching.paths if self.view(path, seen) is KafkaView.OFFLINE]
        looked_at = {Health.FAILED, *([Health.SLOW] if self._prospects.site.demote else [])}
        if not offline and looked_at.isdisjoint(self.healths().values()):
            return {}
        statuses, table, now = self._monitor.status(), mounts_now(), self.now(seen)
        return {
            status.path: self._decide(status, statuses, table, now, seen)
            for status in statuses
            if status.health.health in looked_at or status.path in offline
        }

    def _decide(
        self, status: DirectoryStatus, statuses: Iterable[DirectoryStatus], table: Any, now: Now, seen: Seen
    ) -> tuple[Case, Would]:
        path, acts = status.path, seen.acts
        owned = self._watching.entries[path].owned
        log_dirs = [one for one in statuses if one.path in self._config.log_dirs]
        others = [one for one in log_dirs if one is not status and not one.device.shares(status.device)]
        shared = (
            "it is not known"
            if owned is None
            else why_shared(owned.loaded.real_path, table, self._watching.surveys(), self._own_files)
        )
        masked = acts is not None and acts.is_masked(path)
        there = [one for one in statuses if one is not status and one.device.device == status.device.device]
        beside = [one.path for one in there]
        if self._config.metadata_log_dir in beside:  # a broker does not outlive it
            shared = shared or "the metadata log lies on its file system as well"
        case = Case(
            health=status.health.health,
            # An error may come before the mount table is read: ENOENT below a mount that is gone.
            cause=Cause.MOUNT if self._watching.is_elsewhere(path) and not masked else status.health.cause,
            kafka=self.view(path, seen),
            unbound=seen.unbound,
            others_well=any(_serves(one, seen) for one in others),
            others_quick=any(one.health.health is Health.ONLINE for one in others),
            holds_metadata=path == self._config.metadata_log_dir,
            file_system=status.file_system,
            shared=shared or (None if acts is None else acts.no_cut(path)),
            well_beside=next((one.path for one in there if _serves(one, seen)), None),
        )
        if masked and case.cause is Cause.MOUNT:  # the mount is our own
            case = replace(case, cause=Cause.ERROR)
        directory_id = None if owned is None else owned.directory_id
        case = replace(
            case,
            outlived=self._why_over(status, seen) or self._why_kept(status, seen),
            unidentified=case.cause is not Cause.MOUNT and _is_unidentified(status, seen),
            others_answer=any(self._why_over(one, seen) is not None for one in others),
        )
        failed_ms = _failed_ms(path, seen)
        case = self._prospects.of(
            case,
            path,
            directory_id,
            now,
            failed_ms=failed_ms,
            unrecorded=acts is not None and is_unrecorded(acts.acting.standing(path)),
            beside=[one for one in map(self._watching.directory_id, beside) if one is not None],
        )
        return case, would(case)

    def _why_over(self, status: DirectoryStatus, seen: Seen) -> str | None:
        """Reason why the failure of a directory may be over, in words; None: nothing says so, or it has not failed."""
        failed_ms = _failed_ms(status.path, seen)
        if failed_ms is None:
            return None
        return self._watching.why_over(status.path, failed_ms, seen.registered_ms, status.freed_ms)

    @staticmethod
    def _why_kept(status: DirectoryStatus, seen: Seen) -> str | None:
        """Reason why what fails is not what the broker has, in words. Nobody knows whether that is well, so it is no
        disk that answers."""
        if _failed_ms(status.path, seen) is None or not seen.is_kept(status.path):
            return None
        return "its mount is another one here and not for the broker, which has mounts of its own"

    def _waits_for_host(self, found: Mapping[str, tuple[Case, Would]], seen: Seen) -> bool:
        disks = [one for one in self._monitor.status() if one.path in self._config.log_dirs]
        if any(_is_unidentified(one, seen) for one in disks):
            return False
        return waits_for_host((one.health for one in disks), (case for case, _ in found.values()))

    def known(
        self, found: Mapping[str, tuple[Case, Would]], seen: Seen
    ) -> tuple[Mapping[str, directory_steps.Facts], broker_steps.Facts]:
        """Facts of all directories and of the broker, for the ladder."""
        now = self.now(seen)
        directories = {path: self.directory(path, found, now, seen) for path in self._watching.paths}
        return directories, self.broker(found, now, seen)

    def directory(
        self, path: str, found: Mapping[str, tuple[Case, Would]], now: Now, seen: Seen
    ) -> directory_steps.Facts:
        """Facts of a directory, for the ladder."""
        assert seen.acts is not None
        acting, registration = seen.acts.acting, seen.observed.registration
        owned = self._watching.directory_id(path)
        known = self._known_id(path, seen)
        directory_id = None if known is None else str(known)
        decided = found[path][1] if path in found else NOTHING
        health = self.healths().get(path)
        online = () if registration is None else registration.log_dirs
        # One that nobody can read any more, of which a guard before this one saw that it went offline.
        evicts = decided.step is Step.EVICT or (owned is None and path not in found)
        return directory_steps.Facts(
            path=path,
            directory_id=directory_id,
            decided=decided,
            gate=before_start(found[path][0]) if path in found and seen.looked and seen.holder is None else NOTHING,
            view=self.view(path, seen),
            epoch=None if registration is None else registration.epoch,
            well=health is not None and health is not Health.FAILED and path not in self._watching.unread,
            present=seen.unbound is None,
            others_online=any(one != known for one in online),
            evict=self._prospects.evictions(path, known, now).before if evicts else {},
            restore=acting.evicting.restorable(directory_id) if now.blind is None else {},
            turn_ms=turn_ms(seen.observed, now.now_ms),
            slow=self._slow(path, directory_id, found, now, seen),
        )

    def _slow(
        self, path: str, directory_id: str | None, found: Mapping[str, tuple[Case, Would]], now: Now, seen: Seen
    ) -> slow_steps.Facts | None:
        """Facts of the leadership of a directory; None: nothing was moved off it, and nothing is to be."""
        assert seen.acts is not None
        acting, demotes = seen.acts.acting, self._prospects.site.demote
        if not demotes and not acting.journal.demoted:
            return None
        health, owned = self.healths().get(path), self._watching.directory_id(path)
        case, decided = found.get(path, (None, NOTHING))
        return slow_steps.Facts(
            path=path,
            directory_id=directory_id,
            slow=demotes and health is Health.SLOW,
            well=health is Health.ONLINE or (health is Health.SLOW and not demotes),
            free=now.blind is None and self.view(path, seen) is KafkaView.ONLINE,
            demote={}
            if case is None or decided.step is not Step.DEMOTE
            else self._prospects.demotions(case, owned, now),
            promote=acting.leading.promotable(directory_id),
        )

    def broker(self, found: Mapping[str, tuple[Case, Would]], now: Now, seen: Seen) -> broker_steps.Facts:
        """Facts of the broker, for the ladder."""
        acts = seen.acts
        assert acts is not None
        registration = seen.observed.registration
        released = acts.acting.released
        fences = {path: pair for path, pair in found.items() if pair[1].step is Step.FENCE and path not in released}
        stuck, proven = (None, False) if self._waits_for_host(found, seen) else acts.crippled(seen.holder)
        if registration is not None and not proven:
            fenced = self._is_fenced(registration, seen)
            stuck = broker_steps.silence(stuck, fenced, registration.in_controlled_shutdown)
        wanted = stuck or next((f"{path}: {pair[1].reason}" for path, pair in fences.items()), None)
        proven = proven or any(case.overdue is not None for case, _ in fences.values())
        asked = wanted is not None or acts.acting.broker.state is broker_steps.State.FENCING
        ids = sorted({*seen.observed.neighbours, self._config.node_id})
        holder = seen.holder if seen.unbound is None else None
        return broker_steps.Facts(
            pid=None if holder is None else holder.pid,
            ended=seen.ended_pid,
            epoch=None if registration is None else registration.epoch,
            fenced=None if registration is None or now.blind else registration.fenced,
            stopping=registration is not None and registration.in_controlled_shutdown,
            wanted=wanted,
            refusal=self._prospects.why_not_fence(now, proven=proven) if asked else None,
            cuts=tuple(path for path, (case, _) in fences.items() if is_cut_in_fence(case)),
            place=ids.index(self._config.node_id),
            claims=seen.quorum is not None,
            fenced_at=seen.observed.fenced_at,
            looked=seen.looked and (holder is None or acts.was_told(holder)),
        )


def _is_unidentified(status: DirectoryStatus, seen: Seen) -> bool:
    """Whether a directory has failed for its ``meta.properties`` alone, and its disk answers."""
    verdict = seen.verdicts.get(status.path)
    return verdict is not None and verdict.is_about_identity and status.blocked_ms is None


def _serves(status: DirectoryStatus, seen: Seen) -> bool:
    """Whether a disk is known to be well, whoever's the directory is by now."""
    return is_well(status.health) or _is_unidentified(status, seen)


def _failed_ms(path: str, seen: Seen) -> int | None:
    """Time when a directory failed; None: it has not."""
    verdict = seen.verdicts.get(path)
    return None if verdict is None or verdict.state is not Health.FAILED else verdict.at_ns // 1_000_000
