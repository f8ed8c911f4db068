"""A broker that is about to start: what it waits for, what is done meanwhile, and that it is kept down by nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from kjbod.cli import main as cli
from kjbod_guard import directory_steps, gate, gate_asking
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.directory_steps import RELEASED, Facts, Standing
from kjbod_guard.effects import Cut, Mask
from kjbod_guard.gate import State, judge, look
from kjbod_guard.ladder import NOTHING, Case, KafkaView, Step, Would, before_start
from kjbod_host.health.state import Cause, Health
from tests.guard.test_action_runner import CUT_AFTER_MS, PATH, Guard, SetClock, World
from tests.guard.test_bad_input import BROKER
from tests.guard.test_copies import D2, EPOCH, NODE

HUNG = Case(health=Health.FAILED, cause=Cause.HUNG)
CUT, MASK = Would(Step.CUT, "alone"), Would(Step.MASK, "it carries more")


@pytest.mark.parametrize(
    ("case", "step", "reason"),
    [
        (Case(health=Health.SLOW), Step.NOTHING, ""),
        (HUNG, Step.CUT, "its ext4 carries nothing"),
        (replace(HUNG, cause=Cause.SILENT), Step.CUT, "its ext4"),
        (replace(HUNG, unbound="no broker runs", kafka=KafkaView.OFFLINE), Step.CUT, "its ext4"),
        (replace(HUNG, file_system="btrfs"), Step.MASK, "btrfs cannot be cut"),
        (replace(HUNG, patience="not before 3 s"), Step.WAIT, "not before 3 s"),
        (replace(HUNG, patience="not before 3 s", cause=Cause.HELD), Step.WAIT, "not before 3 s"),
        (replace(HUNG, needed="t-0 has no other copy"), Step.NOTHING, "t-0 has no other copy"),
        (replace(HUNG, needed="t-0 has no other copy", file_system="btrfs"), Step.NOTHING, "t-0 has no other copy"),
        (replace(HUNG, behind="broker 2 comes first"), Step.WAIT, "broker 2 comes first"),
        (replace(HUNG, behind="broker 2 comes first", cause=Cause.HELD), Step.WAIT, "broker 2 comes first"),
        (replace(HUNG, in_sync="still in the ISR"), Step.WAIT, "still in the ISR"),
        (replace(HUNG, in_sync="still in the ISR", file_system="btrfs"), Step.MASK, "btrfs cannot be cut"),
        (replace(HUNG, cause=Cause.HELD), Step.MASK, "frozen"),
        (replace(HUNG, cause=Cause.ERROR), Step.NOTHING, "which Kafka meets by itself"),
        (replace(HUNG, cause=Cause.MOUNT), Step.NOTHING, "which Kafka meets by itself"),
        (replace(HUNG, outlived="it answers again"), Step.NOTHING, "it answers again"),
        (replace(HUNG, kafka=KafkaView.UNKNOWN), Step.NOTHING, "the metadata are not followed"),
        (replace(HUNG, others_well=False), Step.WAIT, "no other disk"),
        (replace(HUNG, holds_metadata=True), Step.NOTHING, "the metadata log lies there"),
    ],
)
def test_before_a_broker_starts_only_a_disk_that_hangs_is_cut_or_masked(case: Case, step: Step, reason: str) -> None:
    found = before_start(case)
    assert found.step is step and reason in found.reason


@pytest.mark.parametrize(
    ("standing", "would", "masks", "effect"),
    [
        (Standing(), CUT, False, Cut(PATH)),
        (Standing(state=directory_steps.State.OFFLINE), CUT, False, Cut(PATH)),
        (Standing(), MASK, True, Mask(PATH)),
        (Standing(), MASK, False, None),
        (Standing(tried=frozenset({Step.CUT})), CUT, True, Mask(PATH)),
        (Standing(tried=frozenset({Step.CUT, Step.MASK})), CUT, True, None),
        (Standing(means=Step.CUT), CUT, True, None),
        (Standing(under_way=Cut(PATH)), CUT, True, None),
        (Standing(state=directory_steps.State.LEFT, reason=RELEASED), CUT, True, None),
        (Standing(), NOTHING, True, None),
    ],
)
def test_nothing_is_done_twice_or_where_it_does_not_reach_or_to_what_was_released(
    standing: Standing, would: Would, masks: bool, effect: object
) -> None:
    facts = Facts(path=PATH, directory_id=None, gate=would, present=False, well=False)
    move = directory_steps.before_start(standing, facts, 0, masks=masks)
    assert move.effect == effect and move.standing.under_way == (effect or standing.under_way)
    may_not = directory_steps.before_start(standing, replace(facts, may=False), 0, masks=masks)
    assert may_not.effect is None and may_not.standing == standing


@pytest.mark.parametrize(
    ("health", "silent_ms", "standing", "would", "masks", "state"),
    [
        (Health.ONLINE, None, Standing(), NOTHING, False, State.WELL),
        (Health.ONLINE, 5, Standing(), NOTHING, False, State.WELL),
        (Health.FULL, None, Standing(), NOTHING, False, State.WELL),
        (Health.ONLINE, gate.SILENT_MS, Standing(), NOTHING, False, State.WAIT),
        (Health.SUSPECT, None, Standing(), NOTHING, False, State.WAIT),
        (Health.HELD, None, Standing(), NOTHING, False, State.WAIT),
        (Health.FAILED, None, None, NOTHING, False, State.WAIT),
        (Health.FAILED, None, Standing(), CUT, False, State.WAIT),
        (Health.FAILED, None, Standing(), Would(Step.WAIT, "no other"), False, State.WAIT),
        (Health.FAILED, None, Standing(under_way=Cut(PATH)), CUT, False, State.WAIT),
        (Health.FAILED, None, Standing(means=Step.CUT), CUT, False, State.CUT),
        (None, None, Standing(means=Step.CUT), NOTHING, False, State.CUT),
        (Health.ONLINE, None, Standing(means=Step.CUT), NOTHING, False, State.WELL),
        (Health.ONLINE, None, Standing(means=Step.MASK), NOTHING, True, State.MASKED),
        (Health.FAILED, None, Standing(), MASK, True, State.WAIT),
        (Health.FAILED, None, Standing(), MASK, False, State.LEFT),
        (Health.FAILED, None, Standing(), NOTHING, True, State.LEFT),
        (Health.FAILED, None, Standing(tried=frozenset({Step.CUT}), reason="no"), CUT, True, State.WAIT),
        (Health.FAILED, None, Standing(tried=frozenset({Step.CUT, Step.MASK}), reason="no"), CUT, True, State.LEFT),
        (Health.FAILED, None, Standing(state=directory_steps.State.LEFT, reason=RELEASED), CUT, True, State.LEFT),
        (None, None, Standing(), NOTHING, True, State.LEFT),
    ],
)
def test_a_broker_waits_for_what_is_in_doubt_or_about_to_be_done_and_for_nothing_else(
    health: Health | None, silent_ms: int | None, standing: Standing | None, would: Would, masks: bool, state: State
) -> None:
    found = look(
        PATH, health=health, silent_ms=silent_ms, unwatched="EACCES", standing=standing, would=would, masks=masks
    )
    assert found.state is state
    assert found.reason or state in (State.WELL, State.CUT, State.MASKED)


def answer(*found: gate.Look, mode: str = "act") -> dict[str, Any]:
    return {"mode": mode, "directories": [asdict(one) for one in found]}


def test_each_directory_that_is_not_well_is_named_in_one_line() -> None:
    looks = [gate.Look(f"/mnt/{state}", state, "why") for state in State]
    found = judge(answer(*looks), {"/mnt/masked"})
    assert found.waits
    assert found.lines == [
        "/mnt/cut is cut: the broker starts without it",
        "/mnt/masked is masked: the broker starts without it",
        "/mnt/wait is neither well nor cut nor masked (why): the broker may hang there: see kjbod status",
        "/mnt/left is left as it is (why): the broker may hang or start without it: see kjbod status",
    ]
    unseen = judge(answer(gate.Look("/mnt/d1", State.MASKED)), ())
    assert not unseen.waits and "masked, and not for this broker" in unseen.lines[0]
    assert judge(answer(gate.Look("/mnt/d1", State.WELL)), ()) == gate.Judgement(False, [])


def test_a_guard_that_observes_is_not_waited_for() -> None:
    found = judge(answer(gate.Look("/mnt/d1", State.WAIT, "hung"), mode="observe"), ())
    assert found == gate.Judgement(False, ["the guard only observes: the broker starts, whatever its disks do"])


def test_a_guard_that_watches_nothing_yet_is_waited_for() -> None:
    found = judge(answer(), ())
    assert found.waits and "watches no directory yet" in found.lines[0]


class Answering:
    """A guard that gives these answers, one after the other, the last one again and again."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), 0

    def call(self, operation: str, **arguments: object) -> object:
        assert operation == gate_asking.OPERATION and arguments["mounts"]
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def ask(guard: Any, timeout_ms: int | None = None) -> list[str]:
    clock = SetClock()

    def sleep(seconds: float) -> None:
        clock.ms += int(seconds * 1000)

    return gate_asking.ask(lambda silence_ms: guard, timeout_ms, clock=clock, sleep=sleep)


def test_a_guard_is_asked_until_nothing_is_waited_for() -> None:
    wait = answer(gate.Look(PATH, State.WAIT, "cut is under way"))
    guard = Answering(wait, wait, answer(gate.Look(PATH, State.CUT)))
    assert ask(guard) == [f"{PATH} is cut: the broker starts without it"] and guard.asked == 3


def test_a_broker_is_not_kept_down_when_nothing_is_done_in_time_or_nobody_knows_the_question() -> None:
    guard = Answering(answer(gate.Look(PATH, State.WAIT, "no other disk is well")))
    (line,) = ask(guard)
    assert line.startswith(f"{PATH} is neither well nor cut nor masked (no other disk is well)")
    assert guard.asked == gate.TIMEOUT_MS // gate.AGAIN_MS
    assert len(ask(guard, 0)) == 1 and guard.asked == gate.TIMEOUT_MS // gate.AGAIN_MS + 1
    (line,) = ask(Answering({"mode": "act"}))
    assert "of another form" in line


def test_where_no_guard_runs_the_broker_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"{BROKER}kjbod.state.dir={tmp_path}\n")
    assert cli.run(["guard", "check", "--gate", "-c", str(config)]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert "and the broker starts all the same: no guard answers at" in said.err
    assert cli.run(["guard", "check", "--timeout-ms", "5", "-c", str(config)]) == 2
    assert cli.run(["guard", "check", "--gate", "--json", "-c", str(config)]) == 2


def starting(*, hung_ms: int = CUT_AFTER_MS, **settings: Any) -> World:
    """A broker that was stopped, and is about to start beside a disk that has hung for so long."""
    world = World(pid=None, **settings)
    world.be_fenced()
    world.clock.ms += hung_ms
    return world


async def begin(guard: Guard, *, masks: bool = True, times: int = 4) -> Mapping[str, Would]:
    """Ask as a broker does that is about to start; the last answer."""
    for _ in range(times):
        found = guard.acting.before_start(masks=masks)
        await guard.finish()
        await guard.run(gate.AGAIN_MS)
    return found


async def test_a_disk_that_hangs_is_cut_for_a_broker_that_is_about_to_start_and_written_down_before() -> None:
    world = starting()
    guard = Guard(world)
    await begin(guard)
    assert world.deeds == world.audit == ["suspect", "cut"] and guard.standing.means is Step.CUT
    # The broker starts without it: nobody waits for what lies there.
    world.pid = 8
    world.register(NODE, EPOCH + 1, D2)
    await guard.run(10_000)
    assert world.acts == ["cut"] and guard.standing.state is directory_steps.State.OFFLINE
    assert NODE not in world.image.suspects


async def test_no_record_is_written_for_a_broker_that_does_not_start() -> None:
    world = starting()
    guard = Guard(world)
    await guard.run(10_000)
    assert world.deeds == []
    world.cannot = {"cut": Done(outcome=Outcome.REFUSED, reason="no helper")}
    await begin(guard, masks=False)
    await guard.run(10_000)
    assert world.deeds == ["suspect", "cut", "trust"], "and it is removed when nobody asks any more"


async def test_while_a_broker_runs_the_gate_does_nothing() -> None:
    world = World()
    found = await begin(Guard(world))
    assert world.acts == [] and found[PATH] == NOTHING


async def test_a_broker_that_is_in_sync_still_is_waited_for_until_the_controllers_have_fenced_it() -> None:
    world = World(pid=None)
    world.clock.ms += CUT_AFTER_MS
    guard = Guard(world)
    found = await begin(guard)
    assert world.acts == [] and found[PATH].step is Step.WAIT
    assert found[PATH].reason == "the metadata still have the replica here in the ISR of 3 partitions (t-0 is one)"
    world.be_fenced()
    await begin(guard)
    assert world.acts == ["cut"]


async def test_a_disk_that_has_not_hung_for_long_enough_is_waited_for() -> None:
    world = starting(hung_ms=CUT_AFTER_MS - 1_500)
    guard = Guard(world)
    found = await begin(guard)
    assert world.acts == [] and found[PATH].step is Step.WAIT and "before 3 s" in found[PATH].reason
    await begin(guard)
    assert world.acts == ["cut"]


async def test_a_disk_that_cannot_be_cut_is_masked_and_then_left() -> None:
    no = Done(outcome=Outcome.REFUSED, reason="no helper")
    world = starting(cannot={"cut": no, "mask": no})
    guard = Guard(world)
    await begin(guard, times=8)
    assert world.acts == ["cut", "mask"] and guard.standing.reason == "no helper"


async def test_a_mask_that_the_broker_would_not_see_is_not_put_over_a_directory() -> None:
    world = starting(file_system="btrfs")
    guard = Guard(world)
    await begin(guard, masks=False)
    assert world.acts == []
    await begin(guard)
    assert world.acts == ["mask"]


async def test_a_disk_that_has_answered_while_its_cut_was_written_down_is_left_alone() -> None:
    world = starting()
    world.meanwhile["cut"] = lambda: setattr(world, "answers", True)
    guard = Guard(world)
    await begin(guard)
    assert world.acts == [] and world.trouble[0].startswith("cut: recovered: ")
    assert guard.standing.under_way is None and guard.standing.state is directory_steps.State.WELL
