"""The shell that tells what is new: compares what is with what was told last. What does not change is said once."""

from kjbod.clock import Clock
from kjbod.ids import Uuid
from kjbod_agent.guard import words
from kjbod_agent.guard.account import Account
from kjbod_agent.guard.deciding import Deciding, Seen
from kjbod_agent.guard.following import BEING_READ, NO_ANSWER
from kjbod_agent.guard.ladder import Case, KafkaView, Step, Would
from kjbod_agent.guard.observing import Held
from kjbod_agent.guard.watching import Watching
from kjbod_agent.health.state import Health


class Telling:
    """Memory of what was told last.

    Args:
        account: log, health report and audit.
        watching: the directories.
        deciding: knows how Kafka has them.
        clock: the time.
    """

    def __init__(self, account: Account, watching: Watching, deciding: Deciding, clock: Clock) -> None:
        self._account = account
        self._watching = watching
        self._deciding = deciding
        self._clock = clock
        self._bound: tuple[str | None, int | None] | None = None
        self._blind: str | None = ""
        self._registration: tuple[int, bool, Uuid] | None = None
        self._views: dict[str, KafkaView] = {}
        self._would: dict[str, tuple[Step, KafkaView]] = {}

    def forget(self, path: str) -> None:
        """Forget what would be done about a directory: it has not failed, or another disk is there."""
        self._would.pop(path, None)

    def tell(self, seen: Seen) -> None:
        """Tell what is new of the broker and the metadata."""
        self._tell_bound(seen)
        self._tell_blind(seen)
        self._tell_registration(seen)
        self._tell_views(seen)

    def _tell_bound(self, seen: Seen) -> None:
        pid = None if seen.holder is None else seen.holder.pid
        now = (seen.unbound, pid if seen.unbound is None else None)
        if now != self._bound and seen.looked:
            self._bound = now
            self._account.bound(*now)

    def _tell_blind(self, seen: Seen) -> None:
        reason = seen.blind
        if reason != self._blind and reason not in (NO_ANSWER, BEING_READ):
            # Another reason of the same trouble is no news.
            if reason is None or not self._blind:
                self._account.followed(reason, seen.observed.offset)
            self._blind = reason

    def _tell_registration(self, seen: Seen) -> None:
        found = seen.observed.registration if seen.blind is None else None
        if found is None:
            return
        now = (found.epoch, found.fenced, found.incarnation_id)
        if now != self._registration:
            self._registration = now
            self._account.registration(found.epoch, found.fenced, str(found.incarnation_id))

    def _tell_views(self, seen: Seen) -> None:
        for path, owned in self._watching.owned.items():
            view = self._deciding.view(path, seen)
            before = self._views.get(path)
            if view is KafkaView.UNKNOWN or view is before:
                continue
            self._views[path] = view
            if before is None and view is KafkaView.ONLINE:
                continue  # as it should be
            verdict = seen.verdicts.get(path)
            failed = verdict is not None and verdict.state is Health.FAILED
            after_ms = (self._clock.monotonic_ns() - verdict.at_ns) // 1_000_000 if verdict and failed else None
            self._account.kafka_view(path, str(owned.directory_id), view, after_ms=after_ms)

    def would(self, path: str, case: Case, decided: Would, seen: Seen) -> None:
        """Tell what would be done about a directory, where that is new."""
        verdict = seen.verdicts.get(path)
        if verdict is None:
            return
        now = (decided.step, case.kafka)
        if self._would.get(path) == now:
            return
        self._would[path] = now
        owned = self._watching.entries[path].owned
        directory_id = None if owned is None else owned.directory_id
        # A followed directory that no replica names holds none; only without the metadata nobody knows.
        held = seen.observed.held().get(directory_id, Held(0, 0)) if directory_id and seen.blind is None else None
        text = words.line(path, words.happened(verdict), case.kafka, held, decided)
        facts = {
            "kafka": str(case.kafka),
            "led": None if held is None else held.led,
            "followed": None if held is None else held.followed,
            "evidence": verdict.evidence.text,
        }
        self._account.would(path, None if directory_id is None else str(directory_id), text, decided, facts)
