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
) -> list[Ended]:
    """Run every step, as long as the seconds last. `after` is called after every step.

    An interrupt, or a signal to end, also interrupts the step, and ends the run with the results so far.
    """
    end, ended = time.monotonic() + seconds, list[Ended]()
    with signals_as_interrupts():
        for i, step in enumerate(steps):
            left = end - time.monotonic()
            if step.skipped:
                found = Ended(step.name, SKIPPED, why=step.skipped)
            elif left <= 0:
                found = Ended(step.name, NOT_REACHED, why="the time was over")
            else:
                write(folder, Ended(step.name, RUNNING))
                try:
                    found = execute(step, folder, min(step.limit, left), environment or {})
                except OSError as error:  # the command cannot be started
                    found = Ended(step.name, FAILED, why=str(error))
            write(folder, found)
            ended.append(found)
            if found.state == INTERRUPTED:
                ended += [Ended(other.name, NOT_REACHED, why="interrupted before") for other in steps[i + 1 :]]
            after()
            if found.state == INTERRUPTED:
                break
    return ended


def execute(step: Step, folder: Path, limit: float, environment: Mapping[str, str]) -> Ended:
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
            if not wait(process, printed, start + limit):
                state, why = CUT_OFF, f"after {limit:.0f} seconds"
        except KeyboardInterrupt:
            state = INTERRUPTED
        finally:
            if state:
                stop(process, printed)
            kill(process)  # whatever it has left running
            echo(printed)
    status, took = process.returncode, time.monotonic() - start
    if not state:
        state, why = (PASSED, "") if status == 0 else (FAILED, f"exit status {status}")
    return Ended(step.name, state, round(took, 1), why, status)


def wait(process: subprocess.Popen[bytes], printed: BinaryIO, end: float) -> bool:
    """Wait until a process ends, and show what it prints. Return whether it has ended by the time `end`."""
    while process.poll() is None:
        left = end - time.monotonic()
        if left <= 0:
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(TICK, left))
        echo(printed)
    return True


def stop(process: subprocess.Popen[bytes], printed: BinaryIO) -> None:
    """Interrupt a process, so that it can print what it knows."""
    with suppress(KeyboardInterrupt, ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        wait(process, printed, time.monotonic() + GRACE)


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
def signals_as_interrupts() -> Iterator[None]:
    """Treat other signals that end a process, as of `timeout` or a closed terminal, as interrupts."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
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
