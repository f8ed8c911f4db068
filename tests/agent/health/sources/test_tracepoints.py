from pathlib import Path

import pytest

from kjbod_host.health.sources.tracepoints import BlockErrors, TraceError, find_tracefs, parse_line

# Lines of trace_pipe, Linux 6.18 unless said otherwise.
HEAD = "     kworker/u9:2-4711    [001] ..s1.  4242.424242: "
LINES = {
    "block_rq_error: 7,1 R () 16520 + 8 be,0,4 [-5]": TraceError(
        "7:1", "a read of 8 sectors at sector 16520 failed: EIO", "block_rq_error"
    ),
    "block_rq_error: 7,1 WSM () 2048 + 16 none,0,0 [-28]": TraceError(
        "7:1", "a write of 16 sectors at sector 2048 failed: ENOSPC", "block_rq_error"
    ),
    "block_rq_error: 8,0 FF () 18446744073709551615 + 0 none,0,0 [-5]": TraceError(
        "8:0", "a flush failed: EIO", "block_rq_error"
    ),
    "block_rq_error: 8,0 FWS () 64 + 8 none,0,0 [-5]": TraceError(
        "8:0", "a write of 8 sectors at sector 64 failed: EIO", "block_rq_error"
    ),
    "block_rq_error: 8,0 N (85 08 2e) 0 + 8 none,0,0 [-121]": TraceError(
        "8:0", "a request N of 8 sectors at sector 0 failed: EREMOTEIO", "block_rq_error"
    ),
    "block_rq_complete: 8,16 RA () 64 + 8 [-5]": TraceError(  # Linux 5.14
        "8:16", "a read of 8 sectors at sector 64 failed: EIO", "block_rq_complete"
    ),
    "filemap_set_wb_err: dev=0:43 ino=0x101 errseq=0x5": TraceError(
        "0:43", "the write-back of inode 257 failed", "filemap_set_wb_err"
    ),
    "ext4_shutdown: dev 7,0 flags 2": TraceError("7:0", "ext4 was shut down", "ext4_shutdown"),
    "xfs_force_shutdown: dev 7:0 tag logerror flags log_io|force_umount file fs/xfs/x.c line_num 48": TraceError(
        "7:0", "XFS shut down (log_io|force_umount)", "xfs_force_shutdown"
    ),
    "xfs_force_shutdown: dev 7:0 tag corrupt flags corruption file fs/xfs/xfs_trans.c line_num 1": TraceError(
        "7:0", "XFS shut down (corruption)", "xfs_force_shutdown", damage=True
    ),
    "xfs_buf_ioerror: dev 7:0 daddr 0x78 bbcount 0x8 hold 1 pincount 0 lock 0 error -117 flags READ caller x+0x1": (
        TraceError("7:0", "XFS met an error in metadata at sector 120: EUCLEAN", "xfs_buf_ioerror", damage=True)
    ),
    "xfs_buf_ioerror: dev 7:0 daddr 0x78 bbcount 0x8 hold 1 pincount 0 lock 0 error -5 flags READ caller x+0x1": (
        TraceError("7:0", "XFS met an error in metadata at sector 120: EIO", "xfs_buf_ioerror")
    ),
    "xfs_inode_mark_corrupt: dev 7:0 ino 0x83 flags 0x1": TraceError(
        "7:0", "XFS found damage (xfs_inode_mark_corrupt: ino 0x83 flags 0x1)", "xfs_inode_mark_corrupt", damage=True
    ),
}
NO_ERRORS = (
    "block_rq_error: 7,1 D () 0 + 8 none,0,0 [-95]",
    "block_rq_error: 7,1 DE () 0 + 8 none,0,0 [-5]",
    "block_rq_error: 7,1 N () 0 + 8 none,0,0 [-95]",
    "block_rq_complete: 7,1 R () 0 + 8 none,0,0 [0]",
    "block_rq_error: something else",
    "xfs_buf_ioerror: dev 7:0 daddr 0x78 error 0 flags READ",
    "ext4_shutdown: no device",
    "sched_switch: prev_comm=x",
)


@pytest.mark.parametrize("line", LINES)
def test_each_kind_of_error_is_told_with_its_device(line: str) -> None:
    assert parse_line(HEAD + line) == LINES[line]


@pytest.mark.parametrize("line", [*(HEAD + line for line in NO_ERRORS), "", "CPU:0 [LOST 123 EVENTS]", "\x00\xff:"])
def test_what_is_no_error_is_not_told(line: str) -> None:
    assert parse_line(line) is None


def test_a_process_name_does_not_look_like_an_event() -> None:
    line = "  : ext4_shutdown: dev 1,1-99 [000] .....  1.000001: block_rq_error: 7,1 R () 8 + 8 none,0,0 [-5]"
    error = parse_line(line)
    assert error is not None and error.device == "7:1"


def test_tracefs_is_found_wherever_it_is_mounted_and_its_lack_is_told(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "31 30 0:12 /instances/kjbod /sys/kernel/tracing/instances/kjbod rw - tracefs tracefs rw\n"
    )
    with pytest.raises(FileNotFoundError, match="tracefs is not mounted"):
        find_tracefs(str(table))
    table.write_text(table.read_text() + "30 22 0:12 / /sys/kernel/tracing rw - tracefs tracefs rw\n")
    assert find_tracefs(str(table)) == Path("/sys/kernel/tracing")


def test_a_source_that_never_started_can_be_closed() -> None:
    source = BlockErrors()
    source.poll()
    source.close()
    source.close()
