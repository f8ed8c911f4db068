"""Inject, record and undo every way in which a disk can die, hang, lie or fill under Linux. Needs Linux and root.

::

    with RealDisk(log_dir="kafka") as disk:
        injection = inject("freeze", Target.of(disk), state_dir=tmp_path)
        ...
        undo(injection)

The record of an injection is on disk before the action, so that :func:`~kjbod.faults.catalog.undo` also works in
another process, even if the first was killed at any moment. ``FAULTS[name].expect(fstype)`` there gives the expected
reaction of the agent. ``kjbod faults`` offers the same to operators (:mod:`kjbod.faults.cli`).
"""
