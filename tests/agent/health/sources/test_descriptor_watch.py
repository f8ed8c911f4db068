import asyncio
import errno
import os
from collections.abc import Callable

import pytest
import uvloop

from kjbod_host.health.sources.descriptor_watch import Watch, errno_text, reason_of

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=sorted(LOOPS))
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


def test_a_descriptor_that_never_runs_dry_calls_back_a_few_times_and_not_always(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    calls = []
    reader, writer = os.pipe()
    os.write(writer, b"x")

    async def main() -> None:
        watch = Watch(reader, lambda: calls.append(1))
        await asyncio.sleep(0.5)
        watch.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    os.close(reader)
    os.close(writer)
    assert 1 <= len(calls) <= 30  # 5; a busy loop has thousands


def test_every_later_event_is_told_too(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    reader, writer = os.pipe()

    async def main() -> None:
        told: asyncio.Queue[bytes] = asyncio.Queue()
        watch = Watch(reader, lambda: told.put_nowait(os.read(reader, 1)))
        for letter in (b"a", b"b", b"c"):
            os.write(writer, letter)
            async with asyncio.timeout(60):
                assert await told.get() == letter
        watch.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    os.close(reader)
    os.close(writer)


def test_the_callback_may_close_its_own_watch_and_so_may_anybody_after_the_loop_has_ended() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    watches: list[Watch] = []

    async def main() -> None:
        closed = asyncio.Event()

        def readable() -> None:
            watches[0].close()
            closed.set()

        watches.append(Watch(reader, readable))
        async with asyncio.timeout(60):
            await closed.wait()
        watches.append(Watch(reader, closed.set))

    asyncio.run(main())
    for watch in watches:
        watch.close()
        watch.close()
    os.close(reader)
    os.close(writer)


def test_texts_for_people() -> None:
    assert errno_text(-errno.EIO) == "EIO"
    assert errno_text(4711) == "error 4711"
    assert reason_of(PermissionError(errno.EACCES, "Permission denied", "/sys/x")) == "/sys/x: Permission denied"
    assert reason_of(OSError("odd")) == "odd"
