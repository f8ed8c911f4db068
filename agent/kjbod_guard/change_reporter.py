"""The shell that reports changes: compares the situation with the last report, and reports each change once."""

from collections.abc import Mapping
from typing import Final

from kjbod.clock import Clock
from kjbod.ids import Uuid
from kjbod_guard import redundancy, words
from kjbod_guard.account import Account
from kjbod_guard.core import GuardCore
from kjbod_guard.finding import Finding
from kjbod_guard.following import BEING_READ, NO_ANSWER
from kjbod_guard.ladder import Case, KafkaView, Step, Would
from kjbod_guard.observing import Held
from kjbod_guard.situation import Situation
from kjbod_guard.watching import Watching
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.state import Health

Verdicts = Mapping[str, Verdict]

LOOK_EVERY_MS: Final = 1_000
"""Least time between two counts of the partitions that lack replicas. To go through 4,000 partitions takes 14 ms. While
a disk fails, the guard looks at each change of the metadata before it acts."""


class ChangeReporter:
    """Memory of the last reports.

    Args:
        account: log, health report and audit.
        watching: the directories.
        core: knows Kafka's view of the directories.
        clock: the time.
    """

    def __init__(self, account: Account, watching: Watching, core: GuardCore, clock: Clock) -> None:
        self._account = account
        self._watching = watching
        self._core = core
        self._clock = clock
        self._bound: tuple[str | None, int | None] | None = None
        self._blind: str | None = ""
        self._unknown: tuple[str, ...] = ()
        self._registration: tuple[int, bool, Uuid] | None = None
        self._views: dict[str, KafkaView] = {}
        self._would: dict[str, tuple[Step, KafkaView, str]] = {}
        self._lacks = redundancy.NOTHING_REPORTED
        self._counted_ms: int | None = None

    def forget(self, path: str) -> None:
        """Forget the last step of a directory that has not failed, or whose path has another disk."""
        self._would.pop(path, None)

    def tell(self, now: Situation, finding: Finding, verdicts: Verdicts) -> None:
        """Report changes of the broker and the metadata."""
        self._tell_bound(now, finding)
        self._tell_blind(now)
        self._tell_unknown(now)
        self._tell_registration(now)
        self._tell_views(now, verdicts)
        self._tell_lacks(now)

    def _tell_bound(self, now: Situation, finding: Finding) -> None:
        found = (now.unbound, now.pid if now.unbound is None else None)
        if found != self._bound and finding.looked:
            self._bound = found
            self._account.bound(*found)

    def _tell_blind(self, now: Situation) -> None:
        reason = now.blind
        if reason != self._blind and reason not in (NO_ANSWER, BEING_READ):
            # A new reason for the same problem is not reported.
            if reason is None or not self._blind:
                self._account.followed(reason, now.observed.offset)
            self._blind = reason

    def _tell_unknown(self, now: Situation) -> None:
        lines = now.observed.unknown
        if now.blind is None and lines != self._unknown:
            self._unknown = lines
            self._account.unknown(lines)

    def _tell_registration(self, now: Situation) -> None:
        found = now.observed.registration if now.blind is None else None
        if found is None:
            return
        registration = (found.epoch, found.fenced, found.incarnation_id)
        if registration != self._registration:
            self._registration = registration
            self._account.registration(found.epoch, found.fenced, str(found.incarnation_id))

    def _tell_views(self, now: Situation, verdicts: Verdicts) -> None:
        for path, owned in self._watching.owned.items():
            view = self._core.view(path, now)
            before = self._views.get(path)
            if view is KafkaView.UNKNOWN or view is before:
                continue
            self._views[path] = view
            if before is None and view is KafkaView.ONLINE:
                continue  # as it should be
            verdict = verdicts.get(path)
            failed = verdict is not None and verdict.state is Health.FAILED
            after_ms = (self._clock.monotonic_ns() - verdict.at_ns) // 1_000_000 if verdict and failed else None
            self._account.kafka_view(path, str(owned.directory_id), view, after_ms=after_ms)

    def _tell_lacks(self, now: Situation) -> None:
        """Report partitions that lack replicas, when their number has changed."""
        counted_ms, now_ms = self._counted_ms, now.now_ms
        if now.blind is not None or (counted_ms is not None and now_ms - counted_ms < LOOK_EVERY_MS):
            return
        self._counted_ms = now_ms
        found = self._core.needs(now.observed)
        if redundancy.is_due(self._lacks, found, now_ms):
            self._lacks = redundancy.Reported(found, now_ms)
            self._account.lacks(found, "; ".join(text for _, text in self._core.lacks(now.observed)))

    def would(self, path: str, case: Case, decided: Would, now: Situation, verdicts: Verdicts) -> None:
        """Report the step for a directory when the step, or the reason to wait, has changed."""
        verdict = verdicts.get(path)
        if verdict is None:
            return
        new = (decided.step, case.kafka, decided.reason if decided.step is Step.WAIT else "")
        if self._would.get(path) == new:
            return
        self._would[path] = new
        owned = self._watching.entries[path].owned
        directory_id = None if owned is None else owned.directory_id
        # With metadata, a directory without counts has no replicas. Without metadata the number is not known.
        held = now.observed.held().get(directory_id, Held(0, 0)) if directory_id and now.blind is None else None
        text = words.line(path, words.happened(verdict), case.kafka, held, decided)
        facts = {
            "kafka": str(case.kafka),
            "led": None if held is None else held.led,
            "followed": None if held is None else held.followed,
            "evidence": verdict.evidence.text,
        }
        self._account.would(path, None if directory_id is None else str(directory_id), text, decided, facts)
