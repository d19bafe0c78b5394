"""Threads and kept memory in a container with limits: files as Linux shows them, in a folder of the test."""

import pytest

from bnorm.kernels.cpu import container, threads
from child import output

NESTED = "0::/system.slice/bnorm.service\n"
OLD = "12:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n"


@pytest.fixture
def limits(tmp_path):
    """Return what a process may use with these groups and files: cores, and bytes of memory."""

    def found(groups, **files):
        listed, mount = tmp_path / "cgroup", tmp_path / "mount"
        listed.write_text(groups)
        for name, text in files.items():
            path = mount / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return container.cores(listed, mount), container.memory(listed, mount)

    return found


@pytest.fixture
def cores(limits):
    return lambda groups, **files: limits(groups, **files)[0]


@pytest.mark.parametrize(
    ("text", "want"),
    [("200000 100000\n", 2), ("max 100000\n", None), ("150000 100000\n", 2), ("5000 100000\n", 1), ("50000 25000", 2)],
)
def test_the_group_of_a_container(cores, text, want):
    assert cores("0::/\n", **{"cpu.max": text}) == want


def test_the_least_quota_of_a_group_and_those_around_it_holds(cores):
    files = {"system.slice/cpu.max": "300000 100000\n", "system.slice/bnorm.service/cpu.max": "max 100000\n"}
    assert cores(NESTED, **files) == 3
    assert cores(NESTED, **{"system.slice/bnorm.service/cpu.max": "800000 100000\n"}) == 3
    assert cores(NESTED, **{"system.slice/bnorm.service/cpu.max": "100000 100000\n"}) == 1


def test_groups_of_version_1(cores):
    own, outer = ("cpu/docker/1f/cpu.cfs_", "cpu/cpu.cfs_")
    assert cores(OLD, **{f"{own}quota_us": "-1\n", f"{own}period_us": "100000\n"}) is None
    assert cores(OLD, **{f"{outer}quota_us": "400000\n", f"{outer}period_us": "100000\n"}) == 4
    assert cores(OLD, **{f"{own}quota_us": "250000\n"}) == 3


def test_a_group_whose_path_is_that_outside_of_the_container(cores):
    assert cores("0::/../../kubepods/pod1\n", **{"cpu.max": "200000 100000\n"}) == 2
    assert cores(OLD, **{"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}) == 2


def test_there_may_be_no_groups(cores, tmp_path):
    assert cores(NESTED) is None
    assert cores("") is None
    assert container.cores(tmp_path / "missing", tmp_path) is None
    assert container.memory(tmp_path / "missing", tmp_path) is None


def test_other_files_are_no_quota(cores):
    assert cores("0::/\n", **{"cpu.max": "max\n"}) is None
    assert cores("0::/\n", **{"cpu.max": ""}) is None
    assert cores("0::/\n", **{"cpu.max": "a few\n"}) is None


def test_memory(limits):
    assert limits("0::/\n", **{"memory.max": "max\n"}) == (None, None)
    assert limits("0::/\n", **{"memory.max": "536870912\n"}) == (None, 1 << 29)
    assert limits(NESTED, **{"system.slice/memory.max": "1000\n"}) == (None, 1000)  # what is around it has more
    assert limits(OLD, **{"memory/docker/1f/memory.limit_in_bytes": "2000\n"}) == (None, 2000)
    assert limits(OLD, **{"memory/memory.limit_in_bytes": "9223372036854771712\n"}) == (None, 2000)


def test_a_process_begins_with_what_it_may_use():
    """OMP_NUM_THREADS takes precedence over a quota, and set_num_threads over both."""
    several = bool(threads.openmp_version())
    threads_, then, buffers = output("in_a_container.py").split()
    assert (threads_, then, buffers) == ("1", "3" if several else "1", "10000000")
    if several:
        assert output("in_a_container.py", OMP_NUM_THREADS=2).split()[:2] == ["2", "3"]
    assert output("in_a_container.py", BNORM_BUFFER_LIMIT=5).split()[2] == "5"
