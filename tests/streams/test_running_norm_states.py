"""Several streams of RunningNorm, added and subtracted; and states that are saved, loaded and reset."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

import bnorm
from bnorm import RunningNorm
from bnorm.streams import RunningNormTree


def state(rn):
    return {name: a.tobytes() for name, a in rn.state_dict().items()} | {"training": rn.training}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Workers -------------------------------------------------------------------------------------------------------------

WAYS = [{}, {"halflife": 9.0}, {"momentum": 0.05}]


def test_streams_merge(rng):
    x = rng.normal(1e3, 1, size=(60, 3))
    parts = [RunningNorm(3) for _ in range(3)]
    for rn, part in zip(parts, np.split(x, [7, 30]), strict=True):
        rn(part)
    whole = RunningNorm(3)
    whole.update(x)
    for merged in (sum(parts), parts[2] + (parts[0] + parts[1]), parts[1] + RunningNorm(3) + parts[0] + parts[2]):
        np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-15)
        np.testing.assert_allclose(merged.var, whole.var, rtol=1e-13)
        assert merged.count.tolist() == [60] * 3
    assert parts[0].count.tolist() == [7] * 3
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + parts[0]


def test_what_was_skipped_is_counted_over_all_streams():
    a, b = RunningNorm(2), RunningNorm(2)
    a([[np.nan, 1.0], [2.0, 3.0]])
    b([[np.nan, np.inf], [np.nan, 1.0]])
    assert (a + b).skipped.tolist() == [3, 1]


def test_shared_history_counts_once(rng):
    """Workers that start from one base: counts are exact, and the error of what is left is that of a difference."""
    history, own = rng.normal(1e4, 3, size=(5000, 2)), [rng.normal(1e4 + 1, 2, size=(n, 2)) for n in (40, 70)]
    base = RunningNorm(2)
    base.update(history)
    workers = [base.copy() for _ in own]
    for worker, x in zip(workers, own, strict=True):
        for part in np.array_split(x, 9):
            worker(part)
    for worker, x in zip(workers, own, strict=True):
        new = worker - base
        n, k = 5000 + len(x), len(x)
        assert new.count.tolist() == [k, k]
        bound = 100 * 2.2e-16 * n / k  # some steps, each with a rounding error of the whole
        np.testing.assert_allclose(new.var, x.var(0), rtol=bound)
        np.testing.assert_allclose(new.mean, x.mean(0), atol=bound * x.std())
    merged = base + (workers[0] - base) + (workers[1] - base)
    everything = np.concatenate([history, *own]).astype(np.longdouble)
    assert merged.count.tolist() == [len(everything)] * 2
    np.testing.assert_allclose(merged.mean, everything.mean(0).astype("f8"), rtol=2e-16)
    np.testing.assert_allclose(merged.var, everything.var(0).astype("f8"), rtol=1e-14)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_taken_out_was_there(rng, way):
    base = RunningNorm(3, **way)
    base(rng.normal(5, 1, size=(30, 3)))
    worker = base.copy()
    new = rng.normal(size=(2, 12, 3))
    new[0, :, 1] = np.nan  # a component that the worker has not seen at first
    worker(new[0])
    worker(new[1])
    alone = RunningNorm(3, **way)
    alone(new[0])
    alone(new[1])
    difference = worker - base
    np.testing.assert_allclose(difference.mean, alone.mean, atol=1e-12)
    np.testing.assert_allclose(difference.var, alone.var, rtol=1e-11)
    np.testing.assert_array_equal(difference.count, alone.count)
    np.testing.assert_array_equal(difference.skipped, [0, 12, 0])
    assert difference._statistics.rows == alone._statistics.rows == (2 if "momentum" in way else 24)
    for again in (worker - worker, base - base):
        assert again.count.tolist() == [0, 0, 0]
        assert again.var.tolist() == [1, 1, 1]
        np.testing.assert_allclose((again + alone).var, alone.var, rtol=1e-12)


def close(got, want):
    """Whether two streams agree, in what they have and in how they go on."""
    mine, others = got.state_dict(), want.state_dict()
    for name in others.keys() - {"low"}:
        np.testing.assert_allclose(mine[name], others[name], rtol=1e-10, err_msg=name)


def carried(rn, tmp_path):
    """The same statistics after each way to another process."""
    rn.save(tmp_path / "a.npz")
    other = RunningNorm(rn.shape, halflife=rn.halflife, momentum=rn.momentum)
    other.load_state_dict(rn.state_dict())
    return [rn, rn.copy(), pickle.loads(pickle.dumps(rn)), bnorm.load(tmp_path / "a.npz"), other]


@pytest.mark.parametrize("way", WAYS)
def test_the_past_fades_by_what_workers_have_seen(rng, tmp_path, way):
    """As if base had seen what each worker saw, one after the other. So with one worker it becomes the worker."""
    base, plain = (RunningNorm(2, **way) for _ in range(2))
    for i, workers in enumerate((1, 2, 1, 3)):
        found = []
        for n in (30, 4, 7)[:workers]:
            worker = base.copy()
            for x in rng.normal(i, 1, size=(3, n, 2)):
                x[:, i % 2] = np.where(rng.random(n) < 0.3, np.nan, x[:, i % 2])
                worker.update(x)
                plain.update(x)
            found.append(worker - base)
        if workers == 1:
            close(base + found[0], worker)
        for first in carried(found[0], tmp_path):
            parts = [first, *found[1:]]
            for one in (sum(parts, base), base + sum(parts), sum(parts) + base):
                close(one, plain)
        before, base = base, sum(found, base)
    x = rng.normal(size=(5, 2))
    for rn in (found[-1], plain):  # a difference may go on too
        rn.update(x)
    close(sum(found, before), plain)


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_difference_where_values_fade_is_no_state(rng, way):
    base = RunningNorm(2, **way)
    base(rng.normal(size=(9, 2)))
    worker = base.copy()
    worker(rng.normal(size=(9, 2)))
    left = worker - base
    for subtract in (lambda: worker - left, lambda: left - base, lambda: left - left):
        with pytest.raises(ValueError, match=r"^RunningNorm\(2\): -: expected two states of a stream .* a difference"):
            subtract()
    left.reset()
    left(rng.normal(size=(3, 2)))
    assert (left - left).count.tolist() == [0, 0]


NINE = np.random.default_rng(0).normal(size=(9, 2))


@pytest.mark.parametrize(
    ("of_base", "of_other"),
    [
        ([NINE[:3]], [np.where([True, False], np.nan, NINE)]),
        (list(NINE[:3]), [NINE]),
        ([np.array([[1.0, np.nan], [2.0, 3.0]])], [np.array([[1.0, 4.0], [2.0, 3.0], [5.0, 6.0]])]),
    ],
    ids=["fewer values of one component", "fewer batches", "fewer skipped"],
)
def test_what_was_not_there_cannot_be_taken_out(of_base, of_other):
    base, other = RunningNorm(2), RunningNorm(2)
    for rn, batches in ((base, of_base), (other, of_other)):
        for x in batches:
            rn(x)
    with pytest.raises(ValueError, match="expected an earlier state of these statistics"):
        other - base


def test_nothing_new_is_as_new(rng):
    rn = RunningNorm(2)
    rn(rng.normal(1e3, 1, size=(50, 2)))
    assert state(rn - rn.copy()) == state(RunningNorm(2))


def test_one_new_value_and_new_constants_have_no_spread(rng):
    base = RunningNorm(2)
    base(rng.normal(3, 1, size=(1000, 2)))
    worker = base.copy()
    worker(np.array([1.7, 0.1]))
    assert (worker - base).std.tolist() == [1, 1]
    worker(np.full((5, 2), [1.7, 0.1]))
    assert (worker - base).std.tolist() == [1, 1]
    np.testing.assert_allclose((worker - base).mean, [1.7, 0.1], rtol=1e-14)


def test_two_new_values_have_a_spread(rng):
    base = RunningNorm(2)
    base(rng.normal(3, 1, size=(1000, 2)))
    worker = base.copy()
    worker(np.array([[1.0, 5.0], [2.0, 9.0]]))
    np.testing.assert_allclose((worker - base).var, [0.25, 4.0], rtol=100 * 2.2e-16 * 1002 / 2)
    np.testing.assert_allclose((worker - base).mean, [1.5, 7.0], rtol=100 * 2.2e-16 * 1002 / 2)


# State ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_continues_from_a_file_as_if_nothing_had_been(rng, tmp_path, way, suffix):
    rn = RunningNorm((2, 2), clip=3, **way)
    rn(rng.normal(size=(9, 2, 2)))
    rn(np.full((2, 2), np.nan))
    rn.eval().save(tmp_path / f"state{suffix}")
    loaded = bnorm.load(tmp_path / f"state{suffix}")
    assert repr(loaded) == repr(rn)
    copies = [loaded, pickle.loads(pickle.dumps(rn)), copy.deepcopy(rn), copy.copy(rn)]
    other = RunningNorm((2, 2), clip=3, **way).eval()
    other.load_state_dict(rn.state_dict())
    x = rng.normal(size=(5, 2, 2))
    z = rn.train()(x)
    for one in (*copies, other):
        np.testing.assert_array_equal(one.train()(x), z)
        assert state(one) == state(rn)


def test_partial_state_begins_anew(rng):
    rn = RunningNorm(3)
    rn(rng.normal(size=(5, 3)))
    rn.load_state_dict({"mean": np.ones(3), "var": np.full(3, 4.0), "count": np.full(3, 2.0)}, strict=False)
    assert rn.normalize(np.full(3, 3.0)).round(6).tolist() == [1, 1, 1]
    assert rn.skipped.tolist() == [0, 0, 0]
    rn.load_state_dict({"mean": np.ones(3), "count": np.full(3, 2.0)}, strict=False)
    assert rn.var.tolist() == [1, 1, 1]


def test_a_state_of_nothing_changes_nothing(rng):
    rn = RunningNorm(3)
    rn(rng.normal(size=(5, 3)))
    before = state(rn)
    rn.load_state_dict({}, strict=False)
    assert state(rn) == before


def test_a_last_value_from_before_the_stream_began(rng, tmp_path):
    """As a merge leaves it: the other stream, which ends at the same time, is longer."""
    short, long = RunningNorm(2, halflife=3.0), RunningNorm(2, halflife=3.0)
    short(np.array([[np.nan, 1.0], [np.nan, 2.0]]))
    long(np.array([5.0, 1.0]))
    long(np.array([[np.nan, 2.0]] * 9))
    both = short + long
    assert both.state_dict()["last"][0] < 0
    both.save(tmp_path / "a.npz")
    assert state(bnorm.load(tmp_path / "a.npz")) == state(both)


class Named(RunningNorm):
    """With attributes of its own: in a slot, in its dictionary, and one that leads back to it."""

    __slots__ = ("__dict__", "tags")

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.tags, self.names, self.me = ["a"], ["x", "y"], self


class NamedTree(RunningNormTree):
    def __init__(self):
        super().__init__({"a": Named(2, halflife=3), "b": None})
        self.names, self.me = ["x"], self


COPIES = [lambda a: a.copy(), copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a)), lambda a: sum([a])]
COPIES += [lambda a: a + a, lambda a: a - a]


@pytest.mark.parametrize("make", [partial(Named, 2, halflife=3), NamedTree], ids=["norm", "tree"])
@pytest.mark.parametrize("of", COPIES, ids=["copy", "copy.copy", "deepcopy", "pickle", "sum", "+", "-"])
def test_a_subclass_keeps_what_it_has_added(make, of):
    given = make()
    given.names.append("z")
    given.eval()
    new = of(given)
    for one, other in [(new, given)] + ([(new["a"], given["a"])] if make is NamedTree else []):
        assert type(one) is type(other) and one.me is one and not one.training
        assert one.names == other.names and one.names is not other.names
    if make is not NamedTree:
        assert new.tags == ["a"] and new.tags is not given.tags


def test_a_pickle_in_memory_that_may_not_be_written_to(rng):
    rn, buffers = RunningNorm(2), []
    data = pickle.dumps(rn, protocol=5, buffer_callback=buffers.append)
    loaded = pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])
    loaded(np.array([np.nan, 1.0]))
    assert loaded.skipped.tolist() == [1, 0]


@pytest.mark.parametrize("way", WAYS)
def test_names_of_a_state(way):
    more = ["weight", "last"] if way else []
    assert list(RunningNorm(3, **way).state_dict()) == ["mean", "var", "count", "low", *more, "skipped", "counters"]


def test_reset(rng):
    rn = RunningNorm(3, halflife=3)
    new = state(rn)
    rn(rng.normal(size=(5, 3)))
    rn(np.full(3, np.nan))
    rn.reset()
    assert state(rn) == new


def test_damaged_files(rng, tmp_path):
    from bnorm.files import container

    rn = RunningNorm(3)
    rn(rng.normal(size=(5, 3)))
    rn.save(tmp_path / "a.npz")
    config, entries = container.read("", tmp_path / "a.npz")
    arrays = {name: entry.array() for name, entry in entries.items()}
    config.pop("format")
    damages = [
        (config | {"arguments": config["arguments"] | {"shape": [10**12]}}, arrays),
        (config | {"arguments": config["arguments"] | {"clip": "x"}}, arrays),
        (config | {"training": 3}, arrays),
        (config | {"more": 3}, arrays),
        (config, arrays | {"var": -arrays["var"]}),
        (config, {name: a for name, a in arrays.items() if name != "low"}),
        (config, arrays | {"counters": np.array([-1, 0, 0, 0])}),
    ]
    for bad_config, bad_arrays in damages:
        container.write("", tmp_path / "b.npz", bad_config, bad_arrays)
        with pytest.raises(ValueError, match="expected a RunningNorm, got a damaged file"):
            bnorm.load(tmp_path / "b.npz")
