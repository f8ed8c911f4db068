"""The small files of a lake: what a commit relies on holds by Hadoop's classes and by pyarrow."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.ingest.stream import inbox_uri
from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.files import Files, HadoopFiles
from kjbod.fleet.lake.lake import open_lake

pytestmark = pytest.mark.usefixtures("with_spark")

FilesAt = Callable[[Path | str], Files]


@pytest.fixture(params=["hadoop", "arrow"])
def files_at(request: pytest.FixtureRequest, spark: Any) -> FilesAt:
    if request.param == "arrow":
        return lambda place: ArrowFiles(str(place))
    return lambda place: HadoopFiles(spark, str(place))


@pytest.fixture
def files(files_at: FilesAt, tmp_path: Path) -> Files:
    return files_at(tmp_path / "lake")


def names(files: Files, path: str = "") -> list[str]:
    return [entry.name for entry in files.list(path)]


def test_a_file_that_was_made_is_read_as_it_was_written(files: Files) -> None:
    assert files.create("_live/1.json", "ä\n\U0001f600 \x00")
    assert files.read("_live/1.json") == "ä\n\U0001f600 \x00"
    assert [(e.name, e.is_directory, e.size) for e in files.list("_live")] == [("1.json", False, 9)]
    assert [(e.name, e.is_directory) for e in files.list("")] == [("_live", True)]


def test_nothing_is_there_before_it_was_made(files: Files) -> None:
    assert files.read("a/b") is None
    assert files.list("") == files.list("a/b") == []
    files.delete("a/b")
    files.create("a", "")
    assert files.read("a/b") is None


def test_a_file_that_is_there_is_not_made_again(files: Files) -> None:
    assert files.create("a", "first")
    assert not files.create("a", "second")
    assert files.read("a") == "first"
    assert names(files) == ["a"]


def test_of_many_who_make_a_file_at_once_one_does(files: Files, files_at: FilesAt) -> None:
    others = [files_at(files.root) for _ in range(6)]
    for round_number in range(5):
        made: list[int] = []
        barrier = threading.Barrier(len(others))

        def create(
            number: int, path: str = f"r{round_number}", made: list[int] = made, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            if others[number].create(path, str(number)):
                made.append(number)

        threads = [threading.Thread(target=create, args=(n,)) for n in range(len(others))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [str(number) for number in made] == [files.read(f"r{round_number}")]
    assert names(files) == [f"r{n}" for n in range(5)]  # and nothing hidden is left


def test_a_file_is_replaced_as_a_whole(files: Files, tmp_path: Path) -> None:
    files.replace("c/x", "one")
    before = (tmp_path / "lake/c/x").stat().st_ino
    files.replace("c/x", "second")
    assert files.read("c/x") == "second"
    assert (
        tmp_path / "lake/c/x"
    ).stat().st_ino != before  # not written over: whoever reads it has the one or the other
    assert names(files, "c") == ["x"]


def test_what_a_kill_cut_short_can_still_be_read(files: Files, tmp_path: Path) -> None:
    files.replace("x", "whole")
    (tmp_path / "lake/x").write_text("who")
    assert files.read("x") == "who"


def test_a_rename_does_not_take_the_place_of_another(files: Files) -> None:
    files.create("a", "1")
    files.create("b", "2")
    assert not files.rename("a", "b")
    assert not files.rename("gone", "c")
    assert files.rename("a", "c")
    assert (files.read("a"), files.read("b"), files.read("c")) == (None, "2", "1")


def test_a_directory_is_renamed_and_deleted_with_all_that_is_in_it(files: Files) -> None:
    files.create("d/e/f", "x")
    files.create("g/h", "y")
    assert not files.rename("d", "g")
    assert files.rename("d", "i")
    assert files.read("i/e/f") == "x"
    files.delete("i")
    assert names(files) == ["g"]


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://{}/"])
def test_a_lake_has_one_name_however_it_is_given(files_at: FilesAt, tmp_path: Path, form: str) -> None:
    place = tmp_path / "a b%20c+ä"
    assert files_at(form.format(place)).root == f"file:{place}"
    files_at(form.format(place)).create("x", "")
    files_at(form.format(place)).sync("")
    assert [path.name for path in place.iterdir()] == ["x"]


def test_a_relative_path_is_that_of_this_process(files_at: FilesAt, spark: Any) -> None:
    # Java's working directory is where the session began.
    assert files_at("some/lake").root == f"file:{Path.cwd()}/some/lake"


def test_a_relative_path_may_have_a_colon_in_it(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = open_lake(spark, "l:1/ä", create=True)
    assert lake.uri == f"file:{tmp_path}/l:1/ä"
    assert open_lake(spark, f"{tmp_path}/l:1/ä").lake_id == lake.lake_id
    (tmp_path / "i:x").mkdir()
    with pytest.raises(FleetError, match="--reports i:x: not with a colon"):
        inbox_uri(spark, "i:x")


@pytest.mark.parametrize("name", ["{a}", "[a]", "a*", "a?", "a\\b"])
def test_a_lake_whose_name_is_a_pattern_is_refused_at_once(spark: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(FleetError, match=r"--lake .*for a pattern"):
        open_lake(spark, f"{tmp_path}/{name}", create=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("uri", ["nosuch://host/lake", "file:relative"])
def test_a_uri_that_nobody_knows_is_refused_in_one_line(files_at: FilesAt, uri: str) -> None:
    with pytest.raises(FleetError, match=uri.partition(":")[0]) as refused:
        files_at(uri)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("act", ["create", "read", "replace", "list"])
def test_what_the_file_system_refuses_says_where(files: Files, tmp_path: Path, act: str) -> None:
    # A link to itself: refused to root as well.
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/loop").symlink_to("loop")
    acts: dict[str, Callable[[], object]] = {
        "create": lambda: files.create("loop/x", ""),
        "read": lambda: files.read("dir"),
        "replace": lambda: files.replace("loop/x", ""),
        "list": lambda: files.replace("dir", ""),
    }
    files.create("dir/x", "")
    with pytest.raises(FleetError, match=str(tmp_path)) as refused:
        acts[act]()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("root", ["/sys/kernel", "/sys/kernel/kjbod-lake"])
def test_where_a_lake_may_not_be_written_to_is_said_what_to_do(files_at: FilesAt, root: str) -> None:
    files = files_at(root)  # refused to root as well
    for act in (files.create, files.replace):
        with pytest.raises(
            FleetError, match=f"{root}/a: .*: give its user the right to write there, or another --lake"
        ):
            act("a", "")


def test_a_host_that_is_not_known_is_said_to_be_so(spark: Any) -> None:
    with pytest.raises(FleetError, match=r"^hdfs://nosuch\.invalid:8020/x: unknown host: nosuch\.invalid$"):
        HadoopFiles(spark, "hdfs://nosuch.invalid:8020/x")


def test_through_connect_a_lake_of_another_file_system_is_not_changed() -> None:
    files = ArrowFiles("gs://anonymous@bucket/lake/")
    acts: list[Callable[[], object]] = [
        lambda: files.create("a", ""),
        lambda: files.replace("a", ""),
        lambda: files.delete("a"),
        lambda: files.rename("a", "b"),
    ]
    for act in acts:
        with pytest.raises(FleetError, match="gs://anonymous@bucket/lake: through Spark Connect only a lake at file: "):
            act()
