"""Deadlines of the verdict, from a configuration. Pure."""

from kjbod.config.keys import Config
from kjbod_host.health.state import HealthSettings


def health_settings(config: Config) -> HealthSettings:
    """Return the settings of a :class:`~kjbod_host.health.monitor.HealthMonitor`."""
    return HealthSettings(
        probe_interval_ms=config.kjbod_probe_interval_ms,
        probe_timeout_ms=config.kjbod_probe_timeout_ms,
        held_timeout_ms=config.kjbod_held_timeout_ms,
        blind_timeout_ms=config.kjbod_blind_timeout_ms,
        slow_ms=config.kjbod_slow_ms,
        slow_probes=config.kjbod_slow_probes,
        slow_recoveries=config.kjbod_slow_recovery_probes,
        strike_window_ms=config.kjbod_strike_window_ms,
        host_window_ms=config.kjbod_host_fault_window_ms,
        host_settle_ms=config.kjbod_host_fault_settle_ms,
        sample_gap_ms=min(HealthSettings().sample_gap_ms, config.kjbod_probe_timeout_ms // 4),
        full_probe_every=config.kjbod_probe_full_every,
    )
