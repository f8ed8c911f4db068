"""``scripts/universe --mutants``: whether random stories, or else tests of the guard, find each rule that is broken
on purpose (:mod:`tests.guard.mutants`).

Each mutant has a process of its own, in which the guard's module is the broken one: nothing on disk is changed.
"""

import contextlib
import importlib.abc
import importlib.util
import io
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from kjbod.errors import EXIT_FAILURE
from tests.guard.mutants import MUTANTS, Mutant

TESTS: Final = Path(__file__).parents[1] / "tests" / "guard"
FIRST_SEED: Final = 1
"""Of the stories, the same for each mutant."""
_SHOWN_CHARS: Final = 300


class _Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the broken module in the place of the guard's."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = f"kjbod_guard.{mutant.module}"

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        self._found = importlib.util.find_spec(name)
        assert self._found is not None
        return importlib.util.spec_from_loader(name, self, origin=self._found.origin)

    def exec_module(self, module: ModuleType) -> None:
        assert self._found is not None and self._found.origin is not None
        with open(self._found.origin, encoding="utf-8") as file:
            source = self._mutant.applied(file.read())
        exec(compile(source, self._found.origin, "exec"), module.__dict__)


def play_mutant(mutant: Mutant, lasting_s: float) -> str | None:
    """Play stories with a broken rule in this process, which has not imported the guard; what the first one shows that
    is not as it must be, None: none in this time."""
    sys.meta_path.insert(0, _Broken(mutant))
    from tests.guard.stories import plan, problems_of

    began_s, seed = time.monotonic(), FIRST_SEED
    while time.monotonic() - began_s < lasting_s:
        try:
            problems = problems_of(plan(seed))
        except Exception as error:  # noqa: BLE001  whatever a broken rule leads to, it is found
            problems = [repr(error)]
        if problems:
            return f"story {seed - FIRST_SEED + 1}: {problems[0][:_SHOWN_CHARS]}"
        seed += 1
    return None


class _FirstFailure:
    """The first test that fails, as a plugin of pytest."""

    found = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.found:
            self.found = report.nodeid


def test() -> str | None:
    """Run the tests of the guard that start nothing, with the rule that :func:`play_mutant` has broken in this process;
    the first one that fails, None: none does."""
    first = _FirstFailure()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(
            ["-q", "-x", "-n0", "-m", "not world", "--assert=plain", "-p", "no:cacheprovider", str(TESTS)],
            plugins=[first],
        )
    return f"test: {first.found}" if first.found else None


def play_all(lasting_s: int) -> int:
    """Play and test each mutant, and print whether it was found; the exit code."""
    left = 0
    for mutant in MUTANTS:
        command = [sys.executable, "-m", "scripts.universe_mutants", mutant.name, str(lasting_s)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told = (
            done.stdout.strip()
            or done.stderr.strip().rpartition("\n")[2]
            or f"by no story in {lasting_s} s, and no test"
        )
        left += done.returncode != 0
        print(f"{'left ' if done.returncode else 'found'}  {mutant.name}: {told}", flush=True)
    print(f"{len(MUTANTS) - left} of {len(MUTANTS)} broken rules found")
    return EXIT_FAILURE if left else 0


def main(argv: Sequence[str]) -> int:
    """Play the mutant of a name for so many seconds, then test it; the exit code: 0 when it was found."""
    name, lasting_s = argv
    found = play_mutant(next(one for one in MUTANTS if one.name == name), float(lasting_s)) or test()
    if found is not None:
        print(found)
    return EXIT_FAILURE if found is None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
