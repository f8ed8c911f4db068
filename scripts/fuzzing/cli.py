"""The command line of ``scripts/fuzz``."""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.runtime.loop import run
from scripts.bench.controller_rig import ControllerRig
from scripts.fuzzing.harness import Fuzzer
from scripts.terminal import INTERRUPTED, interrupt, say

REFUSED_SHARE: Final = 0.5
ACCOUNTED_SHARE: Final = 0.02


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Damaged and random requests to a controller process: it must live, keep within its memory, serve "
        "others, and have the metadata that it said it had. Half of the frames may change nothing; the others may do "
        "anything, and then the controller is killed and started again. Exit code 1 when something is wrong; the last "
        "frames are in last-frames.hex then.",
    )
    parser.add_argument("--frames", type=_positive, default=1_000_000, metavar="N", help="(1000000)")
    parser.add_argument("--seed", type=int, help="the same one makes the same frames (by chance)")
    parser.add_argument("--connections", type=_positive, default=16, metavar="N", help="at a time (16)")
    parser.add_argument("--memory-mib", type=_positive, default=512, metavar="N", help="what it may take (512)")
    parser.add_argument("--rules", choices=("kip-858", "kafka"), default="kip-858", help="of the controller (kip-858)")
    parser.add_argument("--out", type=Path, default=Path("kjbod-bench/fuzz"), help="logs, and what was sent last")
    options = parser.parse_args(argv)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    return options


def main() -> int:
    """The exit code."""
    options = arguments()
    signal.signal(signal.SIGTERM, interrupt)
    options.out.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    say(f"seed {options.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="kjbod-fuzz-") as work,
        ControllerRig(Path(work), options.out / "logs", "kjbod", kit=None, rules=options.rules, heap_mib=0) as rig,
    ):
        fuzzer = Fuzzer(rig, seed=options.seed, connections=options.connections, memory_mib=options.memory_mib, say=say)
        refused = int(options.frames * REFUSED_SHARE)
        accounted = int(options.frames * ACCOUNTED_SHARE)

        async def fuzz() -> int:
            await fuzzer.run(refused, options.frames - refused - accounted, accounted)
            return 0

        try:
            code = run(fuzz)
        except (KjbodError, OSError) as error:
            (options.out / "last-frames.hex").write_text("\n".join(fuzzer.last) + "\n")
            for bug, times in sorted(fuzzer.bugs.items()):
                say(f"{times} × {bug}")
            print(f"scripts/fuzz: seed {options.seed}: {str(error).splitlines()[0]}", file=sys.stderr)
            code = EXIT_FAILURE
        except KeyboardInterrupt:
            code = INTERRUPTED
    if code == INTERRUPTED:
        say("interrupted; everything was taken away")
        return code
    tally = fuzzer.tally
    print(
        f"{tally.sent} frames in {time.monotonic() - began_s:.0f} s, {tally.answered} answered, {tally.closed} "
        f"connections closed by the controller, {tally.parked} times parked; others waited at most "
        f"{1000 * tally.longest_s:.0f} ms; PSS at most {tally.most_mib:.0f} MiB"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
