"""The number of threads in a container with a CPU quota: files as Linux shows them, in a folder of the test."""

import pytest

from bnorm.kernels.cpu import quota, threads
from child import output

NESTED = "0::/system.slice/bnorm.service\n"
OLD = "12:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n"


@pytest.fixture
def cores(tmp_path):
    """Return quota.cores for these groups and files."""

    def found(groups, **files):
        listed = tmp_path / "cgroup"
        listed.write_text(groups)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return quota.cores(listed, tmp_path / "mount")

    return found


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
    assert quota.cores(tmp_path / "missing", tmp_path) is None


def test_other_files_are_no_quota(cores):
    assert cores("0::/\n", **{"cpu.max": "max\n"}) is None
    assert cores("0::/\n", **{"cpu.max": ""}) is None
    assert cores("0::/\n", **{"cpu.max": "a few\n"}) is None


@pytest.mark.skipif(not threads.openmp_version(), reason="built without OpenMP")
def test_a_process_begins_with_its_quota():
    """Unless OMP_NUM_THREADS says how many; set_num_threads takes precedence over both."""
    assert output("quota_of_one.py").split() == ["1", "3"]
    assert output("quota_of_one.py", OMP_NUM_THREADS=2).split() == ["2", "3"]
