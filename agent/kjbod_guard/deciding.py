"""Decisions of a guard about its directories: makes a case for the escalation from each situation. Pure.

A guard that observes and a guard that acts decide alike: :func:`.ladder.would` gives the step for the case of a
directory. This module keeps three facts that need memory: how long no disk has been healthy, how long the metadata have
shown a directory online, and whether a partition had too few copies since the failure.
"""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard import majority, suspecting, suspects
from kjbod_guard.budget import (
    ANSWERED_MS,
    EVICT_WITHIN_MS,
    FRESH_MS,
    NO_EVICTIONS,
    Evictions,
    FenceCase,
    demotions,
    evictions,
    why_behind,
    why_no_eviction_follows,
    why_not_fence,
)
from kjbod_guard.copies import Need, need
from kjbod_guard.directory_steps import Standing
from kjbod_guard.ladder import CUT_FILE_SYSTEMS, UNEVICTED, Case, KafkaView, Step, Would, would
from kjbod_guard.observing import Key
from kjbod_guard.retries import Retries, due
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_guard.suspects import Suspects
from kjbod_host.health.state import Cause, Health

CUT_KEY = "kjbod.guard.cut.max.brokers"
METADATA_BESIDE = "the metadata log lies on its file system as well"
_ANSWERS_ERRORS = frozenset({Cause.ERROR, Cause.REPEATED_ERRORS, Cause.MOUNT})


class Known(Struct, frozen=True):
    """State of the guard that its decisions depend on.

    Attributes:
        standings: of the directories, by path.
        ids: ids of directories that cannot be read now, from an earlier guard that read them, by path.
        record: this guard's own record of suspected directories.
        retries: partitions that the controllers refused.
        last_fence: epoch and monotonic time of the last fence.
    """

    standings: Mapping[str, Standing]
    ids: Mapping[str, str | None]
    record: suspecting.Standing
    retries: Retries
    last_fence: tuple[int, int] | None = None


class Deciding(Struct):
    """Decisions about the directories, with the times and counts that need memory."""

    site: Site
    _alone_ms: dict[str, int] = field(default_factory=dict)
    """Start of the time in which no other disk was healthy or answered again, by path."""
    _online_ms: dict[str, int] = field(default_factory=dict)
    """Start of the time in which the committed metadata showed a directory online without a break, by path."""
    _short: set[str] = field(default_factory=set)
    """Failed paths with a partition that had fewer other copies than ``min.insync.replicas`` since the failure."""

    # ---- what is known of one directory

    def view(self, path: str, known: Known, now: Situation) -> KafkaView:
        """Return the state of a directory as Kafka has it."""
        if now.unsure is not None:
            return KafkaView.UNKNOWN
        if path not in self.site.log_dirs:  # a directory for the metadata log alone is in no registration
            found = now.observed.registration
            return KafkaView.UNKNOWN if found is None or found.fenced else KafkaView.ONLINE
        return now.observed.view(self.directory_id(path, known, now))

    def directory_id(self, path: str, known: Known, now: Situation) -> Uuid | None:
        """Return the id of a directory as it was read; if it cannot be read, as an earlier guard read it."""
        disk = now.disks.get(path)
        if disk is not None and disk.directory_id is not None:
            return disk.directory_id
        before = known.ids.get(path)
        return None if before is None else Uuid.parse(before)

    def lost_with(self, path: str, known: Known, now: Situation) -> frozenset[Uuid]:
        """Return the ids of the directories that are lost with one directory: all on its file system if that can be
        shut down, else only this directory."""
        disk = now.disks[path]
        paths = [path]
        if disk.file_system in CUT_FILE_SYSTEMS and disk.shared is None:
            paths += disk.beside
        found = (self.directory_id(one, known, now) for one in paths)
        return frozenset(one for one in found if one is not None)

    def need(self, path: str, known: Known, now: Situation) -> Need:
        """Return which partitions need the replicas that are lost with a directory."""
        return need(now.observed, self.lost_with(path, known, now), self.site.min_isr)

    def why_not_shut_down(self, path: str, known: Known, now: Situation) -> str | None:
        """Return why the file system of a directory may not be shut down now, in words; None: the committed metadata,
        which a controller has just confirmed, allow it."""
        return self.unheard(now) or self.need(path, known, now).why_not_shut_down

    def why_not_cut(self, path: str, known: Known, now: Situation) -> str | None:
        """Return why the file system of a directory may not be shut down under a broker that runs; None: it may."""
        return self.why_not_shut_down(path, known, now) or (None if self._evicts(path, known, now) else UNEVICTED)

    @staticmethod
    def unheard(now: Situation) -> str | None:
        """Return why no act that needs the controllers begins now, in words; None: a controller has just answered. A
        request that waits for a controller would be carried out later, when the disk may answer again."""
        if now.observed.incomplete is not None:
            return now.observed.incomplete
        if now.blind is not None or now.answered_ms is None or now.now_ms - now.answered_ms > FRESH_MS:
            return f"no controller has answered for {FRESH_MS / 1000:g} s"
        return None

    # ---- this guard's record

    def shown(self, now: Situation) -> Suspects | None:
        """Return this guard's record as the metadata show it."""
        return now.observed.suspects.get(self.site.node_id)

    def left_behind(self, known: Known, now: Situation) -> frozenset[Uuid]:
        """Return the directories in the record of an earlier guard, which may have reported them. The record counts
        only for the epoch of this registration."""
        registration, shown = now.observed.registration, self.shown(now)
        if registration is None or shown is None or shown.epoch != registration.epoch:
            return frozenset()
        return frozenset() if suspecting.has_written(known.record, shown) else shown.directories

    def offset(self, known: Known, now: Situation, directories: frozenset[Uuid] | None) -> int | None:
        """Return the offset of this guard's record; None: it has none that counts for these directories (None: for the
        broker)."""
        registration = now.observed.registration
        if registration is None or now.unsure is not None:
            return None
        shown, epoch = self.shown(now), registration.epoch
        return suspecting.offset_of(known.record, shown, epoch, directories, now.now_ms)

    def why_behind(self, path: str, known: Known, now: Situation) -> str:
        """Return why other brokers come first, in words; empty: none does."""
        offset = self.offset(known, now, self.lost_with(path, known, now))
        return why_behind(now.observed, offset, self.site.cut_brokers_max, CUT_KEY, now.now_ms, fences=False)

    @staticmethod
    def is_after(offset: int | None, now: Situation) -> bool:
        """Whether the record of another guard is before this guard's record. Then only the other guard may evict,
        because each guard sends whole replica lists.

        With ``kjbod.guard.cut.max.brokers=1`` no step that leads to an eviction begins then. A missing or old record
        would be written again, and be last.
        """
        return bool(suspects.ahead(now.observed.suspects, now.observed.neighbours, offset, now.now_ms, losses=False))

    # ---- lists

    def evictions(self, path: str, known: Known, now: Situation) -> Evictions:
        """Return the partitions of a directory that the broker may leave, and whose leaders still wait for the
        broker."""
        standing, directory_id = known.standings.get(path, Standing()), self.directory_id(path, known, now)
        offline_ms = standing.offline_ms
        waits = offline_ms is not None and now.now_ms - offline_ms < EVICT_WITHIN_MS
        if directory_id is None or not waits or not self.site.evict or self.is_open(path, known, now):
            return NO_EVICTIONS
        return evictions(now.observed, directory_id, self.site.min_isr)

    def _evicts(self, path: str, known: Known, now: Situation) -> bool:
        """Whether the broker could leave all partitions that are lost with a directory, apart from missing copies."""
        if not self.site.evict or not now.may_evict:
            return False
        lost = self.lost_with(path, known, now)
        if self.is_after(self.offset(known, now, lost), now):
            return False
        there = (one for one in now.observed.partitions.values() if one.directory in lost)
        return not any(why_no_eviction_follows(now.observed, one) for one in there)

    def demotions(
        self, path: str, known: Known, now: Situation
    ) -> Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the present and the new replica lists in a slow directory that other brokers may lead."""
        disk, directory_id = now.disks[path], self.directory_id(path, known, now)
        if not self.site.demote or disk.health is not Health.SLOW or directory_id is None or now.unsure is not None:
            return {}
        others_quick = any(one.health is Health.ONLINE for one in self._others(disk, now))
        return demotions(now.observed, directory_id) if others_quick else {}

    @staticmethod
    def is_open(path: str, known: Known, now: Situation) -> bool:
        """Whether the broker may still use open files in a directory: the directory was reported, but its file system
        was not shut down. If the disk answers errors, each open file answers an error too."""
        disk = now.disks.get(path)
        if disk is not None and all(one.errors for one in (disk, *_mixed_up_with(disk, known, now))):
            return False
        there = [known.standings.get(one, Standing()) for one in (path, *(() if disk is None else disk.beside))]
        own = there[0]
        reported = own.plan in (Step.CUT, Step.REPORT) or any(one.plan is Step.CUT for one in there[1:])
        return reported and not any(one.means is not None for one in there)

    # ---- the fence

    def why_not_fence(self, known: Known, now: Situation) -> str | None:
        """Return why the broker may not be fenced now, in words; None: it may."""
        if now.no_helper is not None:
            return now.no_helper
        if now.unsure is not None:
            return now.observed.incomplete if now.blind is None else f"the metadata are not followed: {now.blind}"
        found, last_ms = now.observed.registration, None
        if known.last_fence is not None and (found is None or known.last_fence[0] != found.epoch):
            last_ms = known.last_fence[1]
        quorum = now.quorum
        case = FenceCase(
            static_min_isr=self.site.min_isr,
            # A fenced controller is a lost voter: only one at a time, regardless of the limit for brokers.
            brokers_max=self.site.fence_brokers_max if quorum is None else min(1, self.site.fence_brokers_max),
            offset=self.offset(known, now, None),
            last_fence_ms=last_ms,
            needed=None if quorum is None else majority.why_needed(quorum, self.site.node_id, now.now_ms),
            answered_ms=now.answered_ms,
            now_ms=now.now_ms,
        )
        return why_not_fence(now.observed, case)

    def waits_for_host(self, found: Mapping[str, tuple[Case, Would]], now: Situation) -> bool:
        """Whether no disk of the broker is known to be healthy, but not yet for long enough (``lasted``). The cause may
        be the adapter. A stuck thread then waits for the adapter, and proves nothing about the broker."""
        disks = [now.disks[path] for path in self.site.log_dirs if path in now.disks]
        if any(one.serves for one in disks) or not any(one.health is Health.FAILED for one in disks):
            return False
        return not any(case.lasted for case, _ in found.values())

    # ---- all of them

    def decide_all(self, known: Known, now: Situation) -> dict[str, tuple[Case, Would]]:
        """Return the steps for the directories that have failed, or that Kafka has offline, by path."""
        looked_at = {Health.FAILED, *([Health.SLOW] if self.site.demote else [])}
        found = {}
        for path, disk in now.disks.items():
            if disk.health is not Health.FAILED:
                self._forget(path)
            if disk.health is None:
                continue
            if disk.health in looked_at or self.view(path, known, now) is KafkaView.OFFLINE:
                case = self.case(path, known, now)
                found[path] = (case, would(case))
        return found

    def _forget(self, path: str) -> None:
        self._alone_ms.pop(path, None)
        self._online_ms.pop(path, None)
        self._short.discard(path)

    def case(self, path: str, known: Known, now: Situation) -> Case:
        """Return the case of a directory."""
        disk, standing = now.disks[path], known.standings.get(path, Standing())
        assert disk.health is not None
        others = self._others(disk, now)
        masked = standing.means is Step.MASK
        there = [now.disks[one] for one in sorted(disk.beside) if one in now.disks]
        shared = disk.shared
        if self.site.metadata_log_dir in disk.beside:  # a broker ends without its metadata log
            shared = shared or METADATA_BESIDE
        cause = disk.cause
        if disk.elsewhere:  # ENOENT below a mount that is gone may come before the mount table is read
            cause = Cause.ERROR if masked else Cause.MOUNT  # a mask is our own mount
        view = self.view(path, known, now)
        case = Case(
            health=disk.health,
            cause=cause,
            kafka=view,
            unbound=now.unbound,
            others_well=any(one.serves for one in others),
            others_answer=any(one.over is not None for one in others),
            holds_metadata=path == self.site.metadata_log_dir,
            file_system=disk.file_system,
            shared=shared,
            well_beside=next((one.path for one in there if one.serves), None),
            outlived=disk.over or disk.kept,
            unidentified=cause is not Cause.MOUNT and disk.unidentified,
            fence_first=self.site.fence_first,
            evicts=self._evicts(path, known, now),
            incomplete=now.observed.incomplete,
        )
        return self._with_prospects(case, path, known, now)

    def _with_prospects(self, case: Case, path: str, known: Known, now: Situation) -> Case:
        """Return the case of a directory with the actions that are possible now, and the reasons against others."""
        answers = case.others_well or case.others_answer or case.outlived is not None
        alone = case.health is Health.FAILED and not answers
        alone_ms = self._alone_ms.setdefault(path, now.now_ms) if alone else now.now_ms
        if not alone:
            self._alone_ms.pop(path, None)
        found = self.evictions(path, known, now)
        evictable = due(known.retries, "evict", found.before, now.now_ms)
        demotable = due(known.retries, "demote", self.demotions(path, known, now), now.now_ms)
        case = replace(case, evictable=len(evictable), not_evicted=found.refusal, demotable=len(demotable))
        if case.kafka is not KafkaView.ONLINE:
            self._online_ms.pop(path, None)
        if case.health is not Health.FAILED:
            return case
        needed = self.need(path, known, now)
        if needed.short or needed.sole:
            self._short.add(path)
        registration = now.observed.registration
        lost = self.lost_with(path, known, now)
        return replace(
            case,
            patience=self._patience(path, now),
            helpless=now.no_helper,
            unheard=self.unheard(now),
            needed=needed.refusal,
            in_sync=needed.why_not_shut_down,
            last=registration is not None and lost.issuperset(registration.log_dirs),
            behind=self.why_behind(path, known, now),
            overdue=self._overdue(case, path, known, now) if case.kafka is KafkaView.ONLINE else None,
            lasted=alone and now.now_ms - alone_ms >= self.site.host_fault_timeout_ms,
            not_fenced=self.why_not_fence(known, now),
            undecided=now.quorum is not None and majority.is_undecided(now.quorum, now.now_ms),
        )

    def _patience(self, path: str, now: Situation) -> str | None:
        """Return why it is too early for an irreversible action, in words; None: it is not too early."""
        disk = now.disks[path]
        wait_ms = self._cut_after_ms(path, disk)
        stood_ms = now.now_ms - disk.bad_ms
        if stood_ms >= wait_ms:
            return None
        why = f", {disk.medium}" if disk.medium else ""
        why += ", doubled: too few other copies in sync" if path in self._short else ""
        return f"nothing that cannot be undone before {wait_ms / 1000:g} s (kjbod.guard.cut.after.ms{why})"

    def _cut_after_ms(self, path: str, disk: Disk) -> int:
        return disk.cut_after_ms * (2 if path in self._short else 1)

    def wait_ms(self, path: str, now: Situation) -> int | None:
        """Return the time until irreversible actions on a directory may begin; None: they may now, or it has not
        failed."""
        disk = now.disks[path]
        if disk.health is not Health.FAILED:
            return None
        wait_ms = disk.bad_ms + self._cut_after_ms(path, disk) - now.now_ms
        return wait_ms if wait_ms > 0 else None

    def _overdue(self, case: Case, path: str, known: Known, now: Situation) -> str | None:
        """Return why Kafka is late in taking a directory offline, in words; None: it is not late. The deadline counts
        from Kafka's first chance to notice, and only while the metadata are known to show the directory online."""
        fresh = now.answered_ms is not None and now.now_ms - now.answered_ms <= ANSWERED_MS
        if not fresh:
            self._online_ms.pop(path, None)
            return None
        since_ms = self._online_ms.setdefault(path, now.now_ms)
        disk, acted_ms = now.disks[path], known.standings.get(path, Standing()).acted_ms
        could_ms = acted_ms if acted_ms is not None else disk.failed_ms if case.cause in _ANSWERS_ERRORS else None
        if could_ms is None or now.now_ms - max(could_ms, since_ms) < self.site.failure_timeout_ms:
            return None
        directory_id = self.directory_id(path, known, now)
        led = sum(1 for one in now.observed.partitions.values() if one.leads and one.directory == directory_id)
        if not led:
            return None
        timeout = f"log.dir.failure.timeout.ms={self.site.failure_timeout_ms}"
        return f"{led} partitions are led there, and the metadata still have it online after {timeout}"

    def _others(self, disk: Disk, now: Situation) -> list[Disk]:
        """Return the disks of other log directories that share no device with this disk."""
        return [
            now.disks[path]
            for path in self.site.log_dirs
            if path in now.disks and path != disk.path and path not in disk.shares
        ]


def _mixed_up_with(disk: Disk, known: Known, now: Situation) -> list[Disk]:
    """Return the unreadable directories that may be confused with this directory. The record of an earlier guard, whose
    state is lost, has their ids but not their paths (:meth:`.GuardCore._take_over`)."""
    unread = [one for one in now.disks.values() if one.directory_id is None]
    reported = [one for one in unread if known.standings.get(one.path, Standing()).plan is Step.REPORT]
    return reported if disk in reported else []
