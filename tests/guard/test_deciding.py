"""What is decided about a directory that nobody can read any more, and about a broker whose threads are stuck."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.image import BrokerRegistration
from kjbod.metadata.records import RegisterBrokerRecord
from kjbod_agent.guard import broker_steps
from kjbod_agent.guard.deciding import Deciding, Seen
from kjbod_agent.guard.journal import Journal
from kjbod_agent.guard.ladder import Case, KafkaView, would
from kjbod_agent.guard.observing import Observed
from kjbod_agent.guard.prospects import Now, Prospects, Site
from kjbod_agent.health.evidence import Evidence, Verdict
from kjbod_agent.health.state import Cause, DirectoryHealth, Health

PATH, D1, D2 = "/mnt/d1", Uuid.of(5, 1), Uuid.of(5, 2)


def seen(*online: Uuid, known: Uuid | None, acts: bool = True) -> Seen:
    record = RegisterBrokerRecord(
        broker_id=1, incarnation_id=Uuid.of(9, 1), broker_epoch=5, end_points=(), features=(), log_dirs=online
    )
    observed = Observed(1, complete=True, registration=BrokerRegistration.of(record, 5))
    acting = SimpleNamespace(directory_id=lambda path: None if known is None else str(known))
    found: Any = SimpleNamespace(acting=acting) if acts else None
    return Seen(
        observed=observed, blind=None, unbound=None, holder=None, looked=True, ended_pid=None, acts=found, verdicts={}
    )


@pytest.mark.parametrize(
    ("now", "view"),
    [
        (seen(D2, known=D1), KafkaView.OFFLINE),
        (seen(D1, D2, known=D1), KafkaView.ONLINE),
        (seen(D2, known=None), KafkaView.UNKNOWN),
        (seen(D2, known=D1, acts=False), KafkaView.UNKNOWN),
    ],
)
def test_what_kafka_makes_of_an_unreadable_directory_is_known_by_the_id_that_a_guard_before_has_read(
    now: Seen, view: KafkaView
) -> None:
    config: Any = SimpleNamespace(log_dirs=(PATH,))
    watching: Any = SimpleNamespace(directory_id=lambda path: None)
    rest: Any = None
    assert Deciding(config, watching, rest, rest, rest, {}).view(PATH, now) is view


@pytest.mark.parametrize(
    ("errno", "call", "is_about_identity"),
    [
        ("ENOENT", "read of meta.properties", True),
        ("EACCES", "read of meta.properties", True),
        ("ESTALE", "directory.id in meta.properties", True),
        ("EIO", "read of meta.properties", False),
        ("EILSEQ", "comparison of meta.properties", False),
        ("ESTALE", "identity of /mnt/d1", False),
        ("ENOENT", "open of /mnt/d1", False),
    ],
)
def test_a_broker_that_works_on_without_meta_properties_is_not_in_doubt(
    errno: str, call: str, is_about_identity: bool
) -> None:
    verdict = Verdict(
        path=PATH,
        directory_id=str(D1),
        state=Health.FAILED,
        previous=Health.SUSPECT,
        cause=Cause.ERROR,
        evidence=Evidence(path=PATH, directory_id=str(D1), device="sda 8:0", errno=errno, call=call),
        at_ns=0,
    )
    assert verdict.is_about_identity is is_about_identity
    assert not replace(verdict, state=Health.SUSPECT).is_about_identity
    assert not replace(verdict, cause=Cause.HUNG).is_about_identity
    watching: Any = SimpleNamespace(entries={PATH: SimpleNamespace(reason=None)})
    monitor: Any = SimpleNamespace(health=lambda path: DirectoryHealth(health=Health.FAILED))
    rest: Any = None
    failed = Deciding(rest, watching, monitor, rest, rest, {}).failed
    assert failed({}) == [PATH]
    assert failed({PATH: verdict}) == ([] if is_about_identity else [PATH])


@pytest.mark.parametrize(
    ("second", "wanted"), [(Health.FAILED, None), (Health.SUSPECT, None), (Health.ONLINE, "stuck")]
)
def test_a_broker_with_stuck_threads_waits_with_its_disks_while_none_is_known_to_be_well(
    second: Health, wanted: str | None
) -> None:
    now = seen(D1, D2, known=D1)
    acting = SimpleNamespace(released=(), broker=broker_steps.Standing(), journal=Journal())
    acts: Any = SimpleNamespace(acting=acting, crippled=lambda holder: ("stuck", True), no_hand=None)
    config: Any = SimpleNamespace(log_dirs=(PATH, "/mnt/d2"), node_id=1)
    disks = [
        SimpleNamespace(path=path, health=DirectoryHealth(health=health, cause=Cause.HUNG))
        for path, health in zip(config.log_dirs, (Health.FAILED, second), strict=True)
    ]
    rest: Any = None
    monitor: Any = SimpleNamespace(status=lambda: disks)
    deciding = Deciding(config, rest, monitor, Prospects(Site()), rest, {})
    hung = Case(health=Health.FAILED, cause=Cause.HUNG, others_well=second is Health.ONLINE)
    at = Now(observed=now.observed, healthy=())
    facts = deciding.broker({PATH: (hung, would(hung))}, at, replace(now, acts=acts))
    assert (facts.wanted, facts.refusal) == (wanted, None)
    lasted = replace(hung, lasted=True)
    facts = deciding.broker({PATH: (lasted, would(lasted))}, at, replace(now, acts=acts))
    assert facts.wanted == "stuck" and facts.refusal is None


def failed(path: str) -> Verdict:
    return Verdict(
        path=path,
        directory_id=str(D1),
        state=Health.FAILED,
        previous=Health.SUSPECT,
        cause=Cause.HUNG,
        evidence=Evidence(path=path, directory_id=str(D1), device="sda 8:0", errno=None, call="open"),
        at_ns=0,
    )


def test_a_directory_that_only_the_broker_still_has_is_left_alone_and_is_no_disk_that_answers_for_another_one() -> None:
    paths = (PATH, "/mnt/d2")
    now = replace(
        seen(D1, D2, known=D1), is_kept=lambda path: path == PATH, verdicts={path: failed(path) for path in paths}
    )
    disks: list[Any] = [SimpleNamespace(path=path, freed_ms=None) for path in paths]
    watching: Any = SimpleNamespace(why_over=lambda *_: None)
    rest: Any = None
    deciding = Deciding(rest, watching, rest, rest, rest, {})
    mounts = "its mount is another one here and not for the broker, which has mounts of its own"
    assert [deciding._why_kept(disk, now) for disk in disks] == [mounts, None]
    assert [deciding._why_over(disk, now) for disk in disks] == [None, None]
    assert deciding._why_kept(disks[0], replace(now, verdicts={})) is None, "it has not failed"


CLAIMED = broker_steps.Standing(state=broker_steps.State.FENCING, claimed_ms=1)
SERVING = broker_steps.Standing(state=broker_steps.State.SERVING)


@pytest.mark.parametrize(
    ("standing", "fenced", "view", "wanted"),
    [
        (SERVING, False, KafkaView.ONLINE, "silent"),
        (SERVING, True, KafkaView.UNKNOWN, None),  # by somebody else: nobody waits for it
        (CLAIMED, True, KafkaView.ONLINE, "silent"),
    ],
)
def test_a_fence_that_the_guard_has_claimed_itself_does_not_speak_against_giving_the_broker_up(
    standing: broker_steps.Standing, fenced: bool, view: KafkaView, wanted: str | None
) -> None:
    before = seen(D1, known=D1)
    assert before.observed.registration is not None
    registration = replace(before.observed.registration, fenced=fenced)
    acting = SimpleNamespace(released=(), broker=standing, journal=Journal())
    acts: Any = SimpleNamespace(acting=acting, crippled=lambda holder: ("silent", False), no_hand=None)
    now = replace(before, observed=replace(before.observed, registration=registration), acts=acts)
    config: Any = SimpleNamespace(log_dirs=(PATH,), node_id=1)
    monitor: Any = SimpleNamespace(status=list)
    rest: Any = None
    deciding = Deciding(config, rest, monitor, Prospects(Site()), rest, {})
    assert deciding.view("/mnt/metadata", now) is view
    assert deciding.broker({}, Now(observed=now.observed, healthy=()), now).wanted == wanted


@pytest.mark.parametrize("unread", [False, True])
def test_a_directory_that_is_known_from_memory_alone_is_not_well_so_that_it_stays_released_and_evicted(
    unread: bool,
) -> None:
    acting = SimpleNamespace(
        directory_id=lambda path: None,
        journal=Journal(),
        evicting=SimpleNamespace(restorable=lambda directory_id: {}),
    )
    config: Any = SimpleNamespace(log_dirs=(PATH,))
    watching: Any = SimpleNamespace(
        directory_id=lambda path: D1,
        entries={PATH: SimpleNamespace(reason=None)},
        unread=frozenset([PATH] if unread else []),
    )
    monitor: Any = SimpleNamespace(health=lambda path: DirectoryHealth(health=Health.SUSPECT, cause=Cause.SILENT))
    rest: Any = None
    now = seen(D1, known=None)
    now = replace(now, acts=SimpleNamespace(acting=acting))  # type: ignore[arg-type]
    at = Now(observed=now.observed, healthy=())
    facts = Deciding(config, watching, monitor, Prospects(Site()), rest, {}).directory(PATH, {}, at, now)
    assert facts.well is not unread and facts.directory_id == str(D1)
