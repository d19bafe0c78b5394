"""A plugin of pytest that prints the outcome of every test at once, as JSON: `pytest -p benchmarks.outcomes`.

Whatever ends the run, the failures until then are known, and the test that was running. A run that has skipped all of
its tests has tested nothing, and fails.
"""

import json
import os

import pytest

OUT = os.dup(1)  # before pytest captures what is printed
NOTHING = pytest.ExitCode.NO_TESTS_COLLECTED


class Outcomes:
    def __init__(self) -> None:
        self.ran = 0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        say({"begun": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return  # a setup or a teardown
        self.ran += not report.skipped
        found = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
        if report.failed:
            found["failed"] = str(report.longrepr)[-2000:]
        elif report.skipped and isinstance(report.longrepr, tuple):
            found["why"] = report.longrepr[2]
        say(found)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.ran and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = NOTHING
            say({"failed": "every test was skipped"})


def say(what: dict[str, object]) -> None:
    os.write(OUT, f"\n{json.dumps(what)}\n".encode())  # pytest may have left a line unfinished


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes())
