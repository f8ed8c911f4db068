"""Which directory's failure ends a broker, and what that costs."""

import pytest

from kjbod.cluster.log_dirs import BrokerDirs, Failure, LogDir, Node
from kjbod.cluster.metadata_log import NO_DIRECTORY, mark, metadata_log_dir
from kjbod.wire.messages import DescribeConfigsResponseConfig, DescribeConfigsResponseResult


def told(values: dict[str, str | None], code: int = 0) -> list[DescribeConfigsResponseResult]:
    configs = tuple(DescribeConfigsResponseConfig(name=key, value=value) for key, value in values.items())
    return [DescribeConfigsResponseResult(error_code=code, resource_type=4, resource_name="1", configs=configs)]


BROKER = {"process.roles": "broker", "metadata.log.dir": None, "log.dirs": None, "log.dir": "/tmp/kafka-logs"}


@pytest.mark.parametrize(
    ("values", "is_controller", "expected"),
    [
        pytest.param(BROKER | {"log.dirs": " /d1 , /d2"}, None, "/d1", id="the first of log.dirs"),
        pytest.param(BROKER | {"log.dirs": "/d1", "metadata.log.dir": "/m"}, None, "/m", id="one of its own"),
        pytest.param(BROKER, None, "/tmp/kafka-logs", id="log.dir where there are no log.dirs"),
        pytest.param(
            BROKER | {"log.dirs": "data/d1"}, None, None, id="a relative path, of which nobody knows the base"
        ),
        pytest.param(BROKER | {"process.roles": ""}, None, NO_DIRECTORY, id="ZooKeeper mode"),
        pytest.param({}, None, None, id="no server.properties are told"),
        pytest.param({}, False, NO_DIRECTORY, id="an agent goes on without it"),
        pytest.param({}, True, None, id="an agent that is a controller too need not"),
    ],
)
def test_the_directory_that_ends_a_broker_is_what_its_configuration_says(
    values: dict[str, str | None], is_controller: bool | None, expected: str | None
) -> None:
    assert metadata_log_dir(told(values), is_controller) == expected


def test_who_may_not_see_the_configuration_does_not_know_it() -> None:
    assert metadata_log_dir(told(BROKER, code=31), None) is None
    assert metadata_log_dir([], None) is None


def broker(*failures: Failure | None) -> BrokerDirs:
    """Directories /d1, /d2 ... that are online."""
    log_dirs = [LogDir(path=f"/d{number}", failure=each) for number, each in enumerate(failures, start=1)]
    return BrokerDirs(node=Node(id=1, host="h", port=1), log_dirs=log_dirs)


def test_its_failure_is_that_of_all_directories_and_theirs_are_their_own() -> None:
    found = broker(Failure(1, 2, 3), Failure(10, 20, 30), Failure(100, 200, 300))
    mark(found, "//d1/")
    assert [each.has_metadata_log for each in found.log_dirs] == [True, False, False]
    assert [each.failure for each in found.log_dirs] == [
        Failure(111, 222, 333), Failure(10, 20, 30), Failure(100, 200, 300)
    ]  # fmt: skip


def test_what_is_not_known_of_another_directory_is_not_known_of_it() -> None:
    found = broker(Failure(1, 0, 0), Failure(1, 0, None))
    mark(found, "/d1")
    assert found.log_dirs[0].failure == Failure(2, 0, None)
    found = broker(Failure(1, 0, 0), None)
    mark(found, "/d1")
    assert found.log_dirs[0].failure is None


def test_one_of_its_own_ends_the_broker_and_is_no_log_directory() -> None:
    for path in ("/m", NO_DIRECTORY):
        found = broker(Failure(1, 0, 0), Failure(1, 0, 0))
        mark(found, path)
        assert [(each.has_metadata_log, each.failure) for each in found.log_dirs] == [(False, Failure(1, 0, 0))] * 2


def test_without_an_answer_nothing_is_said() -> None:
    found = broker(Failure(1, 0, 0))
    mark(found, None)
    assert (found.log_dirs[0].has_metadata_log, found.log_dirs[0].failure) == (None, Failure(1, 0, 0))
