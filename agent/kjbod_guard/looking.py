"""The shell that makes a :class:`.situation.Situation` of disks, broker and metadata. Decides nothing."""

from collections.abc import Mapping

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod_guard.act_mode import ActMode
from kjbod_guard.finding import Finding
from kjbod_guard.following import Following
from kjbod_guard.situation import Disk, Situation
from kjbod_guard.surroundings import why_shared
from kjbod_guard.voters_asking import VotersAsking
from kjbod_guard.watching import Watching, mounts_now
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.medium import Medium, cut_after, medium_of
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.mounts import Mount
from kjbod_host.health.state import Cause, Health
from kjbod_host.health.watched import DirectoryStatus


class Looking:
    """Maker of situations.

    Args:
        config: of the broker, and kjbod's own keys.
        watching: the directories.
        monitor: judges their disks.
        finding: the broker's process.
        following: the metadata.
        voters: the quorum; None: the node is no controller.
        own_files: paths of kjbod's own files, by purpose.
        clock: the time.
    """

    def __init__(
        self,
        config: Config,
        watching: Watching,
        monitor: HealthMonitor,
        finding: Finding,
        following: Following,
        voters: VotersAsking | None,
        own_files: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._config = config
        self._watching = watching
        self._monitor = monitor
        self._finding = finding
        self._following = following
        self._voters = voters
        self._own_files = own_files
        self._clock = clock
        self._media: dict[str, Medium] = {}

    def situation(self, acts: ActMode | None, verdicts: Mapping[str, Verdict]) -> Situation:
        """Return the present situation.

        Args:
            acts: parts of a guard in mode act; None in mode observe, and before they are open.
            verdicts: the last verdicts, by path.
        """
        finding, following = self._finding, self._following
        holder = finding.holder
        found = None if acts is None else acts.found(holder)
        return Situation(
            now_ms=self._clock.monotonic_ms(),
            wall_ms=self._clock.wall_ms(),
            disks=self._disks(acts, verdicts),
            observed=following.observed,
            blind=following.blind,
            answered_ms=following.answered_ms,
            unbound=finding.unbound,
            looked=finding.looked,
            pid=None if holder is None else holder.pid,
            told=acts is None or holder is None or acts.was_told(holder),
            ended_pid=finding.ended_pid,
            may_evict=acts is None or (acts.rights.may_alter and not acts.acting.unwritten),
            no_helper=None if acts is None else acts.no_helper,
            quorum=None if self._voters is None else self._voters.quorum,
            stuck=None if found is None else found.stuck,
            waits=found is not None and found.waits,
            silent=None if found is None else found.silent,
        )

    def _disks(self, acts: ActMode | None, verdicts: Mapping[str, Verdict]) -> dict[str, Disk]:
        statuses = {status.path: status for status in self._monitor.status()}
        failing = any(status.health.health is Health.FAILED for status in statuses.values())
        table = mounts_now() if failing else ()  # other mounts of a file system matter only then
        return {path: self._disk(path, statuses, verdicts.get(path), table, acts) for path in self._watching.paths}

    def _disk(
        self,
        path: str,
        statuses: Mapping[str, DirectoryStatus],
        verdict: Verdict | None,
        table: tuple[Mount, ...],
        acts: ActMode | None,
    ) -> Disk:
        watching, status = self._watching, statuses.get(path)
        directory_id = watching.directory_id(path)
        entry = watching.entries[path]
        if status is None or entry.reason is not None:
            masked = watching.is_masked(path)
            return Disk(path=path, directory_id=directory_id, errors=watching.errs(path), masked=masked)
        health, now_ms = status.health, self._clock.monotonic_ms()
        failed = verdict is not None and health.health is Health.FAILED and verdict.state is Health.FAILED
        failed_ms = verdict.at_ns // 1_000_000 if verdict is not None and failed else None
        others = [one for other, one in statuses.items() if other != path]
        cut_after_ms, medium = self._cut_after(status)
        return Disk(
            path=path,
            directory_id=directory_id,
            health=health.health,
            cause=health.cause,
            in_trouble=health.in_trouble,
            failed_ms=failed_ms,
            bad_ms=now_ms if failed_ms is None else bad_since_ms(status, failed_ms, now_ms),
            over=self._why_over(status, failed_ms),
            kept=self._why_kept(path) if failed else None,
            unidentified=failed and verdict is not None and verdict.is_about_identity and status.blocked_ms is None,
            unread=path in watching.unread,
            errors=failed and verdict is not None and verdict.evidence.errno == "EIO" and status.blocked_ms is None,
            elsewhere=failed and watching.is_elsewhere(path),
            file_system=status.file_system,
            shared=self._why_shared(path, table, acts) if failed else None,
            beside=frozenset(one.path for one in others if one.device.device == status.device.device),
            shares=frozenset(one.path for one in others if one.device.shares(status.device)),
            cut_after_ms=cut_after_ms,
            medium=medium,
        )

    def _cut_after(self, status: DirectoryStatus) -> tuple[int, str]:
        """Return the time before irreversible actions, and the medium that decides it; no medium if the time is
        configured."""
        configured = self._config.kjbod_guard_cut_after_ms
        key = " ".join((*status.device.names, status.device.device))
        if key not in self._media:
            self._media[key] = medium_of(status.device)
        medium = self._media[key]
        wait_ms = cut_after(configured, self._config.log_dir_failure_timeout_ms, medium)
        return wait_ms, "" if configured >= 0 else str(medium)

    def _why_over(self, status: DirectoryStatus, failed_ms: int | None) -> str | None:
        """Return why the failure of a directory may be over, in words; None: nothing shows that, or it has not
        failed."""
        if failed_ms is None:
            return None
        return self._watching.why_over(status.path, failed_ms, self._following.registered_ms, status.freed_ms)

    def _why_kept(self, path: str) -> str | None:
        """Return why the failed mount is not the broker's mount, in words; None: it is. The state of the broker's mount
        is not known, so its disk does not count as one that answers."""
        if not self._finding.is_kept(path):
            return None
        return "its mount is another one here and not for the broker, which has mounts of its own"

    def _why_shared(self, path: str, table: tuple[Mount, ...], acts: ActMode | None) -> str | None:
        owned = self._watching.entries[path].owned
        if owned is None:
            return "it is not known"
        shared = why_shared(owned.loaded.real_path, table, self._watching.surveys(), self._own_files)
        return shared or (None if acts is None else acts.no_cut(path))


def bad_since_ms(status: DirectoryStatus, failed_ms: int, now_ms: int) -> int:
    """Return the monotonic time since when a failed directory stands still, or answers nothing but errors. A completed
    request of the device restarts that time.

    Args:
        status: the monitor's knowledge of the directory.
        failed_ms: monotonic time of the verdict.
        now_ms: monotonic time.
    """
    if status.blocked_ms is not None:
        counted = status.health.cause is Cause.HUNG and status.device.reason is None
        return now_ms - (status.silent_ms if counted else status.blocked_ms)
    trouble_ms = status.health.trouble_ms
    return failed_ms if trouble_ms is None else min(failed_ms, trouble_ms)
