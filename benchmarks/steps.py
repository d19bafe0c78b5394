"""Steps of a run that may be cut off at any moment: commands, one after the other, each with a time limit of its own.

What a command prints goes to a file of the folder at once, and a journal there has a line when a step begins and when
it ends. So whatever ends this process, its results so far are there. A command that takes too long is interrupted, as
by Ctrl-C, so that it can still print what it knows, and killed if it does not end.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

JOURNAL = "steps.jsonl"
ROOT = Path(__file__).parents[1]
GRACE = 10.0  # seconds between an interrupt and a kill, for a command that does not end
TICK = 0.05  # seconds between two looks at a command
PASSED, FAILED, CUT_OFF, SKIPPED, NOT_REACHED = "passed", "failed", "cut off", "skipped", "not reached"
RUNNING, INTERRUPTED = "running", "interrupted"
GOOD = (PASSED, SKIPPED)


class Step(NamedTuple):
    """A command and the most seconds that it may take; or why there is none."""

    name: str
    command: Sequence[str] = ()
    limit: float = 60.0
    skipped: str = ""


class Ended(NamedTuple):
    name: str
    state: str
    seconds: float = 0.0
    why: str = ""
    status: int | None = None  # of the command


def run(
    steps: Sequence[Step],
    folder: Path,
    seconds: float,
    after: Callable[[], None],
    environment: Mapping[str, str] | None = None,
    asked: Sequence[int] = (),
) -> list[Ended]:
    """Run every step, as long as the seconds last. `after` is called after every step.

    asked: what `asked_to_end` yields. A signal also interrupts the step, and ends the run with the results so far.
    """
    end, ended = time.monotonic() + seconds, list[Ended]()
    for i, step in enumerate(steps):
        left = end - time.monotonic()
        if asked:
            ended += [Ended(other.name, NOT_REACHED, why="interrupted before") for other in steps[i:]]
            break
        if step.skipped:
            found = Ended(step.name, SKIPPED, why=step.skipped)
        elif left <= 0:
            found = Ended(step.name, NOT_REACHED, why="the time was over")
        else:
            write(folder, Ended(step.name, RUNNING))
            try:
                found = execute(step, folder, min(step.limit, left), environment or {}, asked)
            except OSError as error:  # the command cannot be started
                found = Ended(step.name, FAILED, why=str(error))
        write(folder, found)
        ended.append(found)
        after()
    return ended


def execute(step: Step, folder: Path, limit: float, environment: Mapping[str, str], asked: Sequence[int]) -> Ended:
    show(f"--- {step.name}, at most {limit:.0f} s\n")
    log, start = folder / f"{step.name}.log", time.monotonic()
    state, why = "", ""
    with log.open("wb") as out, log.open("rb") as printed:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # with all that it starts; and Ctrl-C is for this process, which passes it on
        )
        try:
            if not wait(process, printed, start + limit, asked):
                state, why = (INTERRUPTED, "") if asked else (CUT_OFF, f"after {limit:.0f} seconds")
                stop(process, printed, asked)
        finally:
            kill(process)  # whatever it has left running
            echo(printed)
    status, took = process.returncode, time.monotonic() - start
    if not state:
        state, why = (PASSED, "") if status == 0 else (FAILED, f"exit status {status}")
    return Ended(step.name, state, round(took, 1), why, status)


def wait(process: subprocess.Popen[bytes], printed: BinaryIO, end: float, asked: Sequence[int], heard: int = 0) -> bool:
    """Wait until a process ends, and show what it prints. Return whether it has ended by the time `end`, and before
    more signals came than were heard."""
    while process.poll() is None:
        left = end - time.monotonic()
        if left <= 0 or len(asked) > heard:
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(TICK, left))
        echo(printed)
    return True


def stop(process: subprocess.Popen[bytes], printed: BinaryIO, asked: Sequence[int]) -> None:
    """Interrupt a process, so that it can print what it knows."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        wait(process, printed, time.monotonic() + GRACE, asked, len(asked))


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a driver that hangs may keep it alive: the next step is tried
        process.wait(GRACE)


def echo(printed: BinaryIO) -> None:
    show(printed.read().decode(errors="replace"))


def show(text: str) -> None:
    with suppress(OSError):  # nobody reads it any more, but the files have it
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def asked_to_end() -> Iterator[list[int]]:
    """Note signals to end, such as Ctrl-C, or those of `timeout` or a closed terminal, in the list that is yielded.

    They raise no KeyboardInterrupt, which might come while a process is started, or a file written. What is ignored, as
    under `nohup`, stays ignored.
    """
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        asked.append(number)

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write(folder: Path, ended: Ended) -> None:
    with (folder / JOURNAL).open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(ended._asdict()) + "\n")


def read(folder: Path) -> list[Ended]:
    """Return the steps that have begun, as the journal has them."""
    found: dict[str, Ended] = {}
    for line in lines(folder / JOURNAL):
        ended = Ended(**line)
        found[ended.name] = ended
    return list(found.values())


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that are complete JSON objects. The last line may have been cut off."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        if line.startswith("{"):
            with suppress(ValueError):
                found.append(json.loads(line))
    return found
