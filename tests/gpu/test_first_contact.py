"""The first contact with a GPU leaves what it has found, whatever ends it: stand-ins take the place of the device."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks import gpu_first, gpu_summary, steps
from benchmarks.steps import CUT_OFF, FAILED, INTERRUPTED, NOT_REACHED, PASSED, SKIPPED, Step

import child
from bnorm.kernels import gpu

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes are ended in groups, which this system has not"),
]
ROOT = Path(__file__).parents[2]

# As little of CuPy as facts and compiling need; its binaries are files, as CuPy's are.
CUPY = """
import hashlib, os, sys
from pathlib import Path
from types import SimpleNamespace
from benchmarks.gpu_host import stand_in

cupy = stand_in()

class RawModule:
    def __init__(self, code, options=(), name_expressions=()):
        self.name = hashlib.sha256(repr((code, options, name_expressions)).encode()).hexdigest()
    def compile(self):
        path = Path(os.environ["CUPY_CACHE_DIR"], self.name + ".cubin")
        if not path.exists():
            path.write_bytes(b"")
            os.write(2, b"compiled\\n")  # at once, as several processes write there
    def get_function(self, name):
        self.compile()

cupy.RawModule = RawModule
limits = cupy.cuda.Device(0).attributes
cupy.cuda.Device = lambda index=0: SimpleNamespace(
    id=0, attributes=limits, mem_info=(1 << 30, 1 << 31), compute_capability="90")
cupy.cuda.nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
cupy.cuda.runtime.getDeviceProperties = lambda index: {"name": b"A device of paper"}
cupy.cuda.runtime.driverGetVersion = cupy.cuda.runtime.runtimeGetVersion = lambda: 13000
sys.modules[__name__] = cupy
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A folder with a stand-in for CuPy, for processes that are started."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    (folder / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
    return folder


def script(name, text, limit=300.0):
    return Step(name, [sys.executable, "-c", text], limit)


def row(**cells):
    return f"print({json.dumps(cells)!r}, flush=True);"


HANG = "import time; time.sleep(600)"
# Python has no handler if it was started with SIGINT ignored, as shells start what they run in the background.
HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
FACTS = script("facts", row(device="A device of paper", versions={"cupy": "14.2"}))


def contact(steps, folder, seconds=600.0):
    folder.mkdir(exist_ok=True)
    return gpu_first.contact(steps, folder, seconds, {}), (folder / gpu_summary.PAGE).read_text()


def states(folder):
    return {one.name: one.state for one in steps.read(folder)}


# Without a device ----------------------------------------------------------------------------------------------------


def test_no_device_is_said_at_once(tmp_path):
    if gpu.available() is None:
        pytest.skip("there is a device here")
    for _ in range(2):  # the folder is not used up
        done = child.run("-m", "benchmarks.gpu_first", tmp_path / "found", PYTHONPATH=ROOT)
        assert done.returncode == 2
        assert done.stderr.startswith("benchmarks.gpu_first: no device can be used; ")
        assert gpu.available() in done.stdout and "compile" not in done.stdout


def test_a_device_that_does_not_answer_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(steps, "GRACE", 0.1)
    status, page = contact([script("facts", DEAF + HANG, 0.2), script("next", "")], tmp_path / "found")
    assert status == 2 and "next | not reached" in page
    assert "the device does not answer: after 0 seconds" in capsys.readouterr().err


def test_a_device_that_has_told_its_facts_answers(tmp_path, once_it_prints):
    facts = Step("facts", ["sh", "-c", 'echo \'{"device": "A device of paper"}\'; sleep 600'], 0.5)
    status, page = contact([facts, script("next", "")], tmp_path / "found")
    assert status == 1 and "**A device of paper**" in page
    assert states(tmp_path / "found") == {"facts": CUT_OFF, "next": PASSED}


def test_tests_that_are_all_skipped_are_no_success(tmp_path):
    if gpu.available() is None:
        pytest.skip("there is a device here")
    done = child.run("-m", "pytest", "-q", "-m", "gpu", ROOT / "tests" / "gpu" / "test_device.py")
    assert done.returncode not in (0, 1) and gpu.available() in done.stdout + done.stderr
    skipped = tmp_path / "test_it.py"
    skipped.write_text("import pytest\n@pytest.mark.skip(reason='no')\ndef test_it(): pass\n")
    plugin = "-p", "benchmarks.outcomes", "-c", os.devnull, "--rootdir", tmp_path
    done = child.run("-m", "pytest", *plugin, skipped, PYTHONPATH=ROOT)
    assert done.returncode == 5 and '{"failed": "every test was skipped"}' in done.stdout


# Steps ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def once_it_prints(monkeypatch):
    """The time of a step whose limit is a second begins when it prints: until then a busy machine may take any time."""
    wait = steps.wait

    def waits(process, printed, end, asked, heard=0):
        if end - time.monotonic() < 2:
            while not os.fstat(printed.fileno()).st_size and process.poll() is None:
                time.sleep(0.01)
            end = time.monotonic() + 0.1
        return wait(process, printed, end, asked, heard)

    monkeypatch.setattr(steps, "wait", waits)


def test_steps_that_fail_hang_or_are_not_there(tmp_path, once_it_prints):
    folder = tmp_path / "found"
    found = [
        FACTS,
        script("good", row(family="rows", dtype="float32", forward={"error": 1e-7, "of bound": 0.5})),
        script("bad", row(family="rows", what="layer norm", dtype="float16", failed="off by 7") + "exit(1)"),
        Step("tool", skipped="tool is not on the PATH"),
        script("hangs", row(family="rows", dtype="bfloat16", forward={"error": 0, "of bound": 0.25}) + HANG, 1.0),
        script("broken", "raise ValueError('no such thing')"),
        script("last", row(kind="host", shape=[256, 64], dtype="float32", host={"forward": 1e-5}) + row(**MEASURED)),
    ]
    start = time.monotonic()
    status, page = contact(found, folder)
    assert status == 1 and time.monotonic() - start < 300
    wanted = {"facts": PASSED, "good": PASSED, "bad": FAILED, "tool": SKIPPED, "hangs": CUT_OFF, "broken": FAILED}
    assert states(folder) == wanted | {"last": PASSED}
    for text in (
        "**A device of paper**",
        "Not good: bad, hangs, broken. 1 failure.",
        "| tool | skipped tool is not on the PATH |",
        "| bad | failed exit status 1 |",
        "- bad: layer norm float16: off by 7",
        "ValueError: no such thing",
        "|  | float32 | float16 | bfloat16 |",
        "| rows | 0.50 | failed | 0.25 |",
        "| batch_norm 8x4 float32 forward | 2.0 | 1000 | 0.90 | eager 4.00, as a graph 1.50 |",
        "- batch_norm 8x4 float32 forward, compile as a graph: RuntimeError: no triton",
        "A call on (256, 64) costs the host: forward 10.0 us.",
    ):
        assert text in page, page


CELLS = {"bnorm": 2e-6, "GB/s": 1000.0, "of copy": 0.9, "torch": 8e-6, "torch as a graph": 3e-6}
CELLS |= {"torch.compile as a graph": "RuntimeError: no triton"}
MEASURED = {"kind": "batch_norm", "shape": [8, 4], "dtype": "float32", "copy GB/s": 3000.0}
MEASURED |= {"operations": {"forward": CELLS}}


def test_a_step_that_is_deaf_is_killed_with_what_it_has_started(tmp_path, monkeypatch, once_it_prints):
    pid = tmp_path / "pid"
    text = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {DEAF + HANG!r}]);"
    text += f"open({str(pid)!r}, 'w').write(str(p.pid));" + DEAF + "print('here', flush=True);" + HANG
    monkeypatch.setattr(steps, "GRACE", 0.1)
    (found,) = steps.run([script("deaf", text, 1.0)], tmp_path, 600, lambda: None)
    assert found.state == CUT_OFF and found.seconds < 300
    for _ in range(3000):
        if not alive(int(pid.read_text())):
            break
        time.sleep(0.02)
    assert not alive(int(pid.read_text()))


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_time_of_all_steps_has_an_end(tmp_path):
    found = steps.run([script("long", HANG), script("late", "")], tmp_path, 0.5, lambda: None)
    assert [one.state for one in found] == [CUT_OFF, NOT_REACHED]
    assert "| late | not reached the time was over |" in gpu_summary.page(tmp_path)


def test_an_interrupt_still_prints_failures(tmp_path, monkeypatch):
    """pytest is asked to end, and tells what has failed until then."""
    text = HEARS + "import os, pytest, time\ndef test_a():\n assert 1 == 2\ndef test_b(): pass\n"
    text += "def test_c():\n pytest.skip('no')\ndef test_d(): pass\ndef test_e():\n"
    text += " os.kill(os.getppid(), signal.SIGTERM)\n time.sleep(600)\n"
    (tmp_path / "test_it.py").write_text(text)
    plugin = "-p", "benchmarks.outcomes", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)
    command = [sys.executable, "-m", "pytest", *plugin, str(tmp_path / "test_it.py")]
    environment = {"PYTHONPATH": str(ROOT)}
    monkeypatch.setattr(steps, "GRACE", 300.0)  # for a busy machine
    with steps.asked_to_end() as asked:
        (found,) = steps.run([Step("tests", command, 300.0)], tmp_path, 600, lambda: None, environment, asked)
    log = (tmp_path / "tests.log").read_text()
    assert found.state == INTERRUPTED and "= FAILURES =" in log and "KeyboardInterrupt" in log
    page = gpu_summary.page(tmp_path)
    assert "2 passed, 1 failed, 1 skipped; in test_it.py::test_e" in page
    assert "- tests: test_it.py::test_a: " in page and "assert 1 == 2" in page


RUN = (
    HEARS
    + """
import json, sys
from pathlib import Path
from benchmarks import gpu_first
from benchmarks.steps import Step
named = [Step(name, [sys.executable, "-c", text], 600.0) for name, text in json.loads(sys.argv[2])]
sys.exit(gpu_first.contact(named, Path(sys.argv[1]), 600.0, {}))
"""
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_it_leaves_what_it_had(tmp_path, number):
    check = row(kernel="k<1>", failed="off by 7") + HANG
    texts = [("facts", row(device="A device of paper")), ("check", check), ("late", "")]
    command = [sys.executable, "-c", RUN, str(tmp_path), json.dumps(texts)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for line in process.stdout:  # the row is shown as it comes
            if "off by 7" in line:
                break
        process.send_signal(number)
        rest = process.stdout.read() if number != signal.SIGKILL else ""
    page = tmp_path / gpu_summary.PAGE
    if number == signal.SIGKILL:
        assert states(tmp_path) == {"facts": PASSED, "check": "running"}
        assert "**A device of paper**" in page.read_text() and "| check | not reached |" in page.read_text()
        assert gpu_first.main([str(tmp_path), "--summary"]) == 0  # with what the step had
        assert "| check | running |" in page.read_text()
    else:
        assert process.returncode == gpu_first.INTERRUPT
        assert states(tmp_path) == {"facts": PASSED, "check": INTERRUPTED}
        assert "- check: k<1>: off by 7" in rest and "| late | not reached |" in rest
    assert "- check: k<1>: off by 7" in page.read_text()


def test_a_fault_of_the_summary_does_not_end_a_run(tmp_path):
    strange = script("strange", row(kind="batch_norm", shape=7, dtype="float32", operations=3))
    status, page = contact([FACTS, strange, script("last", "")], tmp_path / "found")
    assert status == 0 and states(tmp_path / "found") == {"facts": PASSED, "strange": PASSED, "last": PASSED}
    assert "The summary failed" in page


def test_facts_that_fail_and_a_tool_that_cannot_start_end_no_run(tmp_path):
    broken = Step("tool", [str(tmp_path / "no such program")])
    status, page = contact([script("facts", "raise KeyError('clock')"), broken, script("last", "")], tmp_path / "found")
    assert status == 1 and states(tmp_path / "found") == {"facts": FAILED, "tool": FAILED, "last": PASSED}
    assert "KeyError: 'clock'" in page and "No such file or directory" in page


def test_a_run_is_not_written_over(tmp_path, capsys):
    contact([FACTS], tmp_path / "found")
    with pytest.raises(SystemExit):
        gpu_first.main([str(tmp_path / "found")])
    assert "holds a run" in capsys.readouterr().err


def test_both_orders(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_first.shutil, "which", lambda program: None)
    short, long = (gpu_first.order(tmp_path, minutes) for minutes in (10, 40))
    names = [step.name for step in short]
    assert names[:6] == ["facts", "compile", "check", "tests-early", "tests", "measure"]
    assert names == [step.name for step in long][: len(names)]
    for found, minutes in ((short, 10), (long, 40)):
        assert all(step.limit > 0 for step in found)
        before_measures = sum(step.limit for step in found[: names.index("measure")])
        assert before_measures < 60 * minutes * 0.7  # even if each takes as long as it may
    assert {step.name for step in long if step.skipped} == {
        *("memcheck", "racecheck", "synccheck", "initcheck", "ncu", "nsys")
    }
    monkeypatch.setattr(gpu_first.shutil, "which", lambda program: f"/tools/{program}")
    found = {step.name: step for step in gpu_first.order(tmp_path, 10)}
    assert found["memcheck"].command[:3] == ["/tools/compute-sanitizer", "--tool", "memcheck"]
    assert found["ncu"].command[0] == "/tools/ncu" and not found["ncu"].skipped


# What the steps do ---------------------------------------------------------------------------------------------------


def test_facts_and_a_cache_that_another_run_takes(tmp_path, stand_in):
    """With few instances, on a stand-in for CuPy."""
    few = "from benchmarks import gpu_compile as c; every = c.items; c.items = lambda _: every(True)[::300]; c.main()"
    rows = []
    for name, facts in (
        ("first", Step("facts", [sys.executable, "-m", "benchmarks.gpu_facts"], 300.0)),
        ("second", FACTS),
    ):
        folder = tmp_path / name
        folder.mkdir()
        environment = {"CUPY_CACHE_DIR": str(tmp_path / "kernels")}
        (tmp_path / "kernels").mkdir(exist_ok=True)
        status = gpu_first.contact([facts, script("compile", few)], folder, 600, environment)
        assert status == 0, (folder / "compile.log").read_text()
        rows += [found for found in steps.lines(folder / "compile.log") if "instances" in found]
        compiled = (folder / "compile.log").read_text().count("compiled\n")
        assert compiled == (rows[0]["instances"] if name == "first" else 0)
    assert rows[0]["in the cache"] == rows[1]["in the cache before"] == rows[1]["in the cache"]
    (found,) = steps.lines(tmp_path / "first" / "facts.log")
    assert found["device"] == "A device of paper" and found["versions"]["nvrtc"] == [13, 0]
    assert found.keys() >= {"processors", "memory", "free memory", "now", "commit", "host", "tools"}
    assert "**A device of paper**: capability 90" in (tmp_path / "first" / gpu_summary.PAGE).read_text()
