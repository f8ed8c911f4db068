"""How thorough the tests are, ``--depth quick | ci | deep``, and by which lot, ``--seed N``. A pytest plugin.

Whatever can be done more or less often takes its measure from here: examples of Hypothesis, random stories, hostile
frames, points of a sweep, cells of a matrix. ``quick`` is a developer's loop, ``ci`` is what each change must pass, and
``deep`` is everything: each point, each cell, and 25 times the examples; a night's work (``scripts/deep``).

Less than everything is a sample. It is drawn by one seed for the whole session, which each test that draws has in its
id (``[seed=4711]``), and ``--seed 4711`` draws the same again. First and last point, and those that are named because
they once were bugs, are in every sample, and each draw goes through all parts of what there is: some days of CI meet
every point. A complete run draws among the tests themselves, too: of those of the world that are dear, one in
:data:`DEAR_DRAWN` (:func:`undrawn`). Hypothesis has a seed of its own for each test, and prints with a failure what
brings it back.
"""

import dataclasses
import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import pytest
from hypothesis import HealthCheck, settings

from tests.stamp import ROOT, noted_durations, seedless, tree_of

Depth = Literal["quick", "ci", "deep"]
T = TypeVar("T")

_EXAMPLES = 100
_STEPS = 40
_SEEDS = 10_000
"""Drawn ones are short: people type them. A seed of any size can be asked for."""
_TIMEOUT_FACTOR_DEEP = 20
DEAR_S = 2
"""A test of the world that takes so long, by ``tests/durations.json``, is dear."""
DEAR_DRAWN = 6
"""Of so many dear tests that follow each other a complete run in CI has one."""
EVERY_RUN = "every_run"
"""Marker of dear tests that no complete run leaves out: what the README promises, and what has lost data once."""


@dataclasses.dataclass(slots=True)
class _Session:
    """What this session was asked for; what is imported outside of a session is as in CI."""

    depth: Depth = "ci"
    seed: int = 0
    began_s: float = 0
    tree: str | None = None


_session = _Session()


def at(*, quick: T, ci: T, deep: T) -> T:
    """What is given for the depth of this session."""
    return {"quick": quick, "ci": ci, "deep": deep}[_session.depth]


def examples(full: int) -> int:
    """How many examples, rounds or frames: a fifth of these in the quick form, three fifths in CI, which draws others
    each time, and 25 times as many in the deep one."""
    return at(quick=max(full // 5, 1), ci=max(full * 3 // 5, 1), deep=full * 25)


def steps(ci: int) -> int:
    """How many steps a story has at most: half of these in the quick form, half as many again in the deep one."""
    return at(quick=max(ci // 2, 1), ci=ci, deep=ci * 3 // 2)


def seeds(*, quick: int = 1, ci: int = 1, deep: int = 25) -> list[Any]:
    """Parameters ``seed``: so many, from the session's seed on."""
    count = at(quick=quick, ci=ci, deep=deep)
    return [pytest.param(seed, id=f"seed={seed}") for seed in range(_session.seed, _session.seed + count)]


def _drawn(points: Sequence[T], count: int, seed: int, salt: object) -> set[T]:
    """So many, or all if there are no more: one of each of ``count`` stretches of equal length."""
    count, total = min(count, len(points)), len(points)
    rng = random.Random(f"{seed}/{salt}")
    return {points[rng.randrange(at * total // count, (at + 1) * total // count)] for at in range(count)}


@dataclasses.dataclass(frozen=True)
class Points:
    """Part ``part`` of the ``parts`` of a sweep, one test each: all of its points, or a sample of ``count``.

    Attributes:
        seed: of the sample; None: all points.
    """

    part: int
    parts: int
    count: int
    seed: int | None

    def of(self, points: Iterable[T], always: Iterable[T] = ()) -> list[T]:
        """Those of this part, in their order. A sample has the first and the last of all and those of ``always``, in
        whichever part they lie, and so many others that there are ``count``; one at least."""
        everything = list(points)
        here = everything[self.part :: self.parts]
        if self.seed is None:
            return here
        must = {*always, *everything[:1], *everything[-1:]}
        chosen = {point for point in here if point in must}
        chosen |= _drawn([p for p in here if p not in must], max(self.count - len(chosen), 1), self.seed, self.part)
        return [point for point in here if point in chosen]

    def __str__(self) -> str:
        part = [f"{self.part + 1}-of-{self.parts}"] if self.parts > 1 else []
        return "-".join([*part, "all" if self.seed is None else f"seed={self.seed}"])


def sweep(ci: int, *, quick: int | None = None, parts: int = 1) -> list[Any]:
    """Parameters ``points``, for a sweep whose points are known when it runs: in the deep form they are all points, in
    the others this many of each part. ``quick``: a fifth of that if not given."""
    count = at(quick=max(ci // 5, 1) if quick is None else quick, ci=ci, deep=0)
    seed = None if _session.depth == "deep" else _session.seed
    made = [Points(part, parts, count, seed) for part in range(parts)]
    return [pytest.param(points, id=str(points)) for points in made]


def sample(points: Sequence[T], ci: int, *, quick: int | None = None, salt: str = "") -> list[T]:
    """Of points that are known before a test runs (cells of a matrix), in their order: all in the deep form, else so
    many. ``quick``: a fifth of ``ci`` if not given. ``salt``: where the same seed is to draw others elsewhere."""
    count = at(quick=max(ci // 5, 1) if quick is None else quick, ci=ci, deep=len(points))
    chosen = _drawn(points, count, _session.seed, salt)
    return [point for point in points if point in chosen]


def seeded(name: str) -> str:
    """The id of a test of something that was drawn by :func:`sample`."""
    return name if _session.depth == "deep" else f"{name}-seed={_session.seed}"


def only_deep(why: str) -> pytest.MarkDecorator:
    """Skips but in the deep form."""
    return pytest.mark.skipif(_session.depth != "deep", reason=f"{why}: --depth deep")


def undrawn(ids: Iterable[str], noted: Mapping[str, int]) -> set[str]:
    """Those of these tests that are dear, by the seconds ``noted``, and that this session's seed does not draw."""
    dear = sorted(one for one in ids if noted.get(seedless(one), 0) >= DEAR_S)
    return set(dear) - _drawn(dear, -(-len(dear) // DEAR_DRAWN), _session.seed, "dear tests")


# the plugin ----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("depth", "how thorough the tests are")
    group.addoption("--depth", choices=get_args(Depth), default="ci", help="quick, ci (default) or deep: everything")
    group.addoption("--seed", type=int, help="draw the samples that this seed draws; default: any")
    group.addoption("--depth-result", metavar="FILE", help="add a JSON line to FILE that says what came of it")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # A worker of xdist draws what its master draws: all must collect the same tests.
    given: int | None = getattr(config, "workerinput", {}).get("seed", config.option.seed)
    _session.began_s = time.monotonic()
    if config.getoption("depth_result") and not hasattr(config, "workerinput"):
        _session.tree = tree_of(ROOT)
    _session.depth = config.option.depth
    _session.seed = random.SystemRandom().randrange(_SEEDS) if given is None else given
    settings.register_profile(
        _session.depth,
        max_examples=examples(_EXAMPLES),
        stateful_step_count=steps(_STEPS),
        deadline=None,  # how long a machine under load takes to draw an example says nothing about the code
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile(_session.depth)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = _session.seed


def pytest_report_header() -> str:
    return f"depth: {_session.depth}, seed: {_session.seed}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What :mod:`scripts.deep_result` makes a page of. A worker of xdist has a terminal too, and tells its part."""
    path = config.getoption("depth_result")
    if path and not hasattr(config, "workerinput"):
        reports = {name: terminalreporter.getreports(name) for name in ("passed", "failed", "error", "skipped")}
        ids = {name: [report.nodeid for report in found] for name, found in reports.items()}
        told = {
            "seed": _session.seed,
            "tree": _session.tree,
            "seconds": time.monotonic() - _session.began_s,
            "passed": ids["passed"],
            "failed": ids["failed"],
            "errors": ids["error"],
            "skipped": ids["skipped"],
            "reasons": [str(report.longrepr[2]) for report in reports["skipped"] if isinstance(report.longrepr, tuple)],
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


@pytest.hookimpl(trylast=True)  # tests have their markers by then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw among the dear tests of a complete run. In the deep form what does many times as much may take longer."""
    if _session.depth != "deep":
        if config.getoption("stamp") and not config.getoption("note_durations"):
            _leave_out(items)
        return
    for item in items:
        own = item.get_closest_marker("timeout")
        if seconds := own.args[0] if own else item.config.getini("timeout"):
            item.add_marker(pytest.mark.timeout(float(seconds) * _TIMEOUT_FACTOR_DEEP), append=False)


def _leave_out(items: Iterable[pytest.Item]) -> None:
    drawn_among = [
        item for item in items if item.get_closest_marker("world") and not item.get_closest_marker(EVERY_RUN)
    ]
    left_out = undrawn((item.nodeid for item in drawn_among), noted_durations())
    skip = pytest.mark.skip(reason="dear, and not drawn in this run: --depth deep runs all")
    for item in drawn_among:
        if item.nodeid in left_out:
            item.add_marker(skip, append=False)
