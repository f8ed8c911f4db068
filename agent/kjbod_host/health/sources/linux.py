"""Sources of kernel events for Linux.

What each needs. None is needed for a right verdict: a probe finds in its time what they tell at once, but for one
thing, damage in structures that no call meets yet.

    ============= ============================ ==============================================================
    source        tells                        needs
    ============= ============================ ==============================================================
    ext4-errors   ext4 found damage            nothing
    btrfs-stats   a btrfs device erred         nothing
    uevents       a device went, shrank        nothing; in systemd AF_NETLINK in RestrictAddressFamilies=
    fs-error      ext4 found damage            CAP_SYS_ADMIN; in systemd SystemCallFilter=fanotify_init
                                               fanotify_mark
    block-errors  a request failed; XFS found  a trace instance: CAP_DAC_OVERRIDE makes one, and one that was
                  damage                       made by root and given away needs no capability
    ============= ============================ ==============================================================

``fs-error`` tells an unprivileged agent nothing that ``ext4-errors`` does not: CAP_SYS_ADMIN is not worth it. Nor is
CAP_DAC_OVERRIDE: with it a process may write where its user may not, and its probes would not meet a wrong owner or
mode. So give the agent its instance, as root, at each start::

    cd /sys/kernel/tracing && mkdir -p instances/kjbod && chown -R kjbod instances/kjbod && chmod 0711 . instances

(``chmod`` lets others pass through the two directories, not list them; what is in them stays root's by its own mode.
The mount options ``gid=`` and ``mode=`` do not do: ``instances`` itself is not writable for the group. CAP_PERFMON,
CAP_BPF, CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH do not do either.) In systemd this is an ``ExecStartPre=+``, with
``ReadWritePaths=-/sys/kernel/tracing/instances/kjbod`` where ProtectKernelTunables= makes tracefs read-only; a
``ReadWritePaths=`` of ``/sys/kernel/tracing`` itself has no effect then. An instance serves one agent: a second one is
told that it needs its own.

The kernel's log is no source: its error lines are rate limited, or not printed at all (XFS and btrfs: 1 to 4 of 5 dead
disks), and reading it needs CAP_SYSLOG. A freeze, and a device that hangs, are told by none: only a deadline sees them.
"""

from kjbod_host.health.sources.api import KernelSource
from kjbod_host.health.sources.btrfs import BtrfsStats
from kjbod_host.health.sources.ext4 import Ext4Errors
from kjbod_host.health.sources.fserror import FsErrors
from kjbod_host.health.sources.tracepoints import BlockErrors
from kjbod_host.health.sources.uevents import BlockUevents


def linux_sources() -> tuple[KernelSource, ...]:
    """Return new sources, not started. Each source reports at its start whether it is active."""
    return (Ext4Errors(), FsErrors(), BtrfsStats(), BlockErrors(), BlockUevents())
