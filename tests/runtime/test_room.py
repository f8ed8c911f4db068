"""What errors say about a host that has no room."""

import errno
import threading

import pytest

from kjbod.error_lines import report_bug
from kjbod.runtime.logging import LineWriter, configure_logging, write_plain
from kjbod.runtime.room import NoRoomError, no_room, require_room


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("can't start new thread"), "another thread: raise TasksMax="),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "another process: raise TasksMax="),
        (OSError(errno.EMFILE, "Too many open files"), "raise LimitNOFILE="),
        (OSError(errno.ENFILE, "Too many open files in system"), "raise fs.file-max"),
    ],
)
def test_missing_room_is_no_internal_error_but_what_to_raise(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in str(no_room(error))
    assert report_bug(error) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kjbod: ") and words in line and "internal error" not in line


def test_other_errors_say_nothing_about_room() -> None:
    assert no_room(RuntimeError("deque mutated during iteration")) is None
    assert no_room(OSError(errno.EIO, "Input/output error")) is None


def test_where_there_is_room_nothing_is_left_of_the_question() -> None:
    before = set(threading.enumerate())  # of other tests: they may just be ending
    require_room(tasks=4, files=16)
    assert set(threading.enumerate()) <= before


def test_a_log_without_a_thread_takes_nothing_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        writer = LineWriter(2)
        writer.write(b"line\n")
        assert writer.dropped == 1
        with pytest.raises(NoRoomError):
            configure_logging("test")
        assert not write_plain("goes to stderr by another way")
