"""A second, independent check of the guard's invariants, right before an act. Pure.

The tables of states decide (:mod:`.ladder`, :mod:`.directory_steps`, :mod:`.broker_steps`). This module knows none of
their states: it asks the committed metadata and the disks. Where it refuses an act, the tables have a mistake. The
numbers are those in :mod:`.core`.

======  ==================================  ==========================================================================
number  act                                 is refused
======  ==================================  ==========================================================================
1       a file-system shutdown              while a replica there is in the ISR, or fewer than ``min.insync.replicas``
..                                          other copies count, or no controller has just answered
2       the first report or mask of a       where a partition would be left without a leader, or below
..      directory, a kill                   ``min.insync.replicas``
3       the first report, mask or shutdown  before the disk has stood still for ``kjbod.guard.cut.after.ms``
..      of a directory
5       each of these                       while the metadata are not followed, or their picture is incomplete
6       a kill                              while no controller answers
======  ==================================  ==========================================================================

This module does not check a report or a mask that continues a begun action. For a broker that is about to start, which
leads nothing, it checks only a shutdown (1 and 3). It does not check the order of brokers (4) and the end of doubt (7):
the record of suspected directories and the states have them.
"""

from collections.abc import Collection

from kjbod.ids import Uuid
from kjbod_guard import effects
from kjbod_guard.budget import ANSWERED_MS, FRESH_MS
from kjbod_guard.copies import need
from kjbod_guard.effects import Effect
from kjbod_guard.situation import Disk, Situation

BROKEN = "against invariant"


def why_not(
    effect: Effect, now: Situation, *, lost: Collection[Uuid] | None, min_isr: int, begins: bool, starting: bool
) -> str | None:
    """Return which invariant an effect would break, in words; None: none.

    Args:
        effect: the act that is about to be carried out.
        now: what is known.
        lost: ids of the directories that would be lost; None: all directories of the broker.
        min_isr: ``min.insync.replicas`` of the broker's file.
        begins: whether this is the first act on this directory.
        starting: whether the act is for a broker that is about to start.
    """
    found: str | None = None
    match effect:
        case effects.Cut():
            found = _data(now, lost, min_isr) or (_reversible(now.disks.get(effect.path), now) if begins else None)
        case effects.Report() | effects.Mask() if begins and not starting:
            found = _availability(now, lost, min_isr) or _reversible(now.disks.get(effect.path), now)
        case effects.Kill():
            found = _availability(now, lost, min_isr) or _proof(now)
        case _:
            return None
    return None if found is None else f"{BROKEN} {found}"


def _data(now: Situation, lost: Collection[Uuid] | None, min_isr: int) -> str | None:
    if now.unsure is not None:
        return f"5: {now.unsure}"
    if now.answered_ms is None or now.now_ms - now.answered_ms > FRESH_MS:
        return "1: no controller has just answered"
    reason = need(now.observed, lost, min_isr).why_not_shut_down
    return None if reason is None else f"1: {reason}"


def _availability(now: Situation, lost: Collection[Uuid] | None, min_isr: int) -> str | None:
    if now.unsure is not None:
        return f"5: {now.unsure}"
    reason = need(now.observed, lost, min_isr).refusal
    return None if reason is None else f"2: {reason}"


def _reversible(disk: Disk | None, now: Situation) -> str | None:
    if disk is None or now.now_ms - disk.bad_ms >= disk.cut_after_ms:
        return None
    return f"3: the disk has stood still for {now.now_ms - disk.bad_ms} ms of {disk.cut_after_ms}"


def _proof(now: Situation) -> str | None:
    if now.answered_ms is not None and now.now_ms - now.answered_ms <= ANSWERED_MS:
        return None
    return "6: no controller answers"
