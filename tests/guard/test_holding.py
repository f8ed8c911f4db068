"""Which log directories the helper holds open, and when it lets go of them."""

from collections.abc import Mapping

from kjbod_guard.actions import Done, Outcome
from kjbod_guard.directory_steps import RELEASED, Standing, State
from kjbod_guard.helper_link import Frozen
from kjbod_guard.holding import AGAIN_MS, Holding
from kjbod_guard.ladder import Step
from tests.guard.test_action_runner import SetClock

PATH, OTHER = "/mnt/d1", "/mnt/d2"
HELD, FREE = Frozen(None, None, None, False), Frozen("let go", None, None, False)
DONE = Done(outcome=Outcome.DONE)
REFUSED = Done(outcome=Outcome.REFUSED, reason="it leads to /usr")
CUT = Standing(state=State.CUT, means=Step.CUT)


class Host:
    """A helper, a broker and two disks."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.directories: Mapping[str, Frozen] = {PATH: HELD, OTHER: HELD}
        self.clock = SetClock()
        self.deeds: list[str] = []
        self.told: list[tuple[str, bool, str]] = []
        self.well = {PATH, OTHER}
        self.bound = True
        self.answer = DONE
        self.standings: dict[str, Standing] = {}
        self.holding = Holding(
            self,
            standing=lambda path: self.standings.get(path, Standing()),
            well=lambda: self.well,
            bound=lambda: self.bound,
            told=lambda path, held, reason: self.told.append((path, held, reason)),
            clock=self.clock,
        )

    async def let_go(self, directory: str) -> Done:
        self.deeds.append(f"let go {directory}")
        self.directories = {**self.directories, directory: FREE}
        return DONE

    async def freeze(self, directory: str) -> Done:
        self.deeds.append(f"freeze {directory}")
        if self.answer is DONE:
            self.directories = {**self.directories, directory: HELD}
        return self.answer

    async def looks(self, count: int = 3) -> list[str]:
        for _ in range(count):
            await self.holding.look()
        deeds, self.deeds = self.deeds, []
        return deeds


async def test_a_disk_that_was_cut_is_let_go_when_kafka_has_it_offline_and_not_before() -> None:
    host = Host()
    host.well = {OTHER}
    for standing in (Standing(), CUT, Standing(state=State.REPORTING, means=Step.CUT), Standing(state=State.OFFLINE)):
        host.standings[PATH] = standing
        assert await host.looks() == []
    host.standings[PATH] = Standing(state=State.EVICTED, means=Step.CUT)
    assert await host.looks() == [f"let go {PATH}"]


async def test_a_disk_that_is_well_again_is_frozen_when_the_broker_runs_with_it() -> None:
    host = Host()
    host.well, host.standings[PATH] = {OTHER}, Standing(state=State.OFFLINE, means=Step.CUT)
    assert await host.looks() == [f"let go {PATH}"]
    host.well, host.bound = {PATH, OTHER}, False
    host.holding.watched_anew(PATH)
    assert await host.looks() == []
    host.bound = True
    assert await host.looks() == [f"freeze {PATH}"]
    assert host.told == [(PATH, False, ""), (PATH, True, "")]


async def test_another_disk_at_the_path_is_taken_in_the_place_of_the_one_that_is_held() -> None:
    host = Host()
    host.holding.watched_anew(PATH)
    assert await host.looks() == [f"let go {PATH}", f"freeze {PATH}"]


async def test_a_released_directory_is_let_go_unless_it_is_well_and_the_broker_runs() -> None:
    host = Host()
    assert await host.holding.let_go(PATH) == "it is well, and the broker runs"
    host.bound = False
    assert await host.holding.let_go(PATH) is None
    assert await host.looks() == [f"let go {PATH}"]
    host.bound, host.well = True, set()
    host.standings[OTHER] = Standing(state=State.LEFT, reason=RELEASED)
    assert await host.looks() == [f"let go {OTHER}"], "also without that somebody waits for it"


async def test_what_the_hand_does_not_take_is_told_once_and_asked_for_again_later() -> None:
    host = Host()
    host.directories, host.answer = {PATH: FREE}, REFUSED
    assert await host.looks() == [f"freeze {PATH}"]
    host.clock.ms += AGAIN_MS
    assert await host.looks() == [f"freeze {PATH}"]
    assert host.told == [(PATH, False, "it leads to /usr")]
    host.problem = "it has died"
    host.clock.ms += AGAIN_MS
    assert await host.looks() == []
