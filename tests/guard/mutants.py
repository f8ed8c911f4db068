"""Rules of the guard, each broken once: what :mod:`scripts.universe_mutants` has to find.

A mutant is a text of a module of the guard and another in its place.
"""

from dataclasses import dataclass
from importlib import import_module
from inspect import getsource
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule.

    Attributes:
        name: of the mutant.
        module: of :mod:`kjbod_guard` in which the rule stands.
        rule: its text there, which is there once.
        broken: the text in its place.
    """

    name: str
    module: str
    rule: str
    broken: str

    def source(self) -> str:
        """Source of the module with the broken rule.

        Raises:
            ValueError: the rule is not there, or more than once.
        """
        found = getsource(import_module(f"kjbod_guard.{self.module}"))
        return self.applied(found)

    def applied(self, source: str) -> str:
        """The same for this source."""
        if source.count(self.rule) != 1:
            raise ValueError(
                f"{self.name}: kjbod_guard.{self.module} has {self.rule!r} {source.count(self.rule)} times"
            )
        return source.replace(self.rule, self.broken)


MUTANTS: Final = (
    # Data: what a shutdown of a file system needs.
    Mutant(
        "a cut while the replica is in the ISR",
        "copies",
        "if observed.broker_id in placed.isr and placed.directory in lost:",
        "if False:",
    ),
    Mutant(
        "a cut without a look at copies", "deciding", "self.unheard(now) or self.need(path", "None and self.need(path"
    ),
    Mutant(
        "copies on suspected disks count",
        "copies",
        "if suspected is None or not suspected.has(directory):",
        "if True:",
    ),
    Mutant("copies on fenced brokers count", "copies", "or not its.active or", "or"),
    Mutant("copies in lost directories count", "copies", " or directory not in its.log_dirs:", ":"),
    Mutant("replicas without a directory are nowhere", "copies", "and placed.directory not in _ANYWHERE:", "and True:"),
    Mutant(
        "min.insync.replicas does not count",
        "copies",
        "elif found < observed.min_insync",
        "elif 0 and observed.min_insync",
    ),
    Mutant(
        "a cut that no eviction follows",
        "deciding",
        "return not any(why_no_eviction_follows(",
        "return not any(0 and why_no_eviction_follows(",
    ),
    Mutant(
        "a cut beside another guard's record",
        "deciding",
        "if self.is_after(self.offset(known, now, lost), now):",
        "if False:",
    ),
    # Availability.
    Mutant("the only copy may go", "copies", "if found == 0:", "if False:"),
    Mutant(
        "a needed copy is masked",
        "core",
        "needed=deciding.need(path, known, now).refusal if standing.means is Step.MASK else None",
        "needed=None",
    ),
    Mutant(
        "a mask stays over a disk that answers",
        "directory_steps",
        "over = facts.well or facts.answers or facts.needed is not None",
        "over = False",
    ),
    Mutant(
        "the last directory may go",
        "deciding",
        "last=registration is not None and lost.issuperset(registration.log_dirs)",
        "last=False",
    ),
    # Reversible first.
    Mutant("no patience", "deciding", "if stood_ms >= wait_ms:", "if True:"),
    Mutant(
        "no second look when it is written down", "core", "if not isinstance(task.effect, _IRREVERSIBLE):", "if True:"
    ),
    Mutant("a disk that answers is cut", "deciding", "outlived=disk.over or disk.kept", "outlived=None"),
    Mutant(
        "no witness beside the disk is needed",
        "deciding",
        "others_well=any(one.serves for one in others)",
        "others_well=True",
    ),
    # Budget and order.
    Mutant(
        "no budget",
        "suspects",
        "if (offset is None or one.offset < offset) and now_ms - one.seen_ms < AHEAD_MS",
        "if False",
    ),
    Mutant("a budget without losses", "suspects", "LOST_MS: Final = 60_000", "LOST_MS: Final = 0"),
    Mutant(
        "no record is needed",
        "core",
        "        if offset is None:\n            return False\n        if not evicting:",
        "        if not evicting:",
    ),
    Mutant("a record of another epoch counts", "suspecting", " or shown.epoch != epoch or", " or"),
    Mutant("records of earlier registrations count", "suspects", "and one.epoch in (None, its.epoch)", ""),
    Mutant(
        "a record counts for ever",
        "suspecting",
        "if now_ms - now.asked_ms > VALID_MS:\n        return None",
        "if False:\n        return None",
    ),
    # Blindness.
    Mutant(
        "acts without a controller",
        "deciding",
        "now.now_ms - now.answered_ms > FRESH_MS",
        "now.now_ms - now.answered_ms > 10**9",
    ),
    Mutant(
        "a fence without a controller",
        "budget",
        "case.now_ms - case.answered_ms > ANSWERED_MS",
        "case.now_ms - case.answered_ms > 10**9",
    ),
    # Proof, not lateness.
    Mutant(
        "a fence that leaves too few copies",
        "budget",
        "return need(observed, None, case.static_min_isr).refusal",
        "return None",
    ),
    Mutant(
        "fences at the same time",
        "budget",
        "if behind := why_behind(observed, case.offset, case.brokers_max, key, case.now_ms, fences=True):",
        "if behind := '':",
    ),
    Mutant(
        "a fence that takes the majority of the quorum",
        "deciding",
        "needed=None if quorum is None else majority.why_needed(quorum, self.site.node_id, now.now_ms)",
        "needed=None",
    ),
    Mutant("a second fence at once", "budget", "case.now_ms - case.last_fence_ms < FENCE_AGAIN_MS", "False"),
    # Evictions.
    Mutant(
        "evicted where the broker has files open",
        "deciding",
        "if disk is not None and all(one.errors for one in (disk, *_mixed_up_with(disk, known, now))):",
        "if True:",
    ),
    Mutant("evicted without copies", "budget", "if others == 0:", "if False:"),
    Mutant("evicted below min.insync.replicas", "budget", "if others < wanted else None", "if False else None"),
    Mutant(
        "evicted during a reassignment",
        "budget",
        '    if placed.adding or placed.removing:\n        return "being',
        '    if False:\n        return "being',
    ),
    Mutant("lists as they were when they were written down", "core", "if may.get(key) == lists}", "if True}"),
    # Life of a guard.
    Mutant(
        "a record of another start is taken over",
        "deciding",
        "or shown.epoch != registration.epoch:\n            return frozenset()",
        ":\n            return frozenset()",
    ),
    Mutant(
        "a cut is forgotten when the guard ends",
        "journal",
        'means=None if row["means"] is None else Step(row["means"]),',
        "means=None,",
    ),
    Mutant("a report is forgotten when the guard ends", "journal", "        plan=plan,\n", ""),
)
