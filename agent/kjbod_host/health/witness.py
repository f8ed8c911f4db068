"""Decision whether a failure concerns one directory or the whole host: the fourth fact in ``verdict.py``. Pure."""

from collections.abc import Collection

from kjbod_host.health.state import DirectoryHealth, Health, HealthSettings


def must_settle(
    directory: DirectoryHealth, elsewhere: Collection[DirectoryHealth], now_ms: int, settings: HealthSettings
) -> bool:
    """Whether nothing shows that a failure of this directory would be its own and not the host's.

    Shown it is by a witness: one of the directories on other devices, ``elsewhere``, whose last probe that passed began
    after this one's trouble, and that was not in trouble itself within ``host_window_ms`` before that. Those that
    failed long before count no more.
    """
    window_ms = settings.host_window_ms + settings.host_settle_ms
    alive = [d for d in elsewhere if d.health is not Health.FAILED or now_ms - d.since_ms <= window_ms]
    begun_ms = now_ms
    if directory.in_trouble and directory.trouble_ms is not None:
        begun_ms = directory.trouble_ms
    elif directory.blockage is not None:
        begun_ms -= directory.blockage.silent_device_ms(settings.own_silence_ms)
    return bool(alive) and not any(_testifies(d, begun_ms, settings) for d in alive)


def _testifies(witness: DirectoryHealth, begun_ms: int, settings: HealthSettings) -> bool:
    if witness.health is Health.FAILED or witness.in_trouble or witness.well_ms is None:
        return False
    untroubled = witness.trouble_ms is None or witness.trouble_ms < begun_ms - settings.host_window_ms
    return untroubled and witness.well_ms >= begun_ms


def is_host_fault(directories: Collection[DirectoryHealth], now_ms: int, settings: HealthSettings) -> bool:
    """Whether all directories of the host got into trouble within ``host_window_ms``.

    Directories that failed before count no more; a host with one (other) directory has no such fault.
    """
    window = settings.host_window_ms + settings.host_settle_ms
    alive = [d for d in directories if d.health is not Health.FAILED or now_ms - d.since_ms <= window]
    if len(alive) < 2 or any(d.health is not Health.FAILED and not d.in_trouble for d in alive):
        return False
    times = [d.trouble_ms if d.trouble_ms is not None else d.since_ms for d in alive]
    return max(times) - min(times) <= settings.host_window_ms
