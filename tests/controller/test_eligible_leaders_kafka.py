"""Brokers that go and come back with eligible leader replicas (KIP-966), beside a real controller of Kafka 4.4.0.

One story: all processes fall silent and are replaced, in order and not in order, with directories lost meanwhile.
"""

import asyncio
from pathlib import Path

import pytest

from kjbod.metadata import versions
from kjbod.metadata.image import BROKER, TOPIC
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from tests.controller.pair import Silence
from tests.controller.random_requests import (
    Part,
    Step,
    alter_isr,
    assign,
    beat,
    configure,
    create,
    dirs_of,
    elect,
    register,
    unregister,
)
from tests.controller.test_differential import CLUSTER_ID, SESSION_MS, joined, random_stories

SET, DELETE = 0, 1
PREFERRED, UNCLEAN = 0, 1
BROKERS = (1, 2, 3)
ALL = (0, 1, 2)
MIN_ISR = "min.insync.replicas"


def replaced(broker_id: int, number: int, *, clean: bool, without: int = 0) -> Step:
    """A new process registers; ``without``: how many of its directories it does not have any more."""
    previous = None if clean else -1
    dirs = dirs_of(broker_id)[without:]
    request = register(broker_id, CLUSTER_ID, number, previous_broker_epoch=previous, log_dirs=dirs)
    return f"process {number} of {broker_id} registers", request


def up_to_the_first_restart() -> list[Step]:
    return [
        *joined(*BROKERS),
        ("topic", create("t", [(1, 2, 3), (2, 3, 1), (3,)], min_insync_replicas="2")),
        ("another", create("u", [(1, 2), (2, 1)])),
        *((f"places t on {each}", assign(each, (dirs_of(each)[0], "t", ALL))) for each in BROKERS),
        *((f"places u on {each}", assign(each, (dirs_of(each)[1], "u", (0, 1)))) for each in (1, 2)),
        *((f"{each} is fenced", beat(each, want_fence=True)) for each in (3, 1, 2)),
    ]


def after_all_were_gone() -> list[Step]:
    return [
        replaced(2, 1, clean=True),
        ("2 is back", beat(2)),
        ("nobody else is there", elect(PREFERRED, ("t", ALL), ("u", (0, 1, 7)))),
        replaced(1, 1, clean=False),
        ("1 is back", beat(1)),
        ("1 is in sync again", alter_isr("t", 0, (2, 1))),
        ("what is preferred leads", elect(PREFERRED)),
        ("what has no leader gets one", elect(UNCLEAN)),
        ("no leader is needed", elect(UNCLEAN, ("t", (0,)), ("none", (0,)))),
        ("no such election", elect(3)),
        replaced(3, 1, clean=True, without=1),
        ("made anew", assign(3, (dirs_of(3)[1], "t", ALL))),
        ("3 is back", beat(3)),
        ("leaves the ISR", alter_isr("t", 1, (2,))),
        ("the topic needs three", configure(TOPIC, "t", (MIN_ISR, SET, "3"))),
        ("the cluster needs two", configure(BROKER, "", (MIN_ISR, SET, "2"))),
        ("the topic asks the cluster", configure(TOPIC, "t", (MIN_ISR, DELETE, None))),
        ("the cluster must have one", configure(BROKER, "", (MIN_ISR, DELETE, None))),
        ("brokers must have the same", configure(BROKER, "1", (MIN_ISR, SET, "1"))),
        ("unclean where it is wanted", configure(TOPIC, "u", ("unclean.leader.election.enable", SET, "true"))),
        ("a directory fails", beat(2, offline_log_dirs=dirs_of(2)[:1])),
        ("another one", beat(1, offline_log_dirs=dirs_of(1)[1:2])),
        ("goes in order", beat(1, want_shut_down=True, offline_log_dirs=dirs_of(1)[1:2])),
        ("is unregistered", unregister(1)),
        ("is fenced", beat(2, want_fence=True)),
        ("comes back", beat(2)),
    ]


def replacements() -> list[Part]:
    # All three are fenced by then: their sessions end without a change of a partition, in whatever order.
    return [*up_to_the_first_restart(), ("all fall silent", Silence(BROKERS)), *after_all_were_gone()]


@pytest.mark.usefixtures("newest_kit")
def test_brokers_that_are_replaced_leave_the_same_leaders_as_at_a_real_controller(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    stories = random_stories(newest_kit, processes, tmp_path, (), chapters=[replacements], session_ms=SESSION_MS)
    told = asyncio.run(stories)
    assert not told.found, told.report()
    assert told.fenced >= len(BROKERS), told.report()
    assert told.features[versions.ELIGIBLE_LEADER_REPLICAS_VERSION] == 1
