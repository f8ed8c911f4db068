"""State of an injection, and the reason if it will not end as planned."""

import shlex
import time

from msgspec import Struct

from kjbod.faults.catalog import disk_is_gone
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import DEFAULT_STATE_DIR, Injection
from kjbod.faults.program import typed
from kjbod.faults.watchdog import is_watched

_GRACE_MS = 5000
"""Time limit of an undo."""


class State(Struct, frozen=True):
    """State of an injection.

    Attributes:
        name: ``injected``, ``half done``, ``overdue`` or ``gone``.
        trouble: reason why it will not end without an operator; empty if all is as planned.
    """

    name: str
    trouble: str = ""


def state_of(injection: Injection) -> State:
    """Return the current state. It is valid only if the record still exists afterwards, because the injection may have
    ended."""
    if _is_gone(injection):
        where = (
            "" if injection.state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(injection.state_dir))}"
        )
        path = shlex.quote(str(injection.target.mount_point))
        return State("gone", f"its disk is gone: {typed()} disk remove {path}{where}")
    name = "injected" if injection.done else "half done"
    late_ms = None if injection.until_ms is None else time.time() * 1000 - injection.until_ms
    trouble = _trouble(injection, late_ms)
    return State("overdue" if trouble and late_ms is not None and late_ms > 0 else name, trouble)


def _trouble(injection: Injection, late_ms: float | None) -> str:
    if injection.undo_error:
        return f"could not be undone: {injection.undo_error}"
    if late_ms is None:
        return ""
    # Before the injection is done, its timer may still be starting.
    if (injection.done or late_ms > _GRACE_MS) and not is_watched(injection):
        return "its timer is gone: run undo"
    return "its timer has not undone it yet" if late_ms > _GRACE_MS else ""


def _is_gone(injection: Injection) -> bool:
    try:
        return disk_is_gone(injection.target)
    except FaultsError:  # its server does not answer, or not to us
        return False
