"""Places of a listener: who has one, until when, and that each is given back once."""

from typing import Any

from kjbod.clock import SystemClock
from kjbod.wire.admission import LOGIN_GRACE_MS, Admission, Admissions
from kjbod.wire.limits import Limits


class ManualClock(SystemClock):
    """A clock that a test moves."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


def admissions(*, secured: bool = True, **limits: Any) -> Admissions:
    return Admissions(Limits(**limits), ManualClock(), secured=secured)


def entered(places: Admissions, host: str = "h") -> Admission:
    found = places.enter(host)
    assert isinstance(found, Admission), found
    return found


def clock(places: Admissions) -> ManualClock:
    assert isinstance(places._clock, ManualClock)
    return places._clock


def test_a_place_is_given_back_once_however_often_its_connection_ends() -> None:
    places = admissions()
    first, second = entered(places), entered(places)
    first.logged_in()
    assert (places.count, places.logging_in) == (2, 1)
    for _ in range(3):
        first.leave()
    assert (places.count, places.logging_in) == (1, 1)
    second.leave()
    assert (places.count, places.logging_in) == (0, 0)


def test_who_has_not_logged_in_takes_at_most_half_of_all_places() -> None:
    places = admissions(max_connections=4, max_logging_in=100)
    entered(places), entered(places)
    assert places.enter("h") == "2 others have not logged in yet"


def test_a_newcomer_gets_the_place_of_who_was_silent_for_longest() -> None:
    places = admissions(max_connections=4, max_logging_in=100)
    first, second = entered(places), entered(places)
    gone: list[Admission] = []

    def ends(place: Admission) -> bool:
        gone.append(place)
        place.leave()
        return True

    first.waits(lambda: ends(first))
    second.waits(lambda: ends(second))
    entered(places)
    assert gone == [first] and places.logging_in == 2


def test_whose_first_words_have_just_come_does_not_give_way() -> None:
    places = admissions(max_connections=4, max_logging_in=100)
    first, second = entered(places), entered(places)

    def speaks() -> bool:
        first.waits(None)
        return False

    def ends() -> bool:
        second.leave()
        return True

    first.waits(speaks)
    second.waits(ends)
    entered(places)
    assert places.logging_in == 2 and not places.silent


def test_who_tries_to_log_in_is_let_alone_for_some_time_and_then_gives_way_in_turn() -> None:
    places = admissions(max_connections=4, max_logging_in=100)
    ended: list[str] = []
    first, second = entered(places), entered(places)
    first.begins(lambda: ended.append("handshake"), 0)
    second.begins(lambda: ended.append("second"), 0)
    first.begins(lambda: ended.append("login"), LOGIN_GRACE_MS - 1)  # it goes on: its time does not begin anew
    clock(places).now_ms = LOGIN_GRACE_MS - 1
    assert places.enter("h") == "2 others have not logged in yet"
    clock(places).now_ms = LOGIN_GRACE_MS
    entered(places)
    assert ended == ["login"] and places.logging_in == 2
    second.logged_in()
    assert not places.trying


def test_without_a_login_to_wait_for_only_all_of_them_count() -> None:
    places = admissions(secured=False, max_connections=2)
    entered(places), entered(places)
    assert places.logging_in == 0 and places.enter("h") == "there are 2 connections already"


def test_an_address_has_its_places_again_when_its_connections_have_ended() -> None:
    places = admissions(max_connections_per_ip=1)
    first = entered(places, "a")
    assert places.enter("a") == "there are 1 connections from a already"
    entered(places, "b")
    first.leave()
    entered(places, "a")


def test_the_time_for_a_login_begins_when_our_own_rate_lets_the_connection_go_on() -> None:
    places = admissions(max_connection_creation_rate=10, login_timeout_ms=1_000, max_logging_in=100)
    last = [entered(places) for _ in range(15)][-1]
    assert last.wait_ms > 0
    assert last.deadline_ms == int(last.wait_ms) + 1_000
    assert last.left_s(last.deadline_ms + 5_000) > 0
