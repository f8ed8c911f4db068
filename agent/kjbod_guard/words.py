"""Lines of a guard for people: the log, the audit, the status. Pure."""

from kjbod_guard.ladder import KafkaView, Step, Would
from kjbod_guard.observing import Held
from kjbod_host.health.evidence import Evidence, Verdict
from kjbod_host.health.state import Cause, Health


def happened(verdict: Verdict) -> str:
    """Return the text about a verdict that follows a path: ``hung for 1.9 s``."""
    evidence = verdict.evidence
    match verdict.cause:
        case Cause.HUNG | Cause.SILENT | Cause.HELD:
            kind = {Cause.HUNG: "hung", Cause.SILENT: "silent"}.get(verdict.cause, "held")
            return f"{kind}{_lasting(evidence)}"
        case Cause.ERROR | Cause.REPEATED_ERRORS:
            return f"{_state(verdict.state)}: {evidence.errno} at {evidence.call}"
        case Cause.MOUNT:
            return f"{_state(verdict.state)}: its mount is {evidence.call}"
        case Cause.NONE:
            return "well again" if verdict.state is Health.ONLINE else str(verdict.state)
    return str(verdict.state) if str(verdict.state) == str(verdict.cause) else f"{verdict.state} ({verdict.cause})"


def _lasting(evidence: Evidence) -> str:
    lasting_ms = evidence.silent_ms if evidence.silent_ms is not None else evidence.age_ms
    return "" if lasting_ms is None else f" for {lasting_ms / 1000:.1f} s"


def _state(state: Health) -> str:
    return "failed" if state is Health.FAILED else f"is {state}"


def noticed(view: KafkaView) -> str:
    """Return the text about Kafka's view of a directory."""
    return {
        KafkaView.ONLINE: "Kafka has not noticed",
        KafkaView.OFFLINE: "Kafka has noticed",
        KafkaView.UNKNOWN: "whether Kafka has noticed is not known",
    }[view]


def held_there(held: Held | None) -> str:
    """Return the text about the replicas in a directory; None: not known."""
    if held is None:
        return "what it holds is not known"
    return f"{held.led} partition{'' if held.led == 1 else 's'} led, {held.followed} followed"


def outcome(decided: Would) -> str:
    """Return the text about the step that a guard in mode act would take."""
    if decided.step is Step.NOTHING:
        return f"nothing to do: {decided.reason}" if decided.reason else "nothing to do"
    return f"would {decided.step} ({decided.reason})"


def line(path: str, what: str, view: KafkaView, held: Held | None, decided: Would) -> str:
    """Return a line: ``disk /mnt/d3 hung for 1.9 s, Kafka has not noticed, 214 partitions led, 420 followed; would cut
    (...)``."""
    # Do not repeat that Kafka's view is not known.
    reason = [] if decided.reason == noticed(view) else [noticed(view)]
    return f"disk {path} {', '.join([what, *reason, held_there(held)])}; {outcome(decided)}"
