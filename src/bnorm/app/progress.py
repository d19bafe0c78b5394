"""Progress bars, and interrupts, which never come while something is half done."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self


class Progress:
    """Rows per second and the time left, drawn by tqdm if it is installed."""

    def __init__(self, what: str, size: int, quiet: bool) -> None:
        self.rows, self.position, self._start, self._bar = 0, 0.0, time.perf_counter(), None
        self._before = 0  # rows of an earlier command that this one continues
        if quiet or not sys.stderr.isatty():
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        left = "{percentage:3.0f}% |{bar}|{postfix}, {remaining} left" if size else "{elapsed}{postfix}"
        self._bar = tqdm(total=size or None, desc=what, file=sys.stderr, leave=False, bar_format="{desc}: " + left)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            if error[0] is None and self._bar.total:
                self._bar.update(self._bar.total - self._bar.n)  # positions are estimates
            self._bar.refresh()  # shows the bar once even if the work was too fast for it
            self._bar.close()

    def resume(self, rows: int, position: float) -> None:
        """Continue where an earlier command ended: its rows and its part of `size` count, but not for the speed."""
        self.position, self._before = position, self._before + rows
        if (bar := self._bar) is not None:
            bar.initial = bar.n = bar.last_print_n = position
            bar.refresh()

    def add(self, rows: int, position: float) -> None:
        """Add rows. position: how much of `size` is done."""
        self.rows, self.position = self.rows + rows, position
        if self._bar is not None:
            rate = self.rows / self.seconds
            self._bar.set_postfix_str(f"{self._before + self.rows:,} rows, {rate:,.0f} rows/s", refresh=False)
            self._bar.update(position - self._bar.n)

    @property
    def seconds(self) -> float:
        return max(1e-9, time.perf_counter() - self._start)


def peak_memory() -> int:
    """The peak memory of this process in bytes; 0 if the system does not report it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


class Interrupted(BaseException):
    """A signal asked the command to end; `code` is the exit status that shells use for it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Signals:
    """Raises Interrupted for SIGINT and SIGTERM; inside `held`, at the end of the block.

    A signal that is ignored stays so: a shell makes a job in the background ignore SIGINT.
    """

    def __init__(self) -> None:
        self._holding, self._came = 0, 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
        if self._came and not self._holding:
            raise Interrupted(128 + self._came)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._came = number
        if not self._holding:
            raise Interrupted(128 + number)
