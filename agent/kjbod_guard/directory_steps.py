"""Steps about one log directory, one after the other. Pure.

:func:`.ladder.would` decides the first step, in mode observe and in mode act alike. This module decides the steps after
it. From the state, the present facts and the time follow the next state and at most one effect. While an effect is in
progress, no other effect begins for that directory.

==========  ====================================================  =====================================================
state       when                                                  then
==========  ====================================================  =====================================================
well        would cut, mask or report, and this guard may (its    cut: *report* → reporting; mask: *mask* → masking;
..          record is first, :mod:`.suspects`)                    report: *report* → reporting
reporting   the metadata show the directory offline; it was to    *cut* → cutting, when the metadata show the broker out
..          be cut, and its disk has not answered                 of the ISR there (:mod:`.copies`)
reporting   likewise, and its disk has answered                   offline: the broker has the files open, so no eviction
reporting   likewise, and nobody can read it: it answers EIO      offline: it was cut by a guard that could not say so
reporting   its disk has answered, and no controller has the      well
..          report
reporting   not within 500 ms after the last one                  *report*, three at most, while all rules allow it;
..                                                                then left
cutting     the privileged helper has done it, or left it behind  cut
masking     likewise                                              masked
masked      not offline within a checkpoint interval and 500 ms   *report* → reporting: earlier costs 30 s
with a mask Kafka has it online; and its disk answers, or other   *unmask* → unmasking → well
..          copies have left the ISR meanwhile; or a guard before left
..          it, and Kafka has not met it for as long
well, left  the metadata show the directory offline               offline: Kafka found out by itself
cut         likewise                                              offline
masked      likewise                                              offline
offline     partitions wait for this broker, and may be left      *evict* → evicting
evicting    the controllers have answered                         evicted; again for those that are due later
any         registered again, the directory with it               well: from the start
evicted     likewise, and the disk is healthy                     *restore* → restoring → well; again for those that the
..                                                                controllers refused (:mod:`.retries`)
any         ``kjbod guard release``                               *unmask* where it was masked; left until it is healthy
any         a broker is about to start (:func:`before_start`)     *cut* → cutting, *mask* → masking, where it hangs
well        an action was tried and did not work                  a mask for a cut of a broker that is about to start;
..                                                                else left
==========  ====================================================  =====================================================

Nothing else begins while the broker is being fenced, or is not there.

Why report before cut: the controller's log then shows that this copy is out of the in-sync replicas before the page
cache is dropped, so the log orders any number of guards (:mod:`.copies`). A report alone would make the broker a
follower on the bad disk, and stop its fetchers there. So the cut follows at once: the journal has both before the
report, and nothing is written between them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod_guard import slow_steps
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.budget import EVICT_WITHIN_MS
from kjbod_guard.effects import Cut, Effect, Evict, Mask, Move, Report, Restore, Unmask
from kjbod_guard.ladder import NOTHING, KafkaView, Step, Would
from kjbod_guard.observing import Key

REPORT_AFTER_MS: Final = 500
"""Time until a report is repeated. Controllers record a report in some 5 ms; Kafka's own report comes some 100 ms after
an error."""
CHECKPOINT_MS: Final = 5_000
"""``replica.high.watermark.checkpoint.interval.ms``: maximum time until Kafka's next call by a path meets a mask."""
REPORTS_MAX: Final = 3
AGAIN_MS: Final = 1_000
"""Time until a request is sent again. By then the metadata show an accepted request, or a controller may be back."""
ATTEMPTS_MAX: Final = 30
"""Maximum number of reports that reach no controller."""
OVER_MS: Final = 10_000
"""Time with an answering controller after which an old report is either recorded or lost."""


class State(StrEnum):
    """State of a directory on the escalation."""

    WELL = "well"
    CUTTING = "cutting"
    CUT = "cut"
    MASKING = "masking"
    MASKED = "masked"
    UNMASKING = "unmasking"
    REPORTING = "reporting"
    OFFLINE = "offline"
    EVICTING = "evicting"
    EVICTED = "evicted"
    RESTORING = "restoring"
    LEFT = "left"
    RELEASING = "releasing"


_ACTS: Final = (Step.CUT, Step.MASK, Step.REPORT)
_UNRECORDED: Final = (State.CUT, State.MASKED, State.REPORTING)
GONE: Final = (State.OFFLINE, State.EVICTING, State.EVICTED, State.RESTORING)
"""States of a directory that the metadata show, or have shown, offline."""
ON_THE_WAY: Final = (State.REPORTING, State.CUTTING, State.CUT, State.EVICTING)
"""States of a directory between the report and the end of its first eviction."""
RELEASED: Final = "released"
ANSWERED: Final = "its disk answered after the report: restart the broker to use it again"


class Standing(Struct, frozen=True, kw_only=True):
    """A directory on the escalation.

    Attributes:
        state: see the table.
        since_ms: when the directory entered that state.
        reason: in words, why the directory stays in that state, or why the last action failed.
        means: the action that holds on its disk: cut or mask; None: none.
        plan: what a report is for: cut, mask or report; None: nothing was reported.
        tried: actions that have failed since the directory failed.
        epoch: of the broker's registration when the failure began.
        reports: number of reports that the controllers got.
        attempts: reports that reached no controller; in state ``well``: whether lists were restored.
        acted_ms: when the first irreversible action was done; None: there was none.
        offline_ms: when the metadata first showed the directory offline; None: it was offline before this guard came,
            or is online.
        seen_online: whether the metadata have shown the directory online in this epoch.
        under_way: the effect that is being carried out.
    """

    state: State = State.WELL
    since_ms: int = 0
    reason: str = ""
    means: Step | None = None
    plan: Step | None = None
    tried: frozenset[Step] = frozenset()
    epoch: int | None = None
    reports: int = 0
    attempts: int = 0
    acted_ms: int | None = None
    offline_ms: int | None = None
    seen_online: bool = False
    under_way: Effect | None = None

    def has_seen_online(self, epoch: int) -> bool:
        """Whether the metadata have shown the directory online in this registration of the broker."""
        return self.seen_online and self.epoch == epoch


class Facts(Struct, frozen=True, kw_only=True):
    """Knowledge of a directory at one moment.

    Attributes:
        path: as configured.
        directory_id: as text; None: not known.
        beside: ids of all directories that are lost together, this directory included.
        decided: the step from the escalation table (:mod:`.ladder`).
        gate: the step for a broker that is about to start; nothing while a broker runs.
        view: state of the directory in the metadata.
        epoch: of the broker's registration; None: the broker is not registered.
        well: whether its disk is healthy.
        unjudged: whether the disk is neither healthy nor failed: not watched, or only suspect.
        unseen: whether the directory is not watched, because the mask of an earlier guard is mounted over it.
        answers: whether its disk has failed and answers again.
        heard: whether a controller has just answered. A report that waits for a controller would be recorded too late.
        present: whether the broker's process is there, is ours, and is not being fenced.
        may: whether this guard may begin irreversible actions: its record is in the metadata, and is first.
        not_cut: why the file system may not be shut down now, in words; None: it may.
        needed: why the replicas in a masked directory may not leave the ISR now, in words; None: they may.
        open: whether the broker may still use open files there, because the directory was only reported.
        evict: present replica lists that this broker may leave now.
        restore: original replica lists that this broker may be put back into now.
        slow: facts about its leadership; None: demotion is off.
    """

    path: str
    directory_id: str | None
    beside: tuple[str, ...] = ()
    decided: Would = NOTHING
    gate: Would = NOTHING
    view: KafkaView = KafkaView.ONLINE
    epoch: int | None = None
    well: bool = True
    unjudged: bool = False
    unseen: bool = False
    answers: bool = False
    heard: bool = True
    present: bool = True
    may: bool = True
    not_cut: str | None = None
    needed: str | None = None
    open: bool = False
    evict: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    restore: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    slow: slow_steps.Facts | None = None


def advance(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the next step about a directory."""
    if standing.under_way is not None:
        return Move(standing)
    # a release holds also when Kafka takes the directory offline, and after a restart of the broker
    if is_released(standing) and not facts.well:
        return Move(standing)
    standing = noted(standing, facts, now_ms)
    if facts.view is KafkaView.OFFLINE:
        return _offline(standing, facts, now_ms)
    if _is_back(standing, facts):
        return _back(standing, facts, now_ms)
    if not facts.present or facts.epoch is None:
        return Move(standing)
    if standing.state in (State.WELL, State.CUTTING, State.MASKING):
        return _begin(standing, facts, now_ms)
    if _must_unmask(standing, facts):
        return _unmask(standing, facts, now_ms)
    if standing.state in _UNRECORDED:
        return _unrecorded(standing, facts, now_ms)
    if standing.state is State.LEFT and standing.means is None and facts.well:
        return Move(_well(standing, now_ms))
    return Move(standing)


def came_of(standing: Standing, done: Done, now_ms: int) -> Standing:
    """Return the state after the effect in progress has ended."""
    effect, standing = standing.under_way, replace(standing, under_way=None)
    happened = done.happened
    reason = "" if happened else done.reason
    acted_ms = now_ms if standing.acted_ms is None else standing.acted_ms
    match effect:
        case Cut() if happened:
            return _at(standing, State.CUT, now_ms, means=Step.CUT, acted_ms=acted_ms)
        case Mask() if happened:
            return _at(standing, State.MASKED, now_ms, means=Step.MASK, acted_ms=acted_ms)
        case Cut():
            state = State.REPORTING if standing.reports else State.WELL
            return _at(standing, state, now_ms, reason, tried=standing.tried | {Step.CUT})
        case Mask():
            return _at(standing, State.WELL, now_ms, reason, tried=standing.tried | {Step.MASK})
        case Report():
            if done.outcome is Outcome.REFUSED:
                return _at(standing, State.LEFT, now_ms, reason)
            given, vain = standing.reports + happened, standing.attempts + (not happened)
            acted = {"acted_ms": acted_ms} if happened else {}
            return _at(standing, State.REPORTING, now_ms, reason, reports=given, attempts=vain, **acted)
        case Evict():
            return _at(standing, State.EVICTED if happened else State.OFFLINE, now_ms, done.reason)
        case Restore():
            return _at(standing, State.WELL, now_ms, done.reason, attempts=1)
        case Unmask() if standing.state is State.RELEASING:
            means = None if happened else standing.means
            return _at(standing, State.LEFT, now_ms, reason or RELEASED, means=means)
        case Unmask() if happened:
            # A report on its way may still be recorded while the broker has files open there.
            plan = Step.REPORT if standing.reports else None
            return replace(_well(standing, now_ms), means=None, plan=plan)
        case Unmask():
            return _at(standing, State.MASKED, now_ms, reason)
    return standing


def release(standing: Standing, path: str, now_ms: int) -> Move[Standing] | None:
    """Return the outcome of a request to release the directory; None: something is under way, so not now."""
    if standing.under_way is not None:
        return None
    if standing.means is Step.MASK:
        return _do(standing, State.RELEASING, Unmask(path), now_ms)
    return Move(_at(standing, State.LEFT, now_ms, RELEASED))


def before_start(standing: Standing, facts: Facts, now_ms: int, *, masks: bool) -> Move[Standing]:
    """Return the step about a directory before a broker starts; ``masks``: whether that broker would see a mask."""
    idle = standing.under_way is None and standing.means is None and not is_released(standing)
    if not idle or not facts.may or facts.gate.step not in (Step.CUT, Step.MASK):
        return Move(standing)
    if facts.gate.step is Step.CUT and Step.CUT not in standing.tried:
        return _do(standing, State.CUTTING, Cut(facts.path), now_ms)
    if masks and Step.MASK not in standing.tried:
        return _do(standing, State.MASKING, Mask(facts.path), now_ms)
    return Move(standing)


def is_released(standing: Standing) -> bool:
    """Whether an operator has released the directory."""
    return standing.state is State.LEFT and standing.reason == RELEASED


def is_over(standing: Standing) -> bool:
    """Whether the guard needs the disk no more: it was released, or was cut and Kafka has the directory offline."""
    return is_released(standing) or (standing.means is Step.CUT and standing.state in GONE)


def is_settled(standing: Standing) -> bool:
    """Whether the directory is no reason to doubt the broker: no action was done, the directory was released or left,
    or the metadata show it offline."""
    return standing.state in (State.WELL, State.LEFT, *GONE)


# ------------------------------------------------------------------------------------------------------------- the rows


def noted(standing: Standing, facts: Facts, now_ms: int) -> Standing:
    """Return the state updated from the metadata."""
    if facts.view is KafkaView.OFFLINE and None is not standing.epoch != facts.epoch is not None:
        # The broker started without the directory: no leader waits for its replicas.
        standing = replace(standing, epoch=facts.epoch, seen_online=False, offline_ms=None)
    if facts.view is KafkaView.ONLINE and (not standing.seen_online or standing.offline_ms is not None):
        standing = replace(standing, seen_online=True, offline_ms=None)
    if facts.view is KafkaView.OFFLINE and standing.seen_online and standing.offline_ms is None:
        standing = replace(standing, offline_ms=now_ms)
    if standing.epoch is None and facts.epoch is not None:
        standing = replace(standing, epoch=facts.epoch)
    return standing


def _is_back(standing: Standing, facts: Facts) -> bool:
    """Whether the broker uses the directory again: it has registered with the directory, or used it again unseen."""
    if facts.view is not KafkaView.ONLINE or facts.epoch is None:
        return False
    if facts.epoch != standing.epoch or standing.state in GONE:
        return True
    return standing.state is State.WELL and facts.well and bool(facts.restore) and facts.present


def _back(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    fresh = Standing(since_ms=now_ms, epoch=facts.epoch, seen_online=True)
    if standing.state is State.WELL and standing.epoch == facts.epoch:
        fresh, wait_ms = standing, standing.since_ms + AGAIN_MS - now_ms
        if standing.attempts and wait_ms > 0:  # the metadata may not show the last one yet
            return Move(standing, again_ms=wait_ms)
    if facts.well and facts.restore and facts.present and facts.directory_id is not None:
        return _do(fresh, State.RESTORING, Restore(facts.path, facts.directory_id, facts.restore), now_ms)
    return Move(fresh)


def _offline(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    to_be_cut = standing.state is State.REPORTING and standing.plan is Step.CUT and standing.seen_online
    # A guard that was killed between the cut and the journal leaves a file system that answers nothing but errors.
    errs = facts.unjudged and not facts.open
    if to_be_cut and not facts.answers and not facts.well and not errs:
        return _cut_now(standing, facts, now_ms) if facts.present and not facts.unjudged else Move(standing)
    if standing.state not in (State.OFFLINE, State.EVICTED, State.EVICTING, State.RELEASING):
        late = standing.state in (State.REPORTING, State.WELL) and standing.means is None
        reason = ANSWERED if late and standing.plan is Step.CUT and standing.seen_online and not errs else ""
        # The directory was reported together with another one on its file system. The next guard may not know that.
        plan = standing.plan or (Step.REPORT if facts.open else None)
        standing = _at(standing, State.OFFLINE, now_ms, reason, attempts=0, plan=plan)
    if standing.state is State.OFFLINE and facts.open and (facts.well or facts.answers):
        standing = replace(standing, reason=ANSWERED)
    if not facts.evict or facts.directory_id is None or not facts.present or not facts.may or facts.open:
        return Move(standing)
    if standing.offline_ms is None or now_ms - standing.offline_ms >= EVICT_WITHIN_MS:
        return Move(standing)  # no leader waits for the replicas there
    wait_ms = standing.since_ms + AGAIN_MS - now_ms if standing.state is State.EVICTED else 0
    if wait_ms > 0:  # the metadata may not show the last one yet
        return Move(standing, again_ms=wait_ms)
    return _do(standing, State.EVICTING, Evict(facts.path, facts.directory_id, facts.evict), now_ms)


def _cut_now(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the step that shuts the file system down, after the metadata have shown the report."""
    if Step.CUT in standing.tried:
        return Move(_at(standing, State.OFFLINE, now_ms, standing.reason))
    if facts.not_cut is not None:
        return Move(replace(standing, reason=f"reported, and not cut yet: {facts.not_cut}"))
    return _do(standing, State.CUTTING, Cut(facts.path), now_ms)


def _begin(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    step = facts.decided.step
    # An earlier guard was about to mask it. If the directory can be judged by now, the verdict counts.
    if standing.state is State.MASKING and not facts.well and facts.decided == NOTHING:
        step = Step.MASK
    if step not in _ACTS:
        if facts.well and standing.tried:
            standing = replace(standing, tried=frozenset(), reason="")
        if standing.plan is not None and facts.heard and now_ms - standing.since_ms >= OVER_MS:
            standing = replace(standing, plan=None)
        if standing.state is not State.WELL:
            standing = _at(standing, State.WELL, now_ms)
        return Move(standing)
    if not facts.may:
        return Move(standing)
    if step is Step.CUT and Step.CUT in standing.tried:
        step = Step.MASK
    if step is not Step.MASK:
        return _report(replace(standing, plan=step), facts, now_ms)
    if Step.MASK not in standing.tried:
        return _do(replace(standing, plan=step), State.MASKING, Mask(facts.path), now_ms)
    # Without a cut or mask there is no report: the broker would become a follower on the disk, and hang there.
    return Move(_at(standing, State.LEFT, now_ms, standing.reason))


def _must_unmask(standing: Standing, facts: Facts) -> bool:
    """Whether to remove a mask: Kafka has the directory online, and its disk answers or its copies are needed. Or an
    earlier guard mounted the mask, which hides the disk, and a controller has just answered."""
    masked = standing.means is Step.MASK and not is_released(standing)
    over = facts.well or facts.answers or facts.needed is not None
    return masked and ((facts.unseen and facts.heard) or (facts.view is KafkaView.ONLINE and over))


def _unmask(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the step that removes a mask, after a wait if needed."""
    patience_ms = AGAIN_MS if standing.reason else 0
    if facts.unseen and facts.needed is None:  # Kafka may be about to meet the mask
        patience_ms = CHECKPOINT_MS + REPORT_AFTER_MS
    wait_ms = standing.since_ms + patience_ms - now_ms
    if wait_ms > 0:
        return Move(standing, again_ms=wait_ms)
    return _do(standing, State.UNMASKING, Unmask(facts.path), now_ms)


def _unrecorded(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the next step after an action, while the metadata do not show the directory offline yet."""
    if standing.means is None and (facts.well or facts.answers):
        return Move(_well(standing, now_ms))
    patience_ms = REPORT_AFTER_MS
    if standing.state is State.MASKED:
        patience_ms += CHECKPOINT_MS
    if standing.state is State.REPORTING and standing.reason:
        patience_ms = AGAIN_MS
    wait_ms = standing.since_ms + patience_ms - now_ms
    if wait_ms > 0:
        return Move(standing, again_ms=wait_ms)
    if standing.reports >= REPORTS_MAX or standing.attempts >= ATTEMPTS_MAX:
        told = f"the controllers were told {standing.reports} times, and the metadata do not show it"
        return Move(_at(standing, State.LEFT, now_ms, standing.reason or told))
    if not facts.heard or not facts.may or facts.decided.step not in _ACTS:
        return Move(standing)
    return _report(standing, facts, now_ms)


def _report(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if facts.directory_id is None or facts.epoch is None:
        return Move(_at(standing, State.LEFT, now_ms, "its id is not known, so it cannot be reported"))
    ids = facts.beside if standing.plan is Step.CUT else (facts.directory_id,)
    return _do(standing, State.REPORTING, Report(facts.path, ids, facts.epoch), now_ms)


def _well(standing: Standing, now_ms: int) -> Standing:
    """Return the state of a directory whose failure is over. Earlier actions do not count any more. The plan stays for
    a while: a report on its way may still be recorded."""
    return _at(standing, State.WELL, now_ms, tried=frozenset(), reports=0, attempts=0, acted_ms=None)


def _at(standing: Standing, state: State, now_ms: int, reason: str = "", **changes: object) -> Standing:
    return replace(standing, state=state, since_ms=now_ms, reason=reason, **changes)


def _do(standing: Standing, state: State, effect: Effect, now_ms: int) -> Move[Standing]:
    if standing.state is not state:
        standing = replace(standing, state=state, since_ms=now_ms)
    return Move(replace(standing, under_way=effect), effect)
