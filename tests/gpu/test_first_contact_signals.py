"""Signals that end a first contact with a GPU come in time, and cut off no bookkeeping."""

import os
import signal

import pytest
from benchmarks import gpu_first, gpu_summary, steps
from benchmarks.steps import Step

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes are ended in groups, which this system has not"),
]
FACTS = Step("facts", ["sh", "-c", 'echo \'{"device": "A device of paper"}\''])


def test_a_signal_between_steps_comes_in_time(tmp_path, monkeypatch):
    """Here, while the summary is written. What was begun is finished, and what follows is not begun."""
    ending = lambda *args: os.kill(os.getpid(), signal.SIGTERM) or gpu_summary.page(*args)  # noqa: E731
    monkeypatch.setattr(gpu_first, "page", ending)
    status = gpu_first.contact([FACTS, Step("next", ["true"])], tmp_path, 600.0, {})
    text = (tmp_path / gpu_summary.PAGE).read_text()
    assert status == gpu_first.INTERRUPT and "**A device of paper**" in text
    assert "| next | not reached |" in text and [one.name for one in steps.read(tmp_path)] == ["facts"]


def test_what_is_ignored_stays_ignored():
    """As a closed terminal is under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with steps.asked_to_end() as asked:
        os.kill(os.getpid(), signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)
    assert not asked
