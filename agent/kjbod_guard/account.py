"""Log, health report and audit of a guard.

Log and report work as in an agent (:mod:`kjbod_host.reporter`), with additional events of the guard. The audit is a
file of JSON lines in ``kjbod.state.dir``, each fsynced. A line has a decision about a disk, with the evidence, and
outlives the log. A separate process writes the audit, so a state directory that hangs does not block the guard.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import field
from msgspec.structs import replace

from kjbod import __version__
from kjbod.clock import Clock
from kjbod.fleet.schema import EventKind
from kjbod_guard import words
from kjbod_guard.actions import Done
from kjbod_guard.ladder import KafkaView, Would
from kjbod_guard.observing import Held
from kjbod_host.files.file_process import FileProcess
from kjbod_host.health.evidence import Verdict
from kjbod_host.reporter import Log, Reporter

if TYPE_CHECKING:
    from kjbod_guard.redundancy import Needs

AUDIT_NAME: Final = "guard-audit.jsonl"
AUDIT_BYTES_MAX: Final = 4 << 20
"""Maximum size of the audit file. One previous file of the same size is kept."""
AUDIT_LINES_MAX: Final = 1_000
"""Maximum number of lines that wait to be written."""
NAMED_MAX: Final = 20
"""Maximum number of partitions that one line of the log lists."""


class Audit:
    """Appends lines to the audit; never blocks or raises.

    Args:
        state_dir: ``kjbod.state.dir``.
        files: does the file calls in that directory.
        clock: the time.
        log: gets a warning when the audit cannot be written.
        spawn: runs a coroutine for as long as the guard.
    """

    def __init__(
        self,
        state_dir: str,
        files: FileProcess,
        clock: Clock,
        log: Log,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._path = Path(state_dir) / AUDIT_NAME
        self._files = files
        self._clock = clock
        self._log = log
        self._spawn = spawn
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._trouble = ""

    def write(self, event: str, fields: Mapping[str, object]) -> None:
        """Append a line."""
        if self._waiting < AUDIT_LINES_MAX:
            self._spawn(self._append(self._line(event, fields)))

    async def write_now(self, event: str, fields: Mapping[str, object]) -> None:
        """Append a line; return when the line is fsynced, or when that has failed."""
        await self._append(self._line(event, fields))

    def _line(self, event: str, fields: Mapping[str, object]) -> bytes:
        self._waiting += 1
        entry = {"at_ms": self._clock.wall_ms(), "event": event, **fields}
        return json.dumps(entry, default=str).encode() + b"\n"

    async def settle(self, timeout_ms: int) -> None:
        """Wait until all pending lines are written, at most for ``timeout_ms``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000), self._turn:  # earlier appends get the lock first
                return

    async def _append(self, line: bytes) -> None:
        try:
            async with self._turn:
                await self._files.call("append_line", str(self._path), line, AUDIT_BYTES_MAX)
        except OSError as error:
            trouble = f"{self._path}: {error.strerror}"
            if trouble != self._trouble:
                self._log.warning("guard.audit.not.written", reason=trouble)
            self._trouble = trouble
        else:
            self._trouble = ""
        finally:
            self._waiting -= 1


class Account(Reporter):
    """Reporter of a guard: reports observations, decisions and actions."""

    mode: str = "observe"
    audit: Audit | None = None
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of actions, by name and outcome."""
    _counts: dict[tuple[str, str | None], str] = field(default_factory=dict)
    """Number of partitions of each action in progress, by name of the action and directory."""

    def begun(self, watched: Mapping[str, str], unwatched: Mapping[str, str], source: str) -> None:
        """Report the start, with the directories that are watched and those that are not."""
        self.log.info(
            "guard.started",
            broker_id=self.sender.broker_id,
            mode=self.mode,
            source=source,
            log_dirs=dict(watched),
            unwatched=dict(unwatched),
        )
        who = {"role": "guard", "mode": self.mode, "version": __version__}
        counts = {"log_dirs": str(len(watched)), "unreadable": str(len(unwatched))}
        self._event(EventKind.AGENT_STARTED, attrs=who | counts)

    def of_cluster(self, cluster_id: str | None) -> None:
        """Set the cluster id of later reports, once a directory was read."""
        if cluster_id is not None and not self.sender.fleet:
            self.sender = replace(self.sender, fleet=cluster_id)

    def ending(self, reason: str) -> None:
        """Log that the guard is stopping."""
        self.log.info("guard.stopping", reason=reason)

    def bound(self, reason: str | None, pid: int | None) -> None:
        """Report that the broker was found, or why it was not found."""
        if reason is None:
            self.log.info("guard.broker.found", pid=pid)
        else:
            self.log.warning("guard.broker.unbound", reason=reason)
        self._audit("bound", reason=reason, pid=pid)

    def followed(self, reason: str | None, offset: int) -> None:
        """Log that the guard follows the metadata, or why it does not."""
        if reason is None:
            self.log.info("guard.metadata.followed", offset=offset)
        else:
            self.log.warning("guard.metadata.missing", reason=reason, consequence="disks are watched all the same")

    def unknown(self, lines: Sequence[str]) -> None:
        """Report lines about metadata that kjbod does not know. No lines: kjbod knows all of the metadata again."""
        for line in lines:
            self.log.warning("guard.metadata.unknown", reason=line)
        if not lines:
            self.log.info("guard.metadata.known")
        self._audit("metadata", unknown=list(lines))

    def registration(self, epoch: int | None, fenced: bool | None, incarnation: str | None) -> None:
        """Report that the broker's registration has changed, or was fenced or unfenced."""
        self.log.info("guard.registration", broker_epoch=epoch, fenced=fenced, incarnation_id=incarnation)
        if epoch is not None:
            self._event(EventKind.FENCED if fenced else EventKind.UNFENCED, attrs={"broker_epoch": str(epoch)})

    def failure(self, verdict: Verdict, held: Held | None) -> None:
        """Report a failed directory, as an incident of the fleet report."""
        evidence = verdict.evidence
        attrs = {"cause": str(verdict.cause), "evidence": evidence.text}
        attrs |= {key: value for key, value in (("errno", evidence.errno), ("call", evidence.call)) if value}
        self._event(
            EventKind.DIR_FAILED,
            dir_id=verdict.directory_id,
            path=verdict.path,
            partitions=None if held is None else held.led + held.followed,
            leaders=None if held is None else held.led,
            attrs=attrs,
        )

    def kafka_view(self, path: str, directory_id: str, view: KafkaView, *, after_ms: int | None) -> None:
        """Report that Kafka has taken a directory offline, or has it online again."""
        self.log.warning("guard.kafka.view", path=path, directory_id=directory_id, view=str(view), after_ms=after_ms)
        self._audit("kafka", path=path, directory_id=directory_id, view=str(view), after_ms=after_ms)
        if view is KafkaView.OFFLINE:
            attrs = {} if after_ms is None else {"after_ms": str(after_ms)}
            self._event(EventKind.KAFKA_NOTICED, dir_id=directory_id, path=path, attrs=attrs)

    def would(
        self, path: str, directory_id: str | None, text: str, decided: Would, facts: Mapping[str, object]
    ) -> None:
        """Report that the step decided for a directory has changed."""
        step = {"would": str(decided.step), "reason": decided.reason}
        self.log.warning("guard.would", path=path, text=text, **step, **facts)
        self._audit("would", path=path, directory_id=directory_id, text=text, **step, **facts)
        attrs = {"would": str(decided.step), "reason": words.outcome(decided), "mode": self.mode}
        self._event(EventKind.GUARD_WOULD, dir_id=directory_id, path=path, attrs=attrs)

    async def does(self, name: str, path: str | None, facts: Mapping[str, object]) -> None:
        """Report an action on a directory, or the broker (None), before it begins; return when the audit is fsynced."""
        fields = {"path": path, **facts}
        counted = {"partitions" if isinstance(one, Mapping) else key: _counted(one) for key, one in fields.items()}
        self.log.warning("guard.does", means=name, **counted)
        partitions = counted.get("partitions")
        count = {} if partitions is None else {"count": str(partitions)}
        self._event(EventKind.GUARD_DOES, path=path, attrs={"means": name, **count})
        if count:
            self._counts[name, path] = count["count"]
        if self.audit is not None:
            await self.audit.write_now("does", self._fields({"means": name, **fields}))

    def done(self, name: str, path: str | None, done: Done) -> None:
        """Report the outcome of an action."""
        fields = {"path": path, "outcome": str(done.outcome), "reason": done.reason, "took_ms": done.took_ms}
        self.log.warning("guard.done", means=name, **fields)
        self._audit("done", means=name, **fields)
        self.outcomes[name, str(done.outcome)] += 1
        told = {"outcome": str(done.outcome), "took_ms": str(done.took_ms), "reason": done.reason}
        asked = self._counts.pop((name, path), "")
        told["count"] = str(done.changed) if done.happened and done.changed is not None else asked
        attrs = {"means": name, **{key: value for key, value in told.items() if value}}
        self._event(EventKind.GUARD_DONE, path=path, attrs=attrs)

    def stands(self, path: str | None, state: str, reason: str) -> None:
        """Report a new state of a directory or the broker (None), or a new reason for the same state."""
        event = "guard.broker" if path is None else "guard.directory"
        self.log.info(event, path=path, state=state, reason=reason)
        self._audit("state", path=path, state=state, reason=reason)
        attrs = {"state": state, **({"reason": reason} if reason else {})}
        self._event(EventKind.GUARD_STANDS, path=path, attrs=attrs)

    def lacks(self, needs: "Needs", reason: str) -> None:
        """Report how many partitions of the broker lack replicas.

        Args:
            needs: the counts; all 0: no partition lacks a replica any more.
            reason: the lines of ``kjbod status`` about these partitions; empty where no partition lacks a replica.
        """
        counts = {
            "below_replication_factor": needs.below_replication_factor,
            "below_min_isr": needs.below_min_isr,
            "without_leader": needs.without_leader,
        }
        say = self.log.warning if any(counts.values()) else self.log.info
        say("guard.redundancy", **counts, reason=reason)
        self._audit("redundancy", **counts, reason=reason)
        attrs = {name: str(count) for name, count in counts.items()}
        self._event(EventKind.GUARD_LACKS, attrs=attrs | ({"reason": reason} if reason else {}))

    def held(self, path: str, held: bool, reason: str) -> None:
        """Report that the helper now holds a directory, has released it, or (with a reason) refuses it."""
        self.log.info("guard.directory.held", path=path, held=held, reason=reason)
        self._audit("held", path=path, held=held, reason=reason)

    def forgotten(self, names: Sequence[str]) -> None:
        """Report partitions that the guard will not restore: others have changed their replicas, or they were
        deleted."""
        few = list(names[:NAMED_MAX])
        self.log.warning("guard.evictions.forgotten", partitions=few, count=len(names))
        self._audit("forgotten", partitions=list(names))

    def unwritten(self, reason: str) -> None:
        """Log why the journal cannot be written; empty: it can be written again. The audit is in the same directory, so
        it gets no line."""
        if reason:
            self.log.warning("guard.journal.not.written", reason=reason, consequence="nothing is evicted or demoted")
        else:
            self.log.info("guard.journal.written")

    def _fields(self, fields: Mapping[str, object]) -> dict[str, object]:
        return {"mode": self.mode, "node": self.sender.broker_id, **fields}

    def _audit(self, event: str, **fields: object) -> None:
        if self.audit is not None:
            self.audit.write(event, self._fields(fields))


def _counted(value: object) -> object:
    """Return a value for the log. Replica lists become their number, because the audit has the lists."""
    return len(value) if isinstance(value, Mapping) else value
