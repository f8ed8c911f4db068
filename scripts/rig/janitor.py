"""Takes away what namespaces do not, when whatever ran in them was killed.

Frozen file systems, swap files and control groups are the machine's. Nobody inside is left to undo them after a SIGKILL
of the whole, and a process that waits for a frozen file system cannot even be killed. So a shell waits outside for the
end of a run, and then looks for what bears its tag; where all went well there is nothing.

Names that are taken care of: loop devices on a file ``kjbod-TAG-*`` (thawed; they go by themselves then),
``/var/tmp/kjbod-TAG-*.swap``, and control groups ``kjbod-TAG-*``, version 1 and 2.
"""

import os
import subprocess

_SCRIPT = """
tag=$1
cat >/dev/null
for try in 1 2 3 4 5 6 7 8 9 10; do
  left=
  for file in /sys/block/loop*/loop/backing_file; do
    case $(cat "$file" 2>/dev/null) in *"/kjbod-$tag-"*) left=yes ;; *) continue ;; esac
    device=${file#/sys/block/}
    for type in ext4 xfs btrfs; do
      # Its mount went with the namespaces. The same device mounted again is the same, still frozen file system.
      unshare --mount --propagation private sh -c 'mount -t "$1" "$2" /mnt && fsfreeze --unfreeze /mnt' \\
        sh "$type" "/dev/${device%%/*}" && break
    done
  done
  for file in /var/tmp/kjbod-"$tag"-*.swap; do
    if [ -e "$file" ]; then
      swapoff "$file"
      rm -f "$file"
    fi
  done
  for group in /sys/fs/cgroup/kjbod-"$tag"-* /sys/fs/cgroup/*/kjbod-"$tag"-*; do
    if [ -d "$group" ]; then rmdir "$group" || left=yes; fi
  done
  [ "$left" ] || exit 0
  sleep 1
done
"""


def start_janitor(tag: str) -> None:
    """Have a process outside clean up after ``tag`` as soon as this process has ended, and what it becomes by exec.

    Children that are started without its descriptors, as :mod:`subprocess` does it, are not waited for.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    subprocess.run(
        # --fork: a child of ours would be one of what we become by exec.
        ["setsid", "--fork", "sh", "-c", _SCRIPT, "kjbod-janitor", tag],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"},
        check=True,
    )
    os.close(reading)
    os.set_inheritable(writing, True)
