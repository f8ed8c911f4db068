"""A broker that is about to start: what it waits for, what is done meanwhile, and that it is kept down by nothing."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli import main as cli
from kjbod_agent.guard import directory_steps, gate, gate_asking
from kjbod_agent.guard.directory_steps import RELEASED, Facts, Standing
from kjbod_agent.guard.effects import Cut, Mask
from kjbod_agent.guard.gate import State, judge, look
from kjbod_agent.guard.ladder import NOTHING, Case, KafkaView, Step, Would, before_start
from kjbod_agent.guard.means import Done, Outcome
from kjbod_agent.health.state import Cause, Health
from tests.guard.test_acting import PATH, Guard, SetClock, World
from tests.guard.test_bad_input import BROKER

HUNG = Case(health=Health.FAILED, cause=Cause.HUNG)
CUT, MASK = Would(Step.CUT, "alone"), Would(Step.MASK, "it carries more")


@pytest.mark.parametrize(
    ("case", "step", "reason"),
    [
        (Case(health=Health.SLOW), Step.NOTHING, ""),
        (HUNG, Step.CUT, "its ext4 carries nothing"),
        (replace(HUNG, cause=Cause.SILENT), Step.CUT, "its ext4"),
        (replace(HUNG, unbound="no broker runs", kafka=KafkaView.OFFLINE), Step.CUT, "its ext4"),
        (replace(HUNG, sole_copies=1), Step.MASK, "the only replica in sync"),
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
    assert "and the broker starts all the same: no agent answers at" in said.err
    assert cli.run(["guard", "check", "--timeout-ms", "5", "-c", str(config)]) == 2
    assert cli.run(["guard", "check", "--gate", "--json", "-c", str(config)]) == 2


class Starting(World):
    """A broker that is about to start beside a disk that hangs."""

    gate: Would = CUT

    def facts(self, acting: Any) -> dict[str, Facts]:
        facts = super().facts(acting)[PATH]
        return {PATH: replace(facts, gate=NOTHING if self.pid else self.gate)}


async def begin(world: World, *, masks: bool = True) -> Guard:
    guard = Guard(world)
    guard.acting.before_start(masks=masks)
    while guard.work:
        await guard.work.pop(0)
    return guard


async def test_what_hangs_is_cut_for_a_broker_that_is_about_to_start_and_written_down_before() -> None:
    world = Starting(pid=None)
    guard = await begin(world)
    assert world.deeds == ["cut"] == world.audit
    guard.acting.before_start(masks=True)
    assert not guard.work and guard.acting.standing(PATH).means is Step.CUT


async def test_while_a_broker_runs_the_gate_does_nothing() -> None:
    world = Starting()
    await begin(world)
    assert world.deeds == []


async def test_a_disk_that_cannot_be_cut_is_masked_and_then_left() -> None:
    no = Done(outcome=Outcome.REFUSED, reason="no hand")
    world = Starting(pid=None, cannot={"cut": no, "mask": no})
    guard = await begin(world)
    for _ in range(3):
        guard.acting.before_start(masks=True)
        while guard.work:
            await guard.work.pop(0)
    assert world.deeds == ["cut", "mask"] and guard.acting.standing(PATH).reason == "no hand"
    guard.close()


async def test_what_has_answered_while_it_was_written_down_is_left_alone() -> None:
    world = Starting(pid=None)
    guard = Guard(world)
    guard.acting.before_start(masks=True)
    world.gate = NOTHING
    while guard.work:
        await guard.work.pop(0)
    assert world.deeds == [] and any("not any more" in line for line in world.audit)
    assert guard.acting.standing(PATH).under_way is None
