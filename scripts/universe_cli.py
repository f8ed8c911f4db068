"""``scripts/universe``: random stories of several guards (:mod:`tests.guard.test_universe`), one seed after the other.

Each story is played twice, with guards and without. One in which a rule of the guard is broken, or in which a partition
is not served that Kafka alone serves, is printed with the command that repeats it.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Sequence
from typing import Final

from kjbod.errors import EXIT_FAILURE
from scripts.universe_mutants import play_all
from tests.guard.test_universe import compare, plan
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
    parser.add_argument("--for", dest="lasting_s", type=_seconds, default=60, metavar="TIME", help="30s, 10m, 2h (1m)")
    parser.add_argument(
        "--mutants",
        action="store_true",
        help="break the rules of the guard, one at a time; each must be found by a story within TIME, or by a test",
    )
    parser.add_argument("--seed", type=_number, metavar="N", help="of the first story (by chance)")
    parser.add_argument("--stories", type=_number, metavar="N", help="how many (as many as the time allows)")
    return parser.parse_args(argv)


def _told(seed: int) -> tuple[str, list[Universe]]:
    """Play the story of a seed. Returns the broken rules as text (empty: none) and the universes that were played."""
    settings, story = plan(seed)
    try:
        return "", list(compare(seed, story, **settings))
    except AssertionError as error:
        return str(error), []


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options, began_s = arguments(argv), time.monotonic()
    if options.mutants:
        return play_all(options.lasting_s)
    first = random.SystemRandom().randrange(_SEEDS) if options.seed is None else options.seed
    count, broken, modelled_s = 0, 0, 0.0
    while count < options.stories if options.stories is not None else time.monotonic() - began_s < options.lasting_s:
        problem, played = _told(first + count)
        modelled_s += sum(one.now_ms for one in played) / 1000
        if problem:
            broken += 1
            print(problem if broken <= _SHOWN_MAX else problem.partition("\n")[0])
            print(f"again: scripts/universe --seed {first + count} --stories 1", flush=True)
        elif options.stories == 1:
            print("\n".join(played[1].notes))
        count += 1
    took_s = max(time.monotonic() - began_s, 0.001)
    print(
        f"{count} {'story' if count == 1 else 'stories'} from seed {first}, {broken} broken; "
        f"{modelled_s / 3600:.1f} h in {took_s:.0f} s, {modelled_s / took_s:.0f} times real time"
    )
    return EXIT_FAILURE if broken else 0


if __name__ == "__main__":
    sys.exit(main())
