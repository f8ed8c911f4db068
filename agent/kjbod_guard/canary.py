"""Whether a broker still answers, and still applies metadata: what its ApiVersions answers say. Pure.

``finalizedFeaturesEpoch`` of an answer is the metadata offset that the broker has applied (tried with 4.3.1). A broker
that is crippled by a disk goes on answering, and its offset stands while the quorum's moves.

:mod:`.canary_asking` asks.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

EVERY_MS: Final = 1_000
"""From one question to the next, while in doubt."""
SILENT_MS: Final = 3_000
"""A broker that has not answered for so long is silent."""
STANDING_MS: Final = 5_000
"""A broker that has not applied for so long what the quorum has committed stands."""


class Canary(Struct, frozen=True, kw_only=True):
    """Answers of a broker, and the ones that it owes.

    Attributes:
        asked_ms: when the first question that it has not answered was asked; None: none is open.
        answered_ms: when it answered last.
        offset: that it had applied then; None: it did not say.
        behind_ms: since when the quorum has been further than ``offset``; None: it is not.
        behind_of: what the quorum had committed at that moment.
    """

    asked_ms: int | None = None
    answered_ms: int | None = None
    offset: int | None = None
    behind_ms: int | None = None
    behind_of: int = -1


def asked(canary: Canary, now_ms: int) -> Canary:
    """A question was asked. One that is open keeps its time."""
    return canary if canary.asked_ms is not None else replace(canary, asked_ms=now_ms)


def answered(canary: Canary, offset: int | None, now_ms: int) -> Canary:
    """An answer came, with the offset that the broker has applied."""
    moved = offset is not None and (canary.offset is None or offset > canary.offset)
    now = replace(canary, asked_ms=None, answered_ms=now_ms, offset=canary.offset if offset is None else offset)
    return replace(now, behind_ms=None, behind_of=-1) if moved else now


def stood_still(canary: Canary) -> Canary:
    """State after who asks stood still itself, as in a suspended machine: what was owed meanwhile says nothing."""
    return replace(canary, asked_ms=None, behind_ms=None, behind_of=-1)


def quorum(canary: Canary, committed: int, now_ms: int) -> Canary:
    """The quorum has committed up to this offset."""
    if canary.offset is None or committed <= canary.offset:
        return replace(canary, behind_ms=None, behind_of=-1)
    return canary if canary.behind_ms is not None else replace(canary, behind_ms=now_ms, behind_of=committed)


def lag(canary: Canary, committed: int) -> int | None:
    """Records that the broker has not applied; None: it has said nothing."""
    return None if canary.offset is None else max(0, committed - canary.offset)


def verdict(canary: Canary, now_ms: int) -> str | None:
    """Reason why the broker is crippled, in words; None: nothing says so.

    A broker that has never answered is not judged: it may be starting.
    """
    if canary.answered_ms is None:
        return None
    if canary.asked_ms is not None and now_ms - canary.asked_ms >= SILENT_MS:
        return f"the broker has not answered ApiVersions for {(now_ms - canary.asked_ms) / 1000:.1f} s"
    standing_ms = 0 if canary.behind_ms is None else now_ms - canary.behind_ms
    # What stands counts only where the broker goes on answering: else it may have moved unseen.
    fresh = canary.behind_ms is not None and canary.answered_ms >= canary.behind_ms + STANDING_MS
    if standing_ms >= STANDING_MS and fresh:
        return (
            f"the broker has applied no metadata for {standing_ms / 1000:.1f} s: it stands at offset {canary.offset}, "
            f"and the quorum has been at {canary.behind_of} or later since"
        )
    return None
