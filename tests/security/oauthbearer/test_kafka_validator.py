"""Kafka's own validator (BrokerJwtValidator of 4.3.1, with jose4j) takes and refuses the tokens that ours does."""

import subprocess
import time
from pathlib import Path

from scripts.rig.identity_provider import AUDIENCE, ISSUER, key_set
from scripts.rig.java_clients import compiled
from scripts.rig.kafka import KafkaKit
from tests.depth import only_deep
from tests.security.oauthbearer.cases import CASES, EC, RSA, SKEW_S

SOURCE = Path(__file__).parents[3] / "scripts" / "rig" / "TokenVerdicts.java"
_ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"


@only_deep("needs a Java compiler")
def test_kafka_takes_and_refuses_the_same_tokens(tmp_path: Path, kafka_kit: KafkaKit) -> None:
    path = tmp_path / "keys.json"
    path.write_text(key_set(EC, RSA))
    options = (f"{_ALLOWED}.urls=file://{path}", f"{_ALLOWED}.files={path}")
    command = kafka_kit.command("TokenVerdicts", f"file://{path}", AUDIENCE, ISSUER, str(SKEW_S), options=options)
    command[command.index("-cp") + 1] += f":{compiled(kafka_kit, SOURCE, 'token-verdicts')}"
    now_s = int(time.time())
    asked = "".join(f"{int(case.expects)} {case.token(now_s)}\n" for case in CASES)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(CASES), done.stderr
    for case, answer in zip(CASES, answers, strict=True):
        verdict, _, words = answer.partition(" ")
        assert verdict == ("taken" if case.reason is None else "refused"), (case.name, answer)
        assert verdict == "refused" or words == case.user, case.name
