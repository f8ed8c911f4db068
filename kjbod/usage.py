"""Use of the host by a daemon and its processes: memory, processor time, descriptors."""

from msgspec import Struct


class Use(Struct, frozen=True, kw_only=True):
    """Use of the host by one process, or by several together.

    Attributes:
        processes: how many.
        rss_bytes: resident memory; what several share counts for each.
        pss_bytes: memory with a fair share of what is shared (proc_pid_smaps(5)); None: not known.
        uss_bytes: memory that nobody shares; None: not known.
        unmeasured: processes that did not tell the last two in time: they may be stuck in the kernel.
        cpu_s: processor time, of processes that have ended too.
        cpu_percent: of one processor, lately; None: nobody has looked for long enough.
        descriptors: open files.
    """

    processes: int = 0
    rss_bytes: int = 0
    pss_bytes: int | None = None
    uss_bytes: int | None = None
    unmeasured: int = 0
    cpu_s: float = 0.0
    cpu_percent: float | None = None
    descriptors: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """Use of the host by a daemon and all that works for it.

    Attributes:
        own: the daemon itself.
        workers: processes that touch disks for it.
        helpers: its other processes.
        virtual_bytes: the daemon's address space.
        descriptors_max: as many files it may open; None: any number.
        started_ms: when it was started, wall clock.
    """

    own: Use
    workers: Use
    helpers: Use
    virtual_bytes: int
    descriptors_max: int | None
    started_ms: int
