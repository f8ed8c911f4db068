"""Signs of a stuck broker in its ApiVersions answers: missing answers, or metadata that are not applied. Pure.

``finalizedFeaturesEpoch`` of an answer is the metadata offset that the broker has applied (tried with 4.3.1). A broker
that is stuck on a disk still answers, but its offset stops while the quorum's offset grows.

:mod:`.canary_asking` asks.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

EVERY_MS: Final = 1_000
"""Time from one question to the next, while a disk is in doubt."""
SILENT_MS: Final = 3_000
"""A broker that has not answered for so long is silent."""
STANDING_MS: Final = 5_000
"""A broker that has applied no committed metadata for so long counts as stuck."""


class Canary(Struct, frozen=True, kw_only=True):
    """Answers of a broker, and questions that it has not answered.

    Attributes:
        asked_ms: when the first question that it has not answered was asked; None: none is open.
        answered_ms: when it answered last.
        offset: metadata offset that the broker had applied then; None: it did not say.
        behind_ms: since when the quorum has been further than ``offset``; None: it is not.
        behind_of: offset that the quorum had committed at that moment.
    """

    asked_ms: int | None = None
    answered_ms: int | None = None
    offset: int | None = None
    behind_ms: int | None = None
    behind_of: int = -1


def asked(canary: Canary, now_ms: int) -> Canary:
    """Return the state after a question was asked. An open question keeps its time."""
    return canary if canary.asked_ms is not None else replace(canary, asked_ms=now_ms)


def answered(canary: Canary, offset: int | None, now_ms: int) -> Canary:
    """Return the state after an answer with the offset that the broker has applied."""
    moved = offset is not None and (canary.offset is None or offset > canary.offset)
    now = replace(canary, asked_ms=None, answered_ms=now_ms, offset=canary.offset if offset is None else offset)
    return replace(now, behind_ms=None, behind_of=-1) if moved else now


def stood_still(canary: Canary) -> Canary:
    """Return the state after this process itself stood still, as in a suspended machine. Answers that were missing
    during that time prove nothing."""
    return replace(canary, asked_ms=None, behind_ms=None, behind_of=-1)


def quorum(canary: Canary, committed: int, now_ms: int) -> Canary:
    """Return the state after the quorum has committed up to this offset."""
    if canary.offset is None or committed <= canary.offset:
        return replace(canary, behind_ms=None, behind_of=-1)
    return canary if canary.behind_ms is not None else replace(canary, behind_ms=now_ms, behind_of=committed)


def lag(canary: Canary, committed: int) -> int | None:
    """Return the number of records that the broker has not applied; None: its offset is not known."""
    return None if canary.offset is None else max(0, committed - canary.offset)


def verdict(canary: Canary, now_ms: int) -> str | None:
    """Return why the broker is stuck, in words; None: nothing shows it.

    A broker that has never answered is not judged: it may be starting.
    """
    if canary.answered_ms is None:
        return None
    if canary.asked_ms is not None and now_ms - canary.asked_ms >= SILENT_MS:
        return f"the broker has not answered ApiVersions for {(now_ms - canary.asked_ms) / 1000:.1f} s"
    standing_ms = 0 if canary.behind_ms is None else now_ms - canary.behind_ms
    # An old offset counts only while the broker answers. Otherwise the offset may have moved unseen.
    fresh = canary.behind_ms is not None and canary.answered_ms >= canary.behind_ms + STANDING_MS
    if standing_ms >= STANDING_MS and fresh:
        return (
            f"the broker has applied no metadata for {standing_ms / 1000:.1f} s: it stands at offset {canary.offset}, "
            f"and the quorum has been at {canary.behind_of} or later since"
        )
    return None
