"""Python in a process of its own: to test what happens at import, what cannot be undone, and what might hang."""

import os
import signal
import subprocess
import sys
from pathlib import Path

# Seconds until a process is assumed to hang: far more than any needs, as others may keep the machine busy.
LIMIT = float(os.environ.get("CHILD_LIMIT", "600"))
SETTINGS = ("OMP_", "GOMP_", "KMP_", "BNORM_")  # of whoever runs the tests: these variables are not passed on


def run(*args: object, timeout: float = LIMIT, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run `python args...`, whatever it returns. TimeoutExpired kills it and all processes that it has started."""
    return started([sys.executable, *args], timeout, **environment)


def started(command: list[object], timeout: float = LIMIT, **environment: object) -> subprocess.CompletedProcess[str]:
    """The same for any command."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    env |= {"OMP_WAIT_POLICY": "passive"}  # threads that wait do not spin: tests share their machine
    env |= {name: str(value) for name, value in environment.items()}
    command = list(map(str, command))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def printed(code: str) -> str:
    """Return what this code prints; it must succeed. Bytecode is kept, as it is of an installed package."""
    done = run("-c", code, PYTHONDONTWRITEBYTECODE="")
    assert done.returncode == 0, done.stderr
    return done.stdout


def output(script: str, *args: object, **environment: object) -> str:
    """The same for a script of this folder."""
    done = run(Path(__file__).with_name(script), *args, **environment)
    assert done.returncode == 0, f"{script} {args} {environment}: exit status {done.returncode}\n{done.stderr}"
    return done.stdout


def beside_numpy(code: str) -> tuple[float, list[str]]:
    """Return how many calls this code makes, each as a part of those that importing NumPy makes just before it, and the
    modules that it imports. Times would depend on the machine, and on what else it does.
    """
    ratio, *modules = printed(f"""
import sys
calls = 0
def count(*_):
    global calls
    calls += 1
sys.setprofile(count)
import numpy
theirs, before = calls, set(sys.modules)
{code}
sys.setprofile(None)
print((calls - theirs) / theirs, *set(sys.modules) - before)
""").split()
    return float(ratio), modules
