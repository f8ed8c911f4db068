"""The guard's account of itself: the log, the health report and the audit.

The log and the report are those of an agent (:mod:`kjbod_host.reporter`), with events of a guard's own. The audit is a
file of JSON lines in ``kjbod.state.dir``, each fsynced: what was decided about a disk, with its evidence, also when the
log is long gone. It is written by a process, so a state directory that hangs keeps nobody.
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
"""Of the file; as much again is kept of the one before."""
AUDIT_LINES_MAX: Final = 1_000
"""Lines that wait for their disk."""
NAMED_MAX: Final = 20
"""Partitions that one line of the log names."""


class Audit:
    """Appends lines to the audit; never blocks or raises.

    Args:
        state_dir: ``kjbod.state.dir``.
        files: does the file calls there.
        clock: the time.
        log: for what cannot be written.
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
        """Append a line, and return when it is fsynced, or cannot be."""
        await self._append(self._line(event, fields))

    def _line(self, event: str, fields: Mapping[str, object]) -> bytes:
        self._waiting += 1
        entry = {"at_ms": self._clock.wall_ms(), "event": event, **fields}
        return json.dumps(entry, default=str).encode() + b"\n"

    async def settle(self, timeout_ms: int) -> None:
        """Wait until what was to be written is written, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000), self._turn:  # which comes after those that wait
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
    """Reports what a guard sees, and what it would do."""

    mode: str = "observe"
    audit: Audit | None = None
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often what came of a means, by its name and the outcome."""
    _counts: dict[tuple[str, str | None], str] = field(default_factory=dict)
    """Partitions that a means which is under way is about, by its name and the directory."""

    def begun(self, watched: Mapping[str, str], unwatched: Mapping[str, str], source: str) -> None:
        """The directories were read, as far as they can be."""
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
        """The cluster is known, which it is not where no directory could be read at the start."""
        if cluster_id is not None and not self.sender.fleet:
            self.sender = replace(self.sender, fleet=cluster_id)

    def ending(self, reason: str) -> None:
        """The end has begun."""
        self.log.info("guard.stopping", reason=reason)

    def bound(self, reason: str | None, pid: int | None) -> None:
        """A broker is there for which to watch, or why none is."""
        if reason is None:
            self.log.info("guard.broker.found", pid=pid)
        else:
            self.log.warning("guard.broker.unbound", reason=reason)
        self._audit("bound", reason=reason, pid=pid)

    def followed(self, reason: str | None, offset: int) -> None:
        """The metadata are followed, or why not."""
        if reason is None:
            self.log.info("guard.metadata.followed", offset=offset)
        else:
            self.log.warning("guard.metadata.missing", reason=reason, consequence="disks are watched all the same")

    def unknown(self, lines: Sequence[str]) -> None:
        """Lines about the part of the metadata that kjbod does not know; none: it knows all again."""
        for line in lines:
            self.log.warning("guard.metadata.unknown", reason=line)
        if not lines:
            self.log.info("guard.metadata.known")
        self._audit("metadata", unknown=list(lines))

    def registration(self, epoch: int | None, fenced: bool | None, incarnation: str | None) -> None:
        """The broker's registration is another one, or is fenced or unfenced."""
        self.log.info("guard.registration", broker_epoch=epoch, fenced=fenced, incarnation_id=incarnation)
        if epoch is not None:
            self._event(EventKind.FENCED if fenced else EventKind.UNFENCED, attrs={"broker_epoch": str(epoch)})

    def failure(self, verdict: Verdict, held: Held | None) -> None:
        """A directory has failed, as far as the guard can tell: an incident of the fleet report."""
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
        """Kafka has a directory offline, or online again."""
        self.log.warning("guard.kafka.view", path=path, directory_id=directory_id, view=str(view), after_ms=after_ms)
        self._audit("kafka", path=path, directory_id=directory_id, view=str(view), after_ms=after_ms)
        if view is KafkaView.OFFLINE:
            attrs = {} if after_ms is None else {"after_ms": str(after_ms)}
            self._event(EventKind.KAFKA_NOTICED, dir_id=directory_id, path=path, attrs=attrs)

    def would(
        self, path: str, directory_id: str | None, text: str, decided: Would, facts: Mapping[str, object]
    ) -> None:
        """The step for a directory is another one than before."""
        step = {"would": str(decided.step), "reason": decided.reason}
        self.log.warning("guard.would", path=path, text=text, **step, **facts)
        self._audit("would", path=path, directory_id=directory_id, text=text, **step, **facts)
        attrs = {"would": str(decided.step), "reason": words.outcome(decided), "mode": self.mode}
        self._event(EventKind.GUARD_WOULD, dir_id=directory_id, path=path, attrs=attrs)

    async def does(self, name: str, path: str | None, facts: Mapping[str, object]) -> None:
        """Something is about to be done about a directory, or the broker (None); returns when that is fsynced."""
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
        """Something was done, or was not."""
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
        """A directory, or the broker (None), has entered a state, or there is another reason why it is left there."""
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
        """The helper holds a directory from now on, or has let go of it, or (with a reason) does not take it."""
        self.log.info("guard.directory.held", path=path, held=held, reason=reason)
        self._audit("held", path=path, held=held, reason=reason)

    def forgotten(self, names: Sequence[str]) -> None:
        """Partitions that will not be restored, since somebody has changed their replicas, or they are gone."""
        few = list(names[:NAMED_MAX])
        self.log.warning("guard.evictions.forgotten", partitions=few, count=len(names))
        self._audit("forgotten", partitions=list(names))

    def unwritten(self, reason: str) -> None:
        """The journal cannot be written, and why; empty: it can be again. Not in the audit, which lies beside it."""
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
    """A value for the log; of replica lists, which the audit has, only how many."""
    return len(value) if isinstance(value, Mapping) else value
