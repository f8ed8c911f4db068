"""Log directories of a cluster as lines: what is unknown looks so, and nothing in a name is obeyed by a terminal."""

from kjbod.cli.cluster_text import as_document, notes, summary, table_of
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
    (row,) = rows(LogDir(path="/d1", error_code=56, replicas=3, directory=Inferred(None, reason="r")), ids=True)
    assert row == ["1", "offline", *["-"] * 3, "3", *["-"] * 7, "/d1 (KAFKA_STORAGE_ERROR)"]


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
    dirs = [
        LogDir(path=f"/d{number}", directory=each, untold=number, has_metadata_log=False)
        for number, each in enumerate(ids)
    ]
    known = Known(partitions={"t": {0: Partition(1, (1,), (1,))}}, min_isrs={}, shares={}, trouble=Trouble(1, 0, None))
    inferred, unknown, min_isr, untold = notes([BrokerDirs(node=NODE, log_dirs=dirs)], known, asked=True)
    assert inferred == "directory.id is inferred, since no broker tells it: by replicas (2) and by elimination (1)"
    assert unknown == "directory.id of 1 directory cannot be inferred: --json says why of each"
    assert min_isr.startswith("min.insync.replicas of 1 topic is not known")
    assert untold == (
        "the cluster tells nothing of the partitions of 6 replicas: who asks may not DESCRIBE their topics, or "
        "partitions were created or deleted meanwhile: ask again"
    )
    assert notes([], KNOWN, asked=True) == []


def test_the_directory_with_the_metadata_log_is_marked_and_where_it_is_unknown_is_said() -> None:
    marked = LogDir(path="/d1", has_metadata_log=True, failure=Failure(9, 0, 0))
    assert rows(marked)[0][-1] == "/d1 (metadata log)"
    known = BrokerDirs(node=NODE, log_dirs=[marked, LogDir(path="/d2", has_metadata_log=False)])
    (legend,) = notes([known], KNOWN, asked=True)
    assert legend.startswith("(metadata log): the broker ends when this directory fails")
    (unknown,) = notes([BrokerDirs(node=NODE, log_dirs=[LogDir(path="/d1")])], KNOWN, asked=True)
    assert unknown.startswith(
        "in which directory 1 broker has the metadata log is not known (it takes DESCRIBE_CONFIGS"
    )
    document = as_document("c", KNOWN, [known, BrokerDirs(node=NODE, log_dirs=[LogDir(path="/d1")])])
    told = [[each["has_metadata_log"] for each in broker["log_dirs"]] for broker in document["brokers"]]
    assert told == [[True, False], [None]]


def test_numbers_that_are_not_known_are_a_question_and_null() -> None:
    known = Known(partitions={}, min_isrs={}, shares={}, trouble=None, strangers=None)
    silent = BrokerDirs(node=NODE, error="silent")
    assert table_of([silent], ids=False)[1].split() == ["1", "no", "answer", *["-"] * 3, "?", "-", "-", "?", *["-"] * 3,
                                                        "silent"]  # fmt: skip
    assert summary([silent], known).endswith("; ? partitions")
    assert notes([silent], known, asked=True) == [
        "which partitions there are is not known: it takes DESCRIBE on the topics"
    ]
    document = as_document("c", known, [silent])
    assert document["partitions"] == dict.fromkeys(("count", "leaderless", "under_min_isr"))
    assert document["unregistered_brokers"] is None and document["brokers"][0]["replicas"] is None


def test_replicas_that_are_offline_or_on_brokers_that_are_not_registered_are_counted() -> None:
    known = Known(partitions={}, min_isrs={}, shares={}, trouble=Trouble(3, 0, 0), strangers={7: Share(4)})
    node = Node(id=2, host="h2", port=9092, fenced=False)
    gone = LogDir(path="/d1", error_code=56, has_metadata_log=False)
    broker = BrokerDirs(node=node, log_dirs=[gone], share=Share(6, offline=2))
    assert notes([broker], known, asked=True) == [
        "replicas that are offline, nobody tells in which directory: 2 on broker 2",
        "replicas on brokers that are not registered: 4 on broker 7",
    ]
    assert as_document("c", known, [])["unregistered_brokers"] == [
        {"id": 7, "replicas": 4, "leaders": 0, "offline_replicas": 0}
    ]
    many = Known(
        partitions={}, min_isrs={}, shares={}, trouble=Trouble(3, 0, 0), strangers={n: Share(1) for n in range(12)}
    )
    assert notes([], many, asked=True)[0].endswith("1 on broker 9, and on 2 more")


def test_an_empty_path_is_a_question() -> None:
    assert rows(LogDir(path=""))[0][-1] == "?"
