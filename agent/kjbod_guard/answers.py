"""The guard's answers on the control socket (:mod:`kjbod.runtime.control_socket`)."""

import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import asdict

from kjbod import __version__
from kjbod.runtime.control_socket import ControlError, Handler
from kjbod.usage import Usage
from kjbod_guard import gate
from kjbod_guard.action_runner import ActionRunner
from kjbod_guard.finding import NOT_LOOKED
from kjbod_guard.gate_asking import mount_namespace
from kjbod_guard.instead import INSTEAD, refusal
from kjbod_guard.ladder import NOTHING, Step
from kjbod_guard.picture import Picture

PIECE: Final = 500
"""Maximum number of replicas in one piece of an answer."""
NO_ACTS: Final = "this guard observes: only one that acts undoes what was done (kjbod.guard.mode=act)"


class Answers:
    """Handlers of the control socket.

    Args:
        picture: returns the state of the guard at this moment.
        usage: returns the resources that the guard's processes use.
        replicas: returns the replicas in a directory, by path.
        acting: returns the runner of actions; None: the guard observes, or has not begun.
        let_go: closes a released directory, and (True) stops its probes for a while. Returns its mount, and as ``held``
            why it was not closed.
        list_strays: yields the strays on the disks, in pieces.
    """

    def __init__(
        self,
        picture: Callable[[], Picture],
        usage: Callable[[], Awaitable[Usage | None]],
        replicas: Callable[[str], Sequence[dict[str, Any]]] = lambda path: (),
        acting: Callable[[], ActionRunner | None] = lambda: None,
        let_go: Callable[[str, bool], Awaitable[dict[str, str | None]]] | None = None,
        list_strays: Callable[[], AsyncIterator[list[dict[str, Any]] | dict[str, Any]]] | None = None,
    ) -> None:
        self._picture = picture
        self._usage = usage
        self._replicas = replicas
        self._acting = acting
        self._let_go = let_go
        self._list_strays = list_strays

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by the name of the operation."""
        return {
            **{name: partial(self.refuse, name) for name in INSTEAD},
            "guard-gate": self.gate,
            "guard-release": self.release,
            "guard-restore": self.restore,
            "log-dirs": self.log_dirs,
            "status": self.status,
            "strays": self.strays,
        }

    async def refuse(self, name: str, request: dict[str, Any]) -> None:
        """Refuse an operation of an agent, and say what to use instead."""
        raise ControlError(refusal(name))

    def _required(self) -> ActionRunner:
        if (acting := self._acting()) is None:
            raise ControlError(NO_ACTS)
        return acting

    async def release(self, request: dict[str, Any]) -> dict[str, Any]:
        """Release a directory: remove its mask, leave it unchanged until it is healthy, and close it for an unmount."""
        path, rows = str(request.get("path")), {row["path"]: row for row in self._picture().directories}
        acting, cluster_id = self._required(), self._picture().cluster_id
        if path not in rows:
            below = [one for one in rows if one.startswith(f"{path.rstrip('/')}/")]
            raise ControlError(f"{path} is no log directory of this broker: give {' or '.join(below or rows)}")
        standing = acting.core.standing(path)
        if (reason := acting.release(path)) is not None:
            raise ControlError(f"{path} is not released now: {reason}; try again")
        let_go: dict[str, str | None] = {}
        if self._let_go is not None:  # a masked one carries more, and is probed, to see whether it is healthy
            let_go = await self._let_go(path, standing.means is not Step.MASK)
        means = None if standing.means is None else str(standing.means)
        return {"path": path, "means": means, "state": standing.state, "cluster_id": cluster_id, **let_go}

    async def gate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return whether a broker may start on its directories now; begin to cut or mask a directory that hangs."""
        now, acting = self._picture(), self._acting()
        masks = request.get("mounts") == (mount_namespace() or None)
        would = {} if acting is None else acting.before_start(masks=masks)
        found = [
            gate.look(
                row["path"],
                health=None if (disk := now.disks.get(row["path"])) is None else disk.health.health,
                silent_ms=None if disk is None else disk.blocked_ms,
                unwatched=row["error"] or "",
                standing=None if acting is None else acting.core.standing(row["path"]),
                would=would.get(row["path"], NOTHING),
                masks=masks,
            )
            for row in now.directories
        ]
        return {"mode": now.mode, "directories": [asdict(one) for one in found]}

    async def restore(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put the broker back into the replica lists from which the guard evicted it."""
        acting, now = self._required(), self._picture()
        if now.unbound is not None or now.fenced is not False:
            why = now.unbound or ("it is fenced" if now.fenced else "its registration is not known")
            then = (
                "start the broker first"
                if now.pid is None and now.unbound != NOT_LOOKED
                else "try again when it serves"
            )
            raise ControlError(f"not restored: {why}: {then}: it could not follow them")
        if now.incomplete is not None:
            raise ControlError(f"not restored: {now.incomplete}")
        if offline := [row["path"] for row in now.directories if row["kafka"] == "offline"]:
            raise ControlError(
                f"not restored: Kafka has {', '.join(offline)} offline: repair or replace it, and restart the broker"
            )
        count, done = await acting.restore_now()
        return {
            "partitions": count,
            "restored": 0 if done is None else done.changed,
            "evicted": 0 if now.counters is None else now.counters.evicted,
            "outcome": None if done is None else str(done.outcome),
            "reason": "" if done is None else done.reason,
        }

    async def status(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the status of the guard, with a row for each directory."""
        now, usage, acting = self._picture(), await self._usage(), self._acting()
        return {
            "role": "guard",
            "mode": now.mode,
            "condition": {
                "level": now.condition.level.name.lower(),
                "code": int(now.condition.level),
                "text": now.condition.line,
                "reasons": list(now.condition.reasons),
            },
            "problems": [{"code": str(one.code), "text": one.text, "path": one.path} for one in now.condition.problems],
            "version": __version__,
            "pid": os.getpid(),
            "node": now.node_id,
            "cluster_id": now.cluster_id,
            "broker": {
                "pid": now.pid,
                "unbound": now.unbound,
                "state": now.broker_state,
                "reason": now.broker_reason or None,
            },
            "evicted": None if now.counters is None else now.counters.evicted,
            "demoted": None if acting is None else len(acting.core.journal.demoted),
            "needs": None if now.needs is None else dataclasses.asdict(now.needs),
            "refused": list(now.refused),
            "suspects": list(now.suspects),
            "broker_epoch": now.broker_epoch,
            "incarnation_id": now.incarnation_id,
            "fenced": now.fenced,
            "controller": now.controller,
            "metadata_missing": now.blind,
            "metadata_unknown": list(now.unknown),
            "certificates": now.certificates.as_json(),
            "metadata_offset": now.metadata_offset,
            "metadata_version": now.metadata_version,
            "processes": None if usage is None else to_builtins(usage),
            "directories": list(now.directories),
        }

    async def log_dirs(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the directories, and with ``replicas`` also the replicas that the metadata assign to them."""
        for row in self._picture().directories:
            yield {"directory": row}
            found = self._replicas(row["path"]) if request.get("replicas") is True else ()
            for start in range(0, len(found), PIECE):
                yield {"path": row["path"], "replicas": found[start : start + PIECE]}

    async def strays(self, request: dict[str, Any]) -> AsyncIterator[list[dict[str, Any]] | dict[str, Any]]:
        """Yield the stray replicas on the broker's disks. Changes nothing."""
        if self._list_strays is not None:
            async for part in self._list_strays():
                yield part
