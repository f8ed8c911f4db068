"""Every way in which Linux lets a disk die, hang, lie or fill: injected, recorded, undone. Linux, root.

::

    with RealDisk(log_dir="kafka") as disk:
        injection = inject("freeze", Target.of(disk), state_dir=tmp_path)
        ...
        undo(injection)

The record of an injection is on disk before the deed, so that :func:`~kjbod.faults.catalog.undo` also works in another
process, after the first was killed at any moment. ``FAULTS[name].expect(fstype)`` there says what the agent should make
of it. ``kjbod faults`` is the same for operators (:mod:`kjbod.faults.cli`).
"""
