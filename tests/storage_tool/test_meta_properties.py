"""meta.properties: content, ensemble, texts. Names carry the rows of Kafka's own tests (MP-n)."""

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid, random_directory_id
from kjbod.meta_properties import (
    Ensemble,
    MetaProperties,
    MetaPropertiesError,
    Requirement,
    load_ensemble,
    parse_meta_properties,
    render_meta_properties,
    verify_ensemble,
    with_directory_ids,
)

MOMENT = datetime(2026, 11, 20, 18, 25, 21, tzinfo=UTC)
D1, D2, D3 = (Uuid.of(1, n) for n in (1, 2, 3))
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def meta(directory_id: Uuid | None = D1, **changes: object) -> MetaProperties:
    values: dict[str, object] = {"cluster_id": CLUSTER, "node_id": 1, "directory_id": directory_id, **changes}
    return MetaProperties(**values)  # type: ignore[arg-type]


class ScriptedRandom(random.Random):
    """Draws what it was told to."""

    def __init__(self, *draws: bytes) -> None:
        super().__init__(0)
        self._draws = list(draws)

    def randbytes(self, n: int) -> bytes:
        return self._draws.pop(0)


def test_the_bytes_are_those_that_kafka_writes() -> None:
    written = render_meta_properties(meta(Uuid.parse("mEZSFQpDTSesxL0eelErhg"), node_id=3000), MOMENT)
    assert written == (
        b"#\n"
        b"#Fri Nov 20 18:25:21 UTC 2026\n"
        b"node.id=3000\n"
        b"directory.id=mEZSFQpDTSesxL0eelErhg\n"
        b"version=1\n"
        b"cluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"
    )


@pytest.mark.parametrize("cluster_id", [None, "fooClusterId"])
@pytest.mark.parametrize("node_id", [None, 2])
@pytest.mark.parametrize("directory_id", [None, D1])
def test_mp_1_any_part_of_a_version_0_file_may_be_absent(
    cluster_id: str | None, node_id: int | None, directory_id: Uuid | None
) -> None:
    written = MetaProperties(0, cluster_id, node_id, directory_id)
    assert parse_meta_properties(render_meta_properties(written, MOMENT), "f") == written


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.binary(min_size=16, max_size=16).map(Uuid),
)
def test_mp_2_a_version_1_file_survives_the_round_trip_and_its_cluster_id_is_free_text(
    cluster_id: str, node_id: int, directory_id: Uuid | None
) -> None:
    written = MetaProperties(1, cluster_id, node_id, directory_id)
    assert parse_meta_properties(render_meta_properties(written, MOMENT), "f") == written


def test_unknown_keys_are_ignored_and_the_last_of_two_counts() -> None:
    text = b"version=1\nnode.id=1\nnode.id=2\ncluster.id=c\nbroker.id=9\nnew.key=x\n"
    assert parse_meta_properties(text, "f") == MetaProperties(1, "c", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version=1\nnode.id=1", "cluster.id was not found."),
        ("version=1\ncluster.id=c", "Failed to find node.id"),
        ("version=1\ncluster.id=c\nnode.id=x", "Unable to read node.id as a base-10 number."),
        ("version=1\ncluster.id=c\nnode.id=2147483648", "Unable to read node.id as a base-10 number."),
        ("broker.id= ", "Unable to read broker.id as a base-10 number."),
        ("version=2", "Unknown meta.properties version number 2"),
        ("version=one", "Invalid meta.properties version string 'one'"),
        (
            "version=1\ncluster.id=c\nnode.id=1\ndirectory.id=zz",
            "Unable to read directory.id as a Uuid: Input string `zz` decoded as 1 bytes, "
            "which is not equal to the expected 16 bytes of a base64-encoded UUID",
        ),
        ("version=\\u12", "Malformed \\uxxxx encoding: \\u12"),
    ],
)
def test_mp_3_a_file_that_cannot_be_used_is_told_in_kafkas_words(text: str, message: str) -> None:
    with pytest.raises(MetaPropertiesError) as caught:
        parse_meta_properties(text.encode(), "/d/meta.properties")
    assert str(caught.value) == f"Error loading /d/meta.properties: {message}"


def test_mp_4_directories_are_readable_empty_or_failed() -> None:
    good = render_meta_properties(meta(), MOMENT)
    ensemble = load_ensemble(
        {"/a": good, "/b": None, "/c": PermissionError(13, "Permission denied"), "/d": b"version=9"}
    )
    assert ensemble.properties == {"/a": meta()}
    assert ensemble.empty == {"/b"}
    assert ensemble.errors == {
        "/c": "/c/meta.properties: Permission denied",
        "/d": "Error loading /d/meta.properties: Unknown meta.properties version number 9",
    }


def test_a_node_has_at_least_one_directory() -> None:
    with pytest.raises(MetaPropertiesError, match=r"You must specify at least one log directory\."):
        load_ensemble({})


@pytest.mark.parametrize("expected", [{}, {"cluster_id": CLUSTER}, {"cluster_id": CLUSTER, "node_id": 1}])
def test_mp_5_directories_that_agree_pass(expected: dict[str, object]) -> None:
    ensemble = Ensemble(
        {"/a": meta(), "/b": meta(D2), "/c": meta(None), "/z": meta(None)}, frozenset({"/d"}), {"/e": "x"}
    )
    verify_ensemble(ensemble, **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ensemble", "require", "message"),
    [
        (Ensemble({}), Requirement.AT_LEAST_ONE_VALID, "No readable meta.properties files found."),
        (Ensemble({"/a": meta()}), Requirement.METADATA_LOG_DIR, "No metadata log directory was specified."),
        (
            Ensemble({}, errors={"/a": "x"}, metadata_log_dir="/a"),
            Requirement.NOTHING,
            "Encountered I/O error in metadata log directory /a. Cannot continue.",
        ),
        (
            Ensemble({"/a": meta()}),
            Requirement.V0,
            "Found unexpected version in /a/meta.properties. ZK-based brokers that are not migrating only support "
            "version 0 (which is implicit when the `version` field is missing).",
        ),
    ],
)
def test_mp_6_what_is_required_must_be_there(ensemble: Ensemble, require: Requirement, message: str) -> None:
    with pytest.raises(MetaPropertiesError) as caught:
        verify_ensemble(ensemble, require=require)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (meta(D2, cluster_id="x"), f"Invalid cluster.id in: /b/meta.properties. Expected {CLUSTER}, but read x"),
        (
            meta(D2, node_id=2),
            "Stored node id 2 doesn't match previous node id 1 in /b/meta.properties. If you moved your data, make "
            "sure your configured node id matches. If you intend to create a new node, you should remove all data in "
            "your data directories.",
        ),
        (
            meta(D1),
            f"Duplicate directory ID {D1} found. It was the ID of /a, but also of /b: "
            "mount each disk once, and take a copy of a disk out of log.dirs",
        ),
        *((meta(one), f"Invalid reserved directory ID {one} found in /b") for one in (MIGRATING, UNASSIGNED, LOST)),
        (meta(Uuid.of(0, 99)), f"Invalid reserved directory ID {Uuid.of(0, 99)} found in /b"),
    ],
)
def test_directories_that_contradict_each_other_are_refused_in_kafkas_words(
    other: MetaProperties, message: str
) -> None:
    with pytest.raises(MetaPropertiesError) as caught:
        verify_ensemble(Ensemble({"/b": other, "/a": meta()}))
    assert str(caught.value) == message


def test_what_was_expected_counts_before_what_is_there() -> None:
    with pytest.raises(MetaPropertiesError, match="Expected other, but read"):
        verify_ensemble(Ensemble({"/a": meta()}), cluster_id="other")
    with pytest.raises(MetaPropertiesError, match="Stored node id 1 doesn't match previous node id 7"):
        verify_ensemble(Ensemble({"/a": meta()}), node_id=7)


def test_mp_7_a_drawn_directory_id_is_never_reserved_used_or_like_an_option() -> None:
    dash = Uuid.parse("-EZSFQpDTSesxL0eelErhg")
    rng = ScriptedRandom(dash, LOST, MIGRATING, UNASSIGNED, Uuid.of(0, -5), D1, D2, D3)
    assert random_directory_id(rng, {D1, D2}) == D3


def test_directories_without_an_id_get_one_each_and_the_others_are_left_alone() -> None:
    ensemble = Ensemble({"/a": meta(), "/b": meta(None), "/c": meta(None, version=0)})
    changed = with_directory_ids(ensemble, ScriptedRandom(D1, D2, D2, D3))
    assert changed == {"/b": meta(D2), "/c": meta(D3, version=0)}
    assert with_directory_ids(Ensemble({"/a": meta()}), ScriptedRandom()) == {}


def test_shown_as_the_tool_shows_it() -> None:
    assert str(meta()) == f"{{cluster.id={CLUSTER}, directory.id={D1}, node.id=1, version=1}}"
    assert str(MetaProperties(0, None, 4)) == "{broker.id=4, version=0}"
