"""Files of the agent outside the log directories: its memory, and the health report.

They lie on the host's own disk, as a rule, and that one may hang as any other. A process with a thread in such a call
cannot end, not by SIGKILL either, and keeps its ports until the disk answers. So the agent itself touches none of them:
each of the two folders has a :mod:`~kjbod_host.files.file_worker` process, which can be abandoned.
"""
