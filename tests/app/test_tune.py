"""`bnorm tune`: sizes measured on this machine, their file, and that nothing but time depends on them."""

import hashlib
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import bnorm.functional as F
import child
from bnorm.app import cli, tuning
from bnorm.kernels.cpu import entries, tuned

MIB = tuning.MIB
BUILT_IN = entries.use_sizes()
ELSEWHERE = dict.fromkeys(BUILT_IN, 4 * MIB)  # the row of another processor
# Prints a digest of arrays large enough for every size of 1 MiB, and where the sizes are from.
DIGEST = """
import sys; sys.path[:0] = {path!r}
import test_tune
from bnorm.kernels.cpu import tuned
print(test_tune.digest(), tuned.in_use())
"""


def digest():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 4099, 65), np.float32)
    found = hashlib.sha256()
    gamma = np.arange(65.0)
    for y, saved in (F.batch_norm(x, gamma, gamma), F.layer_norm(x, gamma, gamma, normalized_shape=65)):
        for a in (y, *F.backward(dy, saved)):
            found.update(np.asarray(a).tobytes())
    return found.hexdigest()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuned, "_in_use", None)
    monkeypatch.delenv("BNORM_TUNED", raising=False)
    before = entries.use_sizes()
    yield tmp_path
    entries.use_sizes(**before)


def pretend(right):
    """A measurement of a machine where the sizes of `right` are the best ones."""
    return lambda name, n: (1.0, 2.0) if n >= right[name] else (2.0, 1.0)


def applied(size):
    """Whether what begins at this size applies at each length that is measured."""
    return [length >= size for length in tuning.LADDER]


@pytest.mark.parametrize("start", [BUILT_IN, ELSEWHERE, dict.fromkeys(BUILT_IN, tuned.MOST)])
def test_it_finds_what_is_best_wherever_it_starts(start):
    right = dict(zip(tuning.WAYS, cycle(tuning.LADDER), strict=False))
    entries.use_sizes(**start)
    said = tuning.tune(pretend(right), True)
    found = entries.use_sizes()
    assert {name: applied(found[name]) for name in right} == {name: applied(size) for name, size in right.items()}
    assert {name: was for name, (was, _, _) in said.items()} == {name: start[name] for name in right}
    assert found["looked"] == start["looked"]  # is not measured


def test_what_never_is_and_what_always_is_are_told_in_words(capsys):
    assert BUILT_IN["beside"] in (1, tuned.MOST)  # as this processor has it
    tuning.tell({"far": (tuned.MOST, 1, 0.5), "far_two": (9 * MIB // 2, 3 * MIB, 0.1)}, "a file", False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:3]] == [
        ["far", "never", "always", "50%"],
        ["far_two", "4.5", "3", "10%"],
    ]


def test_a_size_stays_if_a_better_one_gains_little_or_was_not_measured():
    assert tuning.best([1, 2, 4], [(1.02, 1.0)] * 3, 1) == (1, 0.0)
    assert tuning.best([1, 2, 4], [(1.04, 1.0)] * 3, 1)[0] == 8
    said = tuning.tune(lambda name, n: (1.0, 2.0), False)
    assert said["far_two"][:2] == (BUILT_IN["far_two"],) * 2
    assert said["far"][1] == tuning.LADDER[0]


def test_command(own_folder, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "LADDER", [1 << 16])
    assert cli.main(["tune", "--seconds", "0.01"]) == 0
    path = tuned.file_of(own_folder / "bnorm")
    assert str(path) in capsys.readouterr().out
    sizes = entries.use_sizes()
    entries.use_sizes(**ELSEWHERE)
    tuned.load()
    assert entries.use_sizes() == sizes
    assert tuned.in_use() == path
    assert cli.main(["info"]) == 0
    assert f"tuned, {path}" in capsys.readouterr().out
    assert cli.main(["tune", "--forget"]) == 0
    assert not path.exists()


def test_a_measurement_leaves_sizes_and_threads_as_they_were():
    threads = tuning.bnorm.get_num_threads()
    for name in tuning.WAYS:
        assert min(tuning.timed(0.0)(name, 1 << 16)) > 0.0
    assert entries.use_sizes() == BUILT_IN
    assert tuning.bnorm.get_num_threads() == threads


def test_two_generations_of_a_processor_have_a_file_each():
    one, two = (["processor\t: 0\n", f"cpu family\t: {n}\n", "model name\t: AMD EPYC\n", "\n"] for n in (25, 26))
    assert tuned.named_in(one + two) == "AMD EPYC family 25"
    assert tuned.named_in(two + one) == "AMD EPYC family 26"
    assert tuned.named_in(["processor\t: 0\n", "BogoMIPS\t: 50\n", "\n"]) is None  # as on ARM


@pytest.mark.parametrize("size", [1, tuned.MOST])
def test_a_new_process_uses_the_file_and_gives_the_same_bits(own_folder, size):
    path = tuned.file_of(own_folder / "bnorm")
    path.parent.mkdir()
    path.write_text(tuned.text_of({name: max(size, tuned.LEAST.get(name, 1)) for name in BUILT_IN}))
    code = DIGEST.format(path=[str(Path(__file__).parent), *sys.path])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=child.LIMIT)
    assert run.stdout.split() == [digest(), str(path)], run.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\0", b"far = 1\n", "negative", "twice", "unknown", "float", "small", None],
    ids=["empty", "bytes", "few", "negative", "twice", "unknown", "float", "small", "folder"],
)
def test_a_bad_file_is_ignored_with_a_warning(own_folder, content):
    good = tuned.text_of(ELSEWHERE)
    bad = {"negative": good.replace("4194304", "-1", 1), "twice": good + "far = 1\n",
           "unknown": good.replace("far_two", "farther"), "float": good.replace("4194304", "4e6", 1),
           "small": tuned.text_of(ELSEWHERE | {"looked": tuned.LEAST["looked"] - 1})}  # fmt: skip
    path = tuned.file_of(own_folder / "bnorm")
    path.parent.mkdir()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else bad[content].encode())
    with pytest.warns(RuntimeWarning, match=r"is ignored.*bnorm tune writes it again"):
        tuned.load()
    assert (entries.use_sizes(), tuned.in_use()) == (BUILT_IN, None)


@pytest.mark.parametrize("dtype", ["u1", "f8"])
def test_the_least_sizes_of_a_file_are_large_enough(dtype):
    """A call that looks into the caches looks at lines within its arrays, all eight of them."""
    entries.use_sizes(**dict.fromkeys(BUILT_IN, 1) | tuned.LEAST)
    habit = entries.use_habit(through=1, calls=1 << 20, most=20 * MIB)
    try:
        y, _ = F.batch_norm(np.ones((tuned.LEAST["looked"] // 64, 8), dtype))
        F.batch_norm(np.ones((2, 8, tuned.LEAST["looked"] // 128), dtype))
    finally:
        entries.use_habit(**habit)
    assert y.nbytes == tuned.LEAST["looked"]


def test_the_environment_turns_it_off(own_folder, monkeypatch):
    path = tuned.file_of(own_folder / "bnorm")
    path.parent.mkdir()
    path.write_text(tuned.text_of(ELSEWHERE))
    monkeypatch.setenv("BNORM_TUNED", "0")
    tuned.load()
    assert (entries.use_sizes(), tuned.in_use()) == (BUILT_IN, None)


def test_no_folder(monkeypatch, capsys):
    monkeypatch.setattr(tuned, "folder", lambda: None)
    tuned.load()
    assert cli.main(["tune"]) == 1
    assert "XDG_CACHE_HOME" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(own_folder, capsys):
    (own_folder / "bnorm").write_text("a file")
    assert cli.main(["tune", "--seconds", "0.01"]) == 1
    assert f"bnorm: error: {own_folder / 'bnorm'}" in capsys.readouterr().err
    assert entries.use_sizes() == BUILT_IN
