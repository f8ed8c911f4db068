"""Disks that are mended while the broker is stopped: a guard that acts leaves alone what the broker has started on."""

import shutil
from collections.abc import Callable

from kjbod_guard.watching import RETURN_PROBES
from tests.guard.conftest import Beside, OneBroker


def test_a_directory_that_was_formatted_anew_or_mended_is_not_taken_away_when_the_broker_starts_on_it(
    one_broker: Callable[..., OneBroker], beside: Callable[..., Beside]
) -> None:
    site = one_broker()
    paths, broker = site.paths, site.launch()
    watch = beside(site.config, guard_mode="act")
    guard = watch.start()
    guard.wait_for_event("guard.broker", state="serving")

    broker.stop(120)
    meta = paths[1] / "meta.properties"
    content = meta.read_bytes()
    meta.unlink()
    for one in paths[0].iterdir():
        if not one.name.startswith(".kjbod"):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    for path in paths[:2]:
        guard.wait_for_event("directory.verdict", path=str(path), state="failed")
    meta.write_bytes(content)
    site.format(again=True)
    site.launch("broker-again")

    for path in paths[:2]:  # after as many looks as it takes
        guard.wait_for_event("directory.watched", 10 * RETURN_PROBES, path=str(path))
    assert not watch.deeds()
    assert all((path / "meta.properties").is_file() for path in paths)
    assert guard.stop() == 0
