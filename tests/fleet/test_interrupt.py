"""Ctrl-C ends a report wherever it falls."""

import logging
import os
import signal
import time
import weakref

import pytest

from kjbod.fleet.command import interruptible


class Held:
    """Something that a weak reference can point to."""


def _interrupt(_reference: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_that_falls_into_a_weakref_callback_is_not_lost() -> None:
    held = Held()
    reference = weakref.ref(held, _interrupt)
    with pytest.raises(KeyboardInterrupt), interruptible():
        del held  # Python reports what the callback raises, and goes on
        assert reference() is None
        while True:
            time.sleep(0.001)


def test_what_fails_after_a_lost_interrupt_is_the_interrupt() -> None:
    held = Held()
    reference = weakref.ref(held, _interrupt)
    with pytest.raises(KeyboardInterrupt), interruptible():
        del held
        assert reference() is None
        raise ConnectionRefusedError("Spark's process was interrupted as well")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_py4j_logs_of_the_process_that_the_signal_ended_is_not_shown(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, handler)  # whatever the tests before this one left there
    with pytest.raises(KeyboardInterrupt), interruptible():
        logging.error("before")
        try:
            os.kill(os.getpid(), number)
            while True:
                time.sleep(0.01)
        finally:
            logging.error("Exception while sending command.")
    assert caplog.messages == ["before"]
    logging.error("after")
    assert caplog.messages == ["before", "after"]
    assert signal.signal(number, inherited) is handler
