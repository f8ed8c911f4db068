"""The one table of errors: errno and call to medium, name, configuration, room or host."""

import errno

import pytest

from kjbod_host.health.state import DirectoryHealth, Health, HealthSettings
from kjbod_host.health.verdict import Ask, ProbeFailed, ProbeSucceeded, judge
from kjbod_host.storage.meaning import TABLE, Meaning, asks_probe, in_probe, in_work, remedy

RENAME, UNLINK, RMDIR = "rename of t-0 to t-1", "unlink of t-0/00.log", "rmdir of t-0.x-delete"
MKDIR, OPEN, LOCK, FSYNC = "mkdir of t-0.kjbod-new-delete", "open of t-0", "lock of .lock", "fsync of the directory"
SETTINGS = HealthSettings()


@pytest.mark.parametrize(
    ("number", "call"),
    [
        (errno.EBUSY, RENAME),
        (errno.EBUSY, UNLINK),
        (errno.EBUSY, RMDIR),
        (errno.ETXTBSY, UNLINK),
        (errno.ETXTBSY, "write of t-0/00.log"),
        (errno.EXDEV, RENAME),
        (errno.EROFS, UNLINK),
        (errno.EILSEQ, MKDIR),
        (errno.ENOKEY, OPEN),
        (errno.ESTALE, RMDIR),
        (errno.EMLINK, MKDIR),
        (errno.ENXIO, OPEN),
        (errno.EOVERFLOW, OPEN),
        (errno.ENOTEMPTY, "delete of t-0.x-delete: there is something in it that is no regular file"),
    ],
)
def test_an_error_of_a_name_is_no_dead_disk_however_often_it_comes(number: int, call: str) -> None:
    assert in_work(number, call) is Meaning.NAME
    state = DirectoryHealth()
    for at_ms in range(100, 2000, 100):
        judgement = judge(state, ProbeFailed(at_ms, number, call, own_work=True), at_ms, SETTINGS)
        assert judgement.ask is Ask.PROBE
        state = judge(judgement.state, ProbeSucceeded(at_ms + 1, 4, full=True), at_ms + 5, SETTINGS).state
        assert state.health is Health.ONLINE


@pytest.mark.parametrize(
    ("number", "call"),
    [
        (errno.ENOLCK, LOCK),
        (errno.EOPNOTSUPP, LOCK),
        (errno.ENOSYS, LOCK),
        (errno.EOPNOTSUPP, MKDIR),
        (errno.ENOSYS, MKDIR),
        (524, RENAME),
    ],
)
def test_an_error_of_the_configuration_says_what_to_do(number: int, call: str) -> None:
    assert in_work(number, call) is Meaning.CONFIGURATION
    assert remedy(number)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", [MKDIR, FSYNC, RENAME])
def test_no_room_is_no_room_at_every_call(number: int, call: str) -> None:
    assert in_work(number, call) is in_probe(number, call) is Meaning.ROOM


@pytest.mark.parametrize(
    ("number", "call"),
    [
        (errno.EIO, RENAME),
        (errno.EIO, UNLINK),
        (errno.EUCLEAN, MKDIR),
        (errno.ESTALE, "identity of /d1"),
        (errno.EILSEQ, "comparison of .kjbod_probe"),
        (errno.EBUSY, FSYNC),
        (errno.EROFS, FSYNC),
        (errno.ENOTCONN, OPEN),
        (errno.ESHUTDOWN, RENAME),
        (errno.EREMOTEIO, UNLINK),
        (errno.EOPNOTSUPP, FSYNC),
        (errno.ENOLCK, FSYNC),
    ],
)
def test_an_error_of_the_medium_stays_one(number: int, call: str) -> None:
    assert in_work(number, call) is in_probe(number, call) is Meaning.MEDIUM
    assert asks_probe(number, call)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EACCES, errno.EROFS, errno.ENODEV])
def test_a_name_that_may_stand_for_the_whole_directory_asks_a_probe_which_decides(number: int) -> None:
    assert asks_probe(number, OPEN)
    state = judge(DirectoryHealth(), ProbeFailed(100, number, "open of /d1"), 101, SETTINGS).state
    assert judge(state, ProbeFailed(102, number, "open of /d1"), 103, SETTINGS).state.health is Health.FAILED


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ETXTBSY, errno.EISDIR, errno.ENOTEMPTY, errno.EOPNOTSUPP])
def test_what_is_in_the_way_of_a_file_of_the_probe_fails_no_disk(number: int) -> None:
    state = DirectoryHealth()
    for at_ms in range(100, 120_000, 1_000):
        state = judge(state, ProbeFailed(at_ms, number, "rename to .kjbod_created"), at_ms + 1, SETTINGS).state
    assert state.health is Health.SUSPECT


def test_no_row_is_hidden_by_one_before_it() -> None:
    for place, row in enumerate(TABLE):
        for number in row.numbers:
            earlier = [r for r in TABLE[:place] if number in r.numbers]
            assert all(r.calls for r in earlier), f"{errno.errorcode.get(number, number)} in row {place}"
