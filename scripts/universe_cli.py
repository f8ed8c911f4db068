"""``scripts/universe``: random stories of several guards (:mod:`tests.guard.stories`), one seed after the other.

Each story is played twice, with guards and without. One in which a rule of the guard is broken, or in which a partition
is not served that Kafka alone serves, is printed with the command that repeats it, and once more as short as it can be.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kjbod.errors import EXIT_FAILURE
from scripts.universe_mutants import play_all
from tests.guard.stories import plan, play, rule_of, shorten
from tests.guard.universe import Universe

_SHOWN_MAX: Final = 5
"""Broken stories that are shown in full; of others the seed and the rule."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_SEEDS: Final = 1_000_000


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d{0,5})([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: give a time as 30s, 10m or 2h")
    return int(found[1]) * _UNITS[found[2]]


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text}: a whole number")
    return int(text)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/universe",
        description="Random stories of several guards in correlated trouble, beside Kafka alone: real cores on one "
        "modelled log. Exit code 1 when a rule was broken.",
    )
    parser.add_argument("--for", dest="lasting_s", type=_seconds, metavar="TIME", help="30s, 10m, 2h (1m)")
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="break the rules of the guard, one at a time; each must be found by a story within TIME, or by a test",
    )
    parser.add_argument("--seed", type=_number, metavar="N", help="of the first story (by chance)")
    parser.add_argument("--stories", type=_number, metavar="N", help="how many (as many as time and steps allow)")
    parser.add_argument("--steps", type=_number, metavar="N", help="end when the cores have handled so many events")
    return parser.parse_args(argv)


@dataclass(slots=True)
class Count:
    """Number of stories and steps that were played."""

    stories: int = 0
    broken: int = 0
    steps: int = 0
    modelled_s: float = 0

    def add(self, *played: Universe) -> None:
        """Count universes that were played."""
        self.steps += sum(one.steps for one in played)
        self.modelled_s += sum(one.now_ms for one in played) / 1000


def _problem(seed: int, count: Count, *, shows: bool) -> str:
    """Play the story of a seed; what must not be in it, as text (empty: nothing)."""
    story = plan(seed)
    try:
        played = play(story)
    except Exception as error:  # noqa: BLE001  whatever fails in a guard or in the model has its seed
        return f"seed {seed}: error: {error!r}"
    count.add(played.alone, played.guarded)
    if not played.problems:
        if shows:
            print("\n".join([*story.lines(), *played.guarded.notes]))
        return ""
    return f"seed {seed}: {'; '.join(played.problems)}"


def _told(seed: int, problem: str) -> str:
    """The shortest story that breaks the rule as the one of a seed does, and its timeline."""
    rule = rule_of(problem.partition(": ")[2])
    shorter = shorten(plan(seed), rule)
    lines = [problem, "shortened:", *shorter.lines()]
    try:
        played = play(shorter)
    except Exception as error:  # noqa: BLE001
        return "\n".join([*lines, repr(error)])
    return "\n".join([*lines, *played.problems, *played.guarded.notes])


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options, began_s, cpu_s = arguments(argv), time.monotonic(), time.process_time()
    if options.mutants:
        return play_all(options.lasting_s or 60)
    first = random.SystemRandom().randrange(_SEEDS) if options.seed is None else options.seed
    bounded = options.stories is not None or options.steps is not None
    lasting_s = options.lasting_s or (float("inf") if bounded else 60)
    count = Count()
    while (
        time.monotonic() - began_s < lasting_s
        and (options.stories is None or count.stories < options.stories)
        and (options.steps is None or count.steps < options.steps)
    ):
        seed = first + count.stories
        if problem := _problem(seed, count, shows=options.stories == 1):
            count.broken += 1
            print(_told(seed, problem) if count.broken <= _SHOWN_MAX else problem)
            print(f"again: scripts/universe --seed {seed} --stories 1", flush=True)
        count.stories += 1
    took_s, cpu_s = time.monotonic() - began_s, max(time.process_time() - cpu_s, 0.001)
    print(
        f"{count.stories} {'story' if count.stories == 1 else 'stories'} from seed {first}, {count.broken} broken; "
        f"{count.steps} steps, {count.modelled_s / 3600:.1f} h in {took_s:.0f} s ({cpu_s:.0f} s of a processor), "
        f"{count.modelled_s / cpu_s:.0f} times real time"
    )
    return EXIT_FAILURE if count.broken else 0


if __name__ == "__main__":
    sys.exit(main())
