"""Answers of the metrics listener to ``GET /healthz`` and ``GET /readyz``. Pure."""

from typing import Final

from msgspec import Struct

OK: Final = "200 OK"
UNAVAILABLE: Final = "503 Service Unavailable"


class Vitals(Struct, frozen=True):
    """Whether a daemon works, and whether it can do what it is for.

    Attributes:
        stuck: the part that makes no progress, as the watchdog of the service manager judges; None: there is none.
        waits: why the daemon cannot do what it is for at this moment; None: it can. A failed disk is no reason.
    """

    stuck: str | None = None
    waits: str | None = None


ENDING: Final = Vitals(stuck="it stops", waits="it stops")


def answer(path: bytes, now: Vitals) -> tuple[str, str]:
    """Status line and text for ``/healthz`` or ``/readyz``."""
    reason = now.stuck if path == b"/healthz" else now.stuck or now.waits
    return (OK, "ok\n") if reason is None else (UNAVAILABLE, f"{reason}\n")
