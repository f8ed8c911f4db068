"""Which path has which directory.id: what follows from the replicas, and what is left open."""

import pytest

from kjbod.cluster.directory_ids import infer
from kjbod.ids import UNASSIGNED, Uuid

IDS = {name: Uuid.of(9, number) for number, name in enumerate("ABCG")}


def ids(names: str) -> set[Uuid]:
    return {IDS.get(name, UNASSIGNED) for name in names}


@pytest.mark.parametrize(
    ("online", "offline", "registered", "gone", "expected"),
    [
        pytest.param({"d1": "A", "d2": "B"}, "", "AB", "", {"d1": "A", "d2": "B"}, id="each has replicas"),
        pytest.param({"d1": "A", "d2": ""}, "", "AB", "", {"d1": "A", "d2": "-B"}, id="the last one has the last id"),
        pytest.param({"d1": ""}, "", "A", "", {"d1": "-A"}, id="the only one"),
        pytest.param({"d1": "", "d2": ""}, "", "AB", "", {"d1": "", "d2": ""}, id="two without replicas"),
        pytest.param({"d1": "U", "d2": "B"}, "", "AB", "", {"d1": "-A", "d2": "B"}, id="UNASSIGNED tells nothing"),
        pytest.param({"d1": "G", "d2": "B"}, "", "AB", "G", {"d1": "-A", "d2": "B"}, id="nor does what is gone"),
        pytest.param({"d1": "AB", "d2": "B"}, "", "AB", "", {"d1": "", "d2": ""}, id="a replica is elsewhere"),
        pytest.param({"d1": "AB", "d2": ""}, "", "AB", "", {"d1": "", "d2": ""}, id="two ids in one"),
        pytest.param({"d1": "A", "d2": "A"}, "", "AB", "", {"d1": "", "d2": ""}, id="an id in two"),
        pytest.param(
            {"d1": "AB", "d2": "B", "d3": ""}, "", "ABC", "", {"d1": "", "d2": "", "d3": ""},
            id="no elimination beside what is open",
        ),
        pytest.param({"d1": "A"}, "2", "A", "G", {"d1": "A", "2": ""}, id="offline: G may have been removed"),
        pytest.param({"d1": "A"}, "2", "AB", "", {"d1": "A", "2": "-B"}, id="which the metadata do not know yet"),
        pytest.param({"d1": "A"}, "2", "AB", "G", {"d1": "A", "2": "-B"}, id="and another one that was removed"),
        pytest.param(
            {"d1": "A", "d2": ""}, "3", "AB", "", {"d1": "A", "d2": "", "3": ""},
            id="the last id is the silent one's or the offline one's",
        ),
        pytest.param({"d1": "A"}, "2", "A", "", {"d1": "A", "2": ""}, id="an offline one of which nothing is left"),
        pytest.param({"d1": "A"}, "2", "A", "GC", {"d1": "A", "2": ""}, id="one offline and two ids"),
        pytest.param({"d1": "A"}, "23", "A", "G", {"d1": "A", "2": "", "3": ""}, id="two offline and one id"),
        pytest.param({"d1": "A", "d2": ""}, "", "ABC", "", {"d1": "A", "d2": ""}, id="a failure that is on its way"),
        pytest.param({"d1": "", "d2": ""}, "3", "AB", "G", {"d1": "", "d2": "", "3": ""}, id="all is open"),
        pytest.param({"d1": "U"}, "", "", "", {"d1": ""}, id="a broker from before directories were recorded"),
        pytest.param({}, "1", "", "G", {"1": ""}, id="every directory is offline"),
    ],
)  # fmt: skip
def test_an_id_is_told_where_it_follows_and_nowhere_else(
    online: dict[str, str], offline: str, registered: str, gone: str, expected: dict[str, str]
) -> None:
    found = infer({path: ids(names) for path, names in online.items()}, offline, ids(registered), ids(gone))
    names = {directory: name for name, directory in IDS.items()}
    told = {
        path: "" if each.directory_id is None else ("-" if each.by == "elimination" else "") + names[each.directory_id]
        for path, each in found.items()
    }
    assert told == expected
    assert all((each.directory_id is None) == (each.reason is not None) for each in found.values())


def test_ids_that_may_be_that_of_an_offline_directory_are_named() -> None:
    found = infer({"d1": ids("A")}, "2", ids("A"), ids("G"))["2"]
    assert str(IDS["G"]) in str(found.reason) and "taken out of log.dirs" in str(found.reason)
