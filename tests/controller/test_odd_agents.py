"""Odd agents against rules=kafka: a script that was run against a real 4.3.1 controller; answers and records compared.

``odd-agents.json`` has, per case, the answer and the records of the real controller. Records are compared as one stream
over the whole script, since a record that was written late may stand in the next case's entry. :data:`DIFFERENT` names
what differs, and why.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, ZERO, Uuid
from kjbod.metadata.dump import record_json
from kjbod.wire.messages import (
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    UnregisterBrokerRequest,
)
from kjbod_controller_stub.rules import KAFKA
from tests.controller.test_topics import by_hand
from tests.controller.world import FEATURES, World, errors

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data/odd-agents.json").read_text())

DIFFERENT = {
    109: "a replica by hand on a broker whose directories are all cordoned is refused since 4.4",
    137: "a listener with port 0 makes the real controller resign; here it is refused",
    138: "so does an empty host",
    143: "so does an unknown security protocol",
}
ONLY_THE_ANSWER = {
    108,  # placed at random
    109,
    *range(137, 147),
}
"""Cases whose records are not compared; the answer is, where the case is not in :data:`DIFFERENT`."""
SAMPLED = {134, 136}
"""Cases of which the file has the first records only, of 2,300 in the order of random ids: ours has to have them."""

D = [
    Uuid.parse(text)
    for text in ("A0dNJFjnd6CYT_br8r63yQ", "gHKRQHnwMPEzY7u18Lgxow", "2d5GrpmWWmeUzJ0FIROMOQ", "6OCZqA8lbzXB34xG8YEKwQ")
]
D11 = (Uuid.parse("X1KcrmzoCPDaZiXk3G1MGQ"), Uuid.parse("uRgoA_JmT75nnqaTDJUydw"))
D12 = Uuid.parse("uuyMk3yy3qm--Thd970tdA")
Step = tuple[int, Callable[[], Any]]


def feature_ranges(**changed: tuple[int, int] | None) -> tuple[BrokerRegistrationRequestFeature, ...]:
    """The usual features, some changed or (None) left out; names with _ for dots."""
    ranges: dict[str, tuple[int, int] | None] = {
        f.name: (f.min_supported_version, f.max_supported_version) for f in FEATURES
    }
    ranges |= {name.replace("_", "."): value for name, value in changed.items()}
    return tuple(
        BrokerRegistrationRequestFeature(name=name, min_supported_version=r[0], max_supported_version=r[1])
        for name, r in ranges.items()
        if r is not None
    )


def listener(host: str = "127.0.0.1", port: int = 1, protocol: int = 0) -> BrokerRegistrationRequestListener:
    return BrokerRegistrationRequestListener(name="PLAINTEXT", host=host, port=port, security_protocol=protocol)


def golden_dirs(case: int) -> tuple[Uuid, ...]:
    """The directories that the record of a case has."""
    return tuple(Uuid.parse(text) for text in CASES[case]["records"][0]["data"]["logDirs"])


def registrations(w: World) -> Iterator[Step]:
    yield 12, lambda: w.register(10, tuple(D[:3]), cluster_id="wrong-cluster-id")
    yield 13, lambda: w.register(10, ())
    for case, number in ((14, 0), (15, 1), (16, 2), (17, 99)):
        yield case, partial(w.register, 10, (Uuid.of(0, number),))
    yield 18, lambda: w.register(70, (Uuid.of(0, 100),))
    yield 19, lambda: w.register(10, (D[0], D[0]))
    left_out = ("metadata_version", "kraft_version", "transaction_version", "group_version")
    for case, name in enumerate(left_out, start=20):
        yield case, partial(w.register, 10, tuple(D[:3]), features=feature_ranges(**{name: None}))
    yield 24, lambda: w.register(10, tuple(D[:3]), features=feature_ranges(eligible_leader_replicas_version=None))
    yield 25, lambda: w.register(10, tuple(D[:3]), features=feature_ranges(share_version=None))
    yield 26, lambda: w.register(10, tuple(D[:3]), features=feature_ranges(streams_version=None))
    yield 27, lambda: w.register(10, tuple(D[:3]), features=feature_ranges(metadata_version=(7, 29)))
    yield 28, lambda: w.register(10, tuple(D[:3]), features=feature_ranges(metadata_version=(31, 40)))
    yield 29, lambda: w.register(71, golden_dirs(29), features=feature_ranges(metadata_version=(1, 99)))
    yield 30, lambda: w.register(72, golden_dirs(30), features=feature_ranges(foo_version=(0, 3)))
    yield 31, lambda: w.register(10, tuple(D[:3]), features=feature_ranges(group_version=(2, 1)))
    yield 32, lambda: w.register(10, tuple(D[:3]), features=())
    yield 33, lambda: w.register(73, golden_dirs(33))
    yield 34, lambda: w.register(74, golden_dirs(34))
    yield 35, lambda: w.register(75, ())
    yield 36, lambda: w.register(76, ())
    yield 37, lambda: w.register(77, golden_dirs(37), listeners=())
    yield 38, lambda: w.register(78, golden_dirs(38), listeners=(listener("a"), listener("b", 2)))
    yield 39, lambda: w.register(10, (D[2], D[0], D[1]))
    yield 40, lambda: w.register(10, (D[2], D[0], D[1]))
    yield 41, lambda: w.register(10, tuple(D[:3]), number=1)


def lives(w: World) -> Iterator[Step]:
    epoch = w.broker(10).epoch
    yield 42, lambda: w.beat(10, offset=0, fence=True)
    yield 43, lambda: w.beat(10, offset=0)
    yield 44, lambda: w.beat(10, offset=epoch - 1)
    yield 45, lambda: w.beat(10, offset=epoch, fence=True)
    yield 46, lambda: w.beat(10, epoch=epoch - 1)
    yield 47, lambda: w.beat(10, epoch=epoch + 1)
    yield 48, lambda: w.beat(55, epoch=5)
    yield 49, lambda: w.beat(10, offset=epoch)
    yield 50, lambda: w.beat(10)
    yield 51, lambda: w.beat(10, fence=True)
    yield 52, lambda: w.beat(10)
    yield 53, lambda: w.register(10, tuple(D[:3]), number=2)
    yield 54, lambda: w.register(10, tuple(D[:3]), number=1)
    yield 55, lambda: w.register(10, tuple(D), number=1)
    yield 56, lambda: w.register(10, tuple(D[:3]), number=1)
    yield 57, lambda: w.register(11, (Uuid.of(6, 6), D[1]))
    yield 58, lambda: w.register(11, D11)
    yield 59, lambda: w.beat(11)
    yield 60, lambda: w.register(12, (D12,))
    yield 61, lambda: w.beat(12)


def assignments(w: World) -> Iterator[Step]:
    yield 62, lambda: w.create("t", *[(10, 11)] * 6) and None
    yield 63, lambda: w.create("s", (12, 10)) and None
    t, s = w.topic_id("t"), w.topic_id("s")
    epoch = w.broker(10).epoch
    yield 64, lambda: w.assign(10, (D[0], t, (0,)), (D[1], t, (1,)))
    yield 65, lambda: w.assign(10, (D[0], t, (0,)))
    yield 66, lambda: w.assign(10, (D[0], Uuid.of(3, 3), (0,)))
    yield 67, lambda: w.assign(10, (D[0], t, (77,)))
    yield 68, lambda: w.assign(10, (D[0], t, (-1,)))
    yield 69, lambda: w.assign(12, (D12, t, (0,)))
    yield 70, lambda: w.assign(10, (D[0], t, (0,)), epoch=epoch - 1)
    yield 71, lambda: w.assign(99, (D[0], t, (0,)), epoch=5)
    yield 72, lambda: w.assign(10)
    yield 73, lambda: w.assign(10, (D[0], t, ()))
    yield 74, lambda: w.assign(10, (D[0], t, (2,)), (D[2], t, (2,)))
    yield 75, lambda: w.assign(10, (Uuid.parse("ZsAx8LbbRKoUfGdZp3eVcg"), t, (3,)))
    yield 76, lambda: w.assign(10, (D[0], t, (3,)))
    yield 77, lambda: w.assign(10, (D11[0], t, (4,)))
    yield 78, lambda: w.assign(10, (UNASSIGNED, t, (4,)))
    yield 79, lambda: w.assign(10, (MIGRATING, t, (4,)))
    yield 80, lambda: w.assign(10, (LOST, t, (5,)))
    yield 81, lambda: w.assign(10, (Uuid.of(0, 50), t, (5,)))
    yield 82, lambda: w.assign(12, (Uuid.parse("OqxYz9WP96b6d0nHBa5oAA"), s, (0,)))
    yield 83, lambda: w.assign(12, (D12, s, (0,)))
    yield 84, lambda: w.alter_isr("t", (11, 10), number=5)


def failures(w: World) -> Iterator[Step]:
    t = w.topic_id("t")
    all_three = tuple(D[:3])
    yield 85, lambda: w.beat(10, offline=(Uuid.of(3, 3),))
    yield 86, lambda: w.beat(10, offline=(D11[0],))
    yield 87, lambda: w.beat(10, offline=(LOST, UNASSIGNED, MIGRATING))
    yield 88, lambda: w.beat(10, offline=(D[0],))
    yield 89, lambda: w.beat(10, offline=(D[0],))
    yield 90, lambda: w.beat(10)
    yield 91, lambda: w.assign(10, (D[0], t, (1,)))
    yield 92, lambda: w.beat(10, offline=(D[1], D[1], D[0]))
    yield 93, lambda: w.register(10, all_three, number=1)
    yield 94, lambda: w.beat(10, offline=all_three)
    yield 95, lambda: w.beat(10, offline=all_three)
    yield 96, lambda: w.register(10, all_three, number=1)
    yield 97, lambda: w.beat(10, offline=(D[2],))
    yield 98, lambda: w.beat(10)
    unknown = Uuid.parse("DSfJExFRKdn-RooBnOct-g")
    for case, cordoned in (
        (99, ()),
        (100, (D[1],)),
        (101, (D[1],)),
        (102, None),
        (103, None),
        (104, (unknown,)),
        (105, (D11[0],)),
    ):
        yield case, partial(w.beat, 10, cordoned=cordoned)
    yield 106, lambda: w.beat(10, cordoned=(D[2],), offline=(D[2],))
    yield 107, lambda: w.beat(10, cordoned=(D[0], D[1]))
    yield 108, lambda: topic(w, name="auto3", num_partitions=1, replication_factor=3)
    yield 109, lambda: topic(w, name="manual", assignments=by_hand((10,)))
    yield 110, lambda: w.beat(10, cordoned=())
    yield 111, lambda: topic(w, name="auto3", num_partitions=2, replication_factor=3)


def ends(w: World) -> Iterator[Step]:
    yield 115, lambda: topic(w, name="huge", num_partitions=10_001, replication_factor=1)
    w.create("big", (12, 11))
    w.last.clear()  # the real one had 2,300 partitions; one does for the rest
    yield 116, lambda: w.beat(12, shut=True)
    for broker in (10, 11):
        w.beat(broker)  # as the real ones did by themselves
    for case in (117, 118, 119):
        yield case, lambda: w.beat(12, shut=True)
    yield 120, lambda: w.beat(12)
    yield 121, lambda: w.register(12, (D12,), number=1)
    yield 122, lambda: w.beat(12)
    min_isr = (CreateTopicsRequestConfig(name="min.insync.replicas", value="2"),)
    yield 123, lambda: topic(w, name="e", assignments=by_hand((12, 11)), configs=min_isr)
    yield 125, lambda: silence(w)
    yield 126, lambda: w.beat(12)
    yield 127, lambda: silence(w)
    yield 128, lambda: w.register(12, (D12,), number=2)
    yield 129, lambda: w.beat(12)
    yield 130, lambda: w.beat(12, fence=True, shut=True)
    epoch12, epoch11 = w.broker(12).epoch, w.broker(11).epoch
    yield 131, lambda: w.ask(UnregisterBrokerRequest(broker_id=12))
    yield 132, lambda: w.beat(12, epoch=epoch12)
    yield 133, lambda: w.ask(UnregisterBrokerRequest(broker_id=12))
    yield 134, lambda: w.ask(UnregisterBrokerRequest(broker_id=11))
    yield 135, lambda: w.beat(11, epoch=epoch11)
    yield 136, lambda: w.register(11, D11)
    yield 137, lambda: w.register(84, 1, listeners=(listener(port=0),))
    yield 138, lambda: w.register(85, 1, listeners=(listener(host=""),))
    yield 139, lambda: w.register(3000, 1)
    yield 140, lambda: w.register(-1, 1)
    yield 141, lambda: w.register(81, 1, is_migrating_zk_broker=True)
    yield 142, lambda: w.register(82, 1, incarnation_id=ZERO)
    yield 143, lambda: w.register(79, 1, listeners=(listener(protocol=77),))
    yield 145, lambda: w.beat(10)
    yield 146, lambda: w.register(83, 1)


def topic(w: World, **fields: Any) -> Any:
    return w.ask(CreateTopicsRequest(topics=(CreateTopicsRequestTopic(**fields),)))


def silence(w: World) -> None:
    """Twelve seconds in which all brokers but 12 send heartbeats."""
    w.now_ms += 12_000
    for broker in (10, 11):
        w.beat(broker)
    assert w.expire()
    written = list(w.last), list(w.last_versions)
    assert not w.expire()
    w.last, w.last_versions = written


def codes(answer: Any) -> list[int]:
    """All error codes in an answer, the whole request's first."""
    if hasattr(answer, "topics") and not hasattr(answer, "error_code"):
        return [topic.error_code for topic in answer.topics]
    if hasattr(answer, "directories"):
        return [answer.error_code, *errors(answer)]
    if hasattr(answer, "topics"):
        return [answer.error_code, *(p.error_code for topic in answer.topics for p in topic.partitions)]
    return [] if answer is None else [answer.error_code]


def golden_codes(case: int) -> list[int]:
    result = str(CASES[case]["result"])
    return [int(code) for code in re.findall(r"'(-?\d+) (?:[A-Z_]+|\?)'", result)]


def flags(answer: Any) -> list[bool] | None:
    if not hasattr(answer, "is_caught_up"):
        return None
    return [answer.is_caught_up, answer.is_fenced, answer.should_shut_down]


def golden_flags(case: int) -> list[bool] | None:
    found = re.findall(r"'(?:caught|fenced|shut)': (True|False)", str(CASES[case]["result"]))
    return [word == "True" for word in found] or None


def plain(record: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A record without what is drawn at random or depends on the offset."""
    data = {
        key: value
        for key, value in record["data"].items()
        if key not in ("brokerEpoch", "incarnationId", "features", "endPoints")
    }
    if "topicId" in data:
        if "name" in data:
            names[data["topicId"]] = data["name"]
        data["topicId"] = names[data["topicId"]]
    # big-0 stands for the real one's 2,300 partitions.
    return {"type": record["type"], "version": record["version"], "data": data}


def by_topic(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Runs of partition changes in one order of topics: Kafka's is that of the hashes of their random ids."""
    change = "PARTITION_CHANGE_RECORD"
    for is_change, run in groupby(records, key=lambda record: record["type"] == change):
        same = list(run)
        yield from sorted(same, key=lambda record: str(record["data"]["topicId"])) if is_change else same


def test_answers_and_records_are_those_of_a_real_controller() -> None:
    world = World(KAFKA, metadata_version=30)
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    our_names: dict[str, str] = {}
    their_names: dict[str, str] = {}
    cases = 0
    for part in (registrations, lives, assignments, failures, ends):
        for case, step in part(world):
            name = f"{case} {CASES[case]['case']}"
            world.last, world.last_versions = [], []
            answer = step()
            cases += 1
            if case not in DIFFERENT:
                if answer is not None and not hasattr(answer, "error_message"):
                    assert codes(answer) == golden_codes(case), name
                assert flags(answer) == golden_flags(case), name
            golden = CASES[case]["records"]
            made = [record_json(r, v) for r, v in zip(world.last, world.last_versions, strict=True)]
            if CASES[case]["record_count"] > len(golden):
                made, golden = made[: len(golden)], golden[: len(made)]
            if case == 108:
                our_names[made[0]["data"]["topicId"]] = their_names[golden[0]["data"]["topicId"]] = "auto3"
            if case in ONLY_THE_ANSWER or case == 116:
                continue
            if case in SAMPLED:
                our_names |= {str(topic.id): topic.name for topic in world.controller.image.topics.values()}
                for record in golden:
                    their_names.setdefault(record["data"]["topicId"], "big")
                have = [
                    plain(record_json(r, v), our_names) for r, v in zip(world.last, world.last_versions, strict=True)
                ]
                known = [plain(r, their_names) for r in golden if not r["data"]["partitionId"]]
                assert known
                assert all(record in have for record in known), name
                continue
            ours += [plain(r, our_names) for r in made]
            theirs += [plain(r, their_names) for r in golden]
    assert cases > 120
    for mine, real in zip(by_topic(ours), by_topic(theirs), strict=True):
        assert mine == real


def test_frames_that_make_a_real_controller_resign_are_refused() -> None:
    world = World(KAFKA, metadata_version=30)
    for fields in ({"port": 0}, {"host": ""}, {"protocol": 77}):
        answer = world.register(84, 1, listeners=(listener(**fields),))
        assert answer.error_code == 119
