"""A library in a process of its own, and every case in a fresh copy of it.

Two libraries in one process would disturb each other: by their threads, and by the memory that they allocate, which
decides where the memory of a later result comes from. So each library has a process that only imports it. For a case
this process forks, and the child does the work and ends: importing PyTorch again for every case would take longer than
the measurements. Where fork is not safe (macOS, Windows) the process itself does the work.

Questions and answers are pickled, over the process's standard input and output. The child uses those of its parent,
which waits for it meanwhile.

On one thread all libraries have the same core. Of two cores of a shared machine, one was half as fast as the other.
"""

import os
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from . import adapters
from .exact import Exact
from .options import parser
from .shapes import Case
from .timing import Effort, Local, Samples, keep_core

FORKS = sys.platform == "linux"


class Remote(Local):
    """As Local, in another process. An error there is raised here."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.processes", module],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ready(self) -> Self:
        try:
            self.about = self._answer()
        except BaseException:
            self.end()
            raise
        return self

    def open(self, case: Case, dtype: str, threads: int) -> list[str]:
        return self._ask("open", case, dtype, threads)

    def check(self, operation: str, exact: Exact) -> dict[str, float]:
        return self._ask("check", operation, exact)

    def turn(self, operation: str, effort: Effort, backwards: bool) -> Samples:
        return self._ask("turn", operation, effort, backwards)

    def apply(self, function: Callable[..., Any], *arguments: object) -> Any:
        return self._ask("apply", function, *arguments)

    def close(self) -> None:
        if self.process.poll() is None:
            self._ask("close")

    def end(self) -> None:
        self.process.__exit__(None, None, None)  # closes its input, which ends it

    def _ask(self, *question: object) -> Any:
        pickle.dump(question, self.process.stdin)
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        try:
            failed, answer = pickle.load(self.process.stdout)
        except EOFError:
            raise RuntimeError(f"{self.module}: expected an answer, its process ended") from None
        if failed:
            raise answer
        return answer


def serve(name: str) -> None:
    """Answer until the input ends."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints must not look like an answer
    warnings.simplefilter("ignore")  # of the peers: JAX warns of every fork

    def answer(value: object, failed: bool = False) -> None:
        pickle.dump((failed, value), answers)
        answers.flush()

    try:
        local = Local(name).ready()
    except adapters.Missing as error:
        answer(error, failed=True)
        return
    answer(local.about)
    child = False
    with suppress(EOFError):
        while True:
            method, *arguments = pickle.load(questions)
            if FORKS and not child and method != "close":
                pid = os.fork()
                if pid:
                    _, status = os.waitpid(pid, 0)
                    if status:
                        answer(RuntimeError(f"{name}: its process died, status {status}"), failed=True)
                    continue
                child = True
                if method == "open" and arguments[-1] == 1:
                    keep_core()
            try:
                answer(getattr(local, method)(*arguments))
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer(error, failed=True)
            if child and method == "close":
                os._exit(0)


if __name__ == "__main__":
    program = parser("processes", __doc__)
    program.add_argument("library", help="module of benchmarks/adapters; questions and answers are pickled")
    serve(program.parse_args().library)
