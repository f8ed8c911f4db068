"""A producer for a Kafka broker under test: keeps every partition of a topic busy until it is killed.

``python -P detection_kafka_load.py PORT TOPIC PARTITIONS``. What the broker refuses is not its business: it goes on.
"""

import logging
import sys
import time
from typing import NoReturn

from kafka import KafkaProducer
from kafka.errors import KafkaError

PAUSE_S = 0.02
VALUE = b"x" * 500


def main(port: int, topic: str, partitions: int) -> NoReturn:
    """Send to one partition after the other. With short deadlines a stuck partition stops no other."""
    logging.disable(logging.CRITICAL)
    producer = KafkaProducer(
        bootstrap_servers=[f"127.0.0.1:{port}"],
        acks=1,
        enable_idempotence=False,
        request_timeout_ms=5000,
        delivery_timeout_ms=6000,
        max_block_ms=100,
        metadata_max_age_ms=2000,
    )
    told = False
    partition = 0
    while True:
        try:
            future = producer.send(topic, VALUE, partition=partition)
            if not told:
                future.get(timeout=30)
                told = True
                print("ready", flush=True)
        except KafkaError:
            pass
        partition = (partition + 1) % partitions
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
