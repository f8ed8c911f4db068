"""Log directories of a cluster as lines: what is unknown looks so, and nothing in a name is obeyed by a terminal."""

from kjbod.cli.cluster_text import notes, summary, table_of
from kjbod.cluster.directory_ids import BY_ELIMINATION, BY_REPLICAS, Inferred
from kjbod.cluster.log_dirs import BrokerDirs, Failure, Known, LogDir, Node
from kjbod.cluster.partitions import Partition, Share, Trouble, Unplaced
from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage

NODE = Node(id=1, host="h1", port=9092)
KNOWN = Known(partitions={}, min_isrs={}, shares={}, trouble=Trouble(3, 1, None))


def rows(*log_dirs: LogDir, ids: bool = False) -> list[list[str]]:
    """Cells of each row; none of them has two blanks in it."""
    lines = table_of([BrokerDirs(node=NODE, log_dirs=log_dirs)], ids=ids)
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[1:]]


def test_what_is_unknown_of_a_directory_that_works_is_a_question() -> None:
    found = LogDir(path="/d1", replicas=2, replica_bytes=5, leaders=1, future=0, failure=Failure(1, 0, None))
    assert rows(found) == [["1", "online", "?", "?", "?", "2", "5 B", "0", "1", "1", "0", "?", "/d1"]]


def test_a_path_is_printed_and_not_obeyed() -> None:
    (row,) = rows(LogDir(path="/d\x1b[31m\n"))
    assert row[-1] == "/d\\x1b[31m\\n"


def test_what_cannot_be_known_of_a_directory_that_is_offline_is_a_dash() -> None:
    (row,) = rows(
        LogDir(path="/d1", error_code=56, replicas=3, leaders=0, directory=Inferred(None, reason="r")), ids=True
    )
    assert row == ["1", "offline", *["-"] * 3, "3", "-", "-", "0", *["-"] * 4, "/d1 (KAFKA_STORAGE_ERROR)"]


def test_the_sum_has_what_was_left_out_and_what_is_in_trouble() -> None:
    silent = BrokerDirs(node=NODE, error="silent", share=Share(2, 1))
    working = BrokerDirs(
        node=NODE,
        log_dirs=[LogDir(path="/d1", cordoned=True, replicas=2, replica_bytes=2048), LogDir(path="/d2", error_code=56)],
        unplaced=Unplaced(unassigned=4, lost=5),
    )
    assert summary([silent, working], KNOWN) == (
        "2 brokers (1 without an answer); 2 directories (1 offline, 1 cordoned); 2 replicas, 2.0 KiB; "
        "3 partitions: 1 without a leader now, ? under min.insync.replicas"
    )
    read = Known(partitions={}, min_isrs={}, shares={}, trouble=Trouble(0, 0, 0), image=MetadataImage())
    assert summary([working], read).endswith("; 4 replicas UNASSIGNED, 5 LOST")


def test_where_ids_come_from_and_what_may_not_be_seen_is_said() -> None:
    ids = (
        Inferred(Uuid.of(9, 1), BY_REPLICAS),
        Inferred(Uuid.of(9, 2), BY_ELIMINATION),
        Inferred(Uuid.of(9, 3), BY_REPLICAS),
        Inferred(None, reason="r"),
    )
    dirs = [LogDir(path=f"/d{number}", directory=each, untold=number) for number, each in enumerate(ids)]
    known = Known(partitions={"t": {0: Partition(1, (1,), (1,))}}, min_isrs={}, shares={}, trouble=Trouble(1, 0, None))
    inferred, unknown, min_isr, untold = notes([BrokerDirs(node=NODE, log_dirs=dirs)], known, asked=True)
    assert inferred == "directory.id is inferred, since no broker tells it: by replicas (2) and by elimination (1)"
    assert unknown == "directory.id of 1 directory cannot be inferred: --json says why of each"
    assert min_isr.startswith("min.insync.replicas of 1 topic is not known")
    assert untold.startswith("6 replicas of partitions of which the cluster tells nothing")
    assert notes([], KNOWN, asked=True) == []
