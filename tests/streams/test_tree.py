"""RunningNorm.tree of examples; that of spaces is in tests/interop/test_gymnasium.py."""

import copy
import pickle

import numpy as np
import pytest

import bnorm
from bnorm import RunningNorm, RunningNormTree
from interrupts import interrupted, moments


def example(rng):
    return {
        "position": rng.normal(3, 2, size=3).astype("f4"),
        "hands": (rng.normal(size=2), {"grip": rng.normal(), "open": True}),
        "room": 7,
        "said": "left",
    }


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def arrays(tree):
    return {name: a.tobytes() for name, a in tree.state_dict().items()}


def test_parts_are_normalized_and_all_else_passes(rng):
    tree = RunningNorm.tree(example(rng), clip=2)
    seen = [example(rng) for _ in range(20)]
    for obs in seen:
        z = tree(obs)
    assert (z["room"], z["said"], z["hands"][1]["open"]) == (7, "left", True)
    assert z["position"].dtype == np.float32
    assert type(z["hands"]) is tuple
    position = np.stack([obs["position"] for obs in seen]).astype("f8")
    np.testing.assert_allclose(tree["position"].var, position.var(0), rtol=1e-12)
    np.testing.assert_allclose(tree["hands"][1]["grip"].mean, np.mean([obs["hands"][1]["grip"] for obs in seen]))
    np.testing.assert_allclose(tree.denormalize(tree.normalize(seen[0]))["hands"][0], seen[0]["hands"][0])
    before = arrays(tree)
    tree.eval()(seen[0])
    assert arrays(tree) == before
    assert not tree["position"].training and not tree["hands"].training
    tree["hands"].eval()
    tree.train()["hands"](seen[0]["hands"])
    assert arrays(tree) != before


def test_every_part_has_a_mode_of_its_own():
    tree, obs = RunningNorm.tree({"a": np.zeros(2), "b": (np.zeros(2),)}), {"a": np.ones(2), "b": (np.ones(2),)}
    tree.eval()["a"].train()
    tree(obs)
    assert (tree["a"].count.sum(), tree["b"][0].count.sum()) == (2, 0)
    tree.eval().update(obs)
    assert (tree["a"].count.sum(), tree["b"][0].count.sum()) == (4, 2)
    with pytest.raises(TypeError, match="RunningNormTree: mode: expected True or False, got 1"):
        tree.train(1)


def test_a_part_in_inference_does_not_look_for_what_is_not_finite():
    tree = RunningNorm.tree({"a": np.zeros(2), "b": np.zeros(2)}, nonfinite="raise")
    tree["a"].eval()
    assert np.isnan(tree({"a": np.array([np.nan, 0]), "b": np.ones(2)})["a"][0])
    assert (tree["a"].count.sum(), tree["b"].count.sum()) == (0, 2)
    with pytest.raises(bnorm.NonFiniteError, match="obs: expected finite values"):
        tree({"a": np.zeros(2), "b": np.array([np.nan, 0])})


def test_a_list_stands_for_a_tuple():
    tree = RunningNorm.tree((np.zeros(2), np.zeros(1)))
    z = tree([np.ones(2), np.ones(1)])
    assert isinstance(z, tuple) and tree[0].count.tolist() == [1, 1]


def test_lists_of_different_lengths_pass():
    words = [[1.0], [2.0, 3.0]]
    tree = RunningNorm.tree({"a": np.zeros(2), "words": words})
    assert tree["words"] is None and tree({"a": np.ones(2), "words": words})["words"] is words


def test_errors_change_no_part(rng):
    tree = RunningNorm.tree(example(rng))
    tree(example(rng))
    before, good = arrays(tree), example(rng)
    for bad in (
        {"position": good["position"]},
        good | {"more": 1},
        good | {"hands": (np.zeros(3), good["hands"][1])},
        good | {"hands": good["hands"][:1]},
        good | {"hands": (*good["hands"], 1)},
        good | {"hands": "ab"},
        good | {"hands": (np.zeros(2), {"grip": "x", "open": True})},
    ):
        with pytest.raises((TypeError, ValueError), match="RunningNorm"):
            tree(bad)
        assert arrays(tree) == before
    strict = RunningNorm.tree(good, nonfinite="raise")
    before = arrays(strict)
    with pytest.raises(bnorm.NonFiniteError):
        strict(good | {"hands": (np.zeros(2), {"grip": np.nan, "open": True})})
    assert arrays(strict) == before
    with pytest.raises(ValueError, match=r"\+: expected parts .* on both sides"):
        tree + RunningNorm.tree((np.zeros(3),))
    with pytest.raises(ValueError, match=r"-: expected parts a on both sides, got a, b"):
        RunningNorm.tree({"a": np.zeros(3)}) - RunningNorm.tree({"a": np.zeros(3), "b": np.zeros(3)})
    with pytest.raises(ValueError, match=r"\+: expected parts a\.b on both sides, got a"):
        RunningNorm.tree({"a": {"b": np.zeros(3)}}) + RunningNorm.tree({"a": np.zeros(3)})
    with pytest.raises(ValueError, match=r"\+: expected parts \['0'\] on both sides, got \[0\]"):
        RunningNorm.tree({"0": np.zeros(3)}) + RunningNorm.tree((np.zeros(3),))
    with pytest.raises(TypeError, match="expected arrays of floats, or a space with a Box"):
        RunningNorm.tree(3)
    with pytest.raises(TypeError, match="expected RunningNorm, RunningNormTree or None"):
        RunningNormTree({"a": 3})
    for twice in ({"a.b": np.zeros(3), "a": {"b": np.zeros(2)}}, {0: np.zeros(2), "0": np.zeros(2)}):
        with pytest.raises(ValueError, match=r"parts: expected names that differ .* got '(a\.b|0)' twice"):
            RunningNorm.tree(twice)


@pytest.mark.parametrize("options", [{}, {"halflife": 5.0}, {"nonfinite": "raise"}], ids=str)
@pytest.mark.parametrize("call", [lambda tree, obs: tree(obs), lambda tree, obs: tree.update(obs)], ids=["z", "update"])
def test_an_interrupt_changes_all_parts_or_none(rng, options, call):
    obs, first = example(rng), RunningNorm.tree(example(rng), **options)
    first(example(rng))
    done = first.copy()
    last, seen = moments(lambda: call(done, obs)), []
    for at in range(1, last + 1):
        tree = first.copy()
        assert interrupted(lambda tree=tree: call(tree, obs), at)
        seen.append(arrays(tree))
        assert seen[-1] in (arrays(first), arrays(done)), at
    assert seen[0] == arrays(first) != seen[-1] == arrays(done)


def test_workers_merge(rng):
    base = RunningNorm.tree(example(rng))
    for _ in range(10):
        base(example(rng))
    workers = [base.copy() for _ in range(2)]
    for worker in workers:
        for _ in range(5):
            worker(example(rng))
    merged = base + sum(worker - base for worker in workers)
    for one in (base, base["position"]):
        assert sum([one]) is not one
    assert merged.training and not (base.copy().eval() + base).training
    assert merged["position"].count.tolist() == [20] * 3
    assert base["position"].count.tolist() == [10] * 3


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_state(rng, tmp_path, suffix):
    tree = RunningNorm.tree(example(rng), momentum=0.1)
    for _ in range(4):
        tree(example(rng))
    tree.eval().save(tmp_path / f"tree{suffix}")
    loaded = bnorm.load(tmp_path / f"tree{suffix}")
    other = RunningNorm.tree(example(rng), momentum=0.1)
    other.load_state_dict(tree.state_dict())
    for one in (loaded, pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree), copy.copy(tree)):
        assert arrays(one) == arrays(tree)
        assert repr(one) == repr(tree)
        assert not one.training
    assert arrays(other) == arrays(tree)
    assert "hands.1.grip.mean" in tree.state_dict()
    tree.reset()
    assert tree["position"].count.sum() == 0


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_keeps_the_mode_of_each_part(rng, tmp_path, suffix):
    def modes(tree):
        return [part.training for part in (tree, tree["position"], tree["hands"], tree["hands"][0], tree["hands"][1])]

    tree = RunningNorm.tree(example(rng))
    tree["position"].eval()
    tree["hands"][1].eval()
    for wanted in ([True, False, True, True, False], [False, True, False, False, False]):
        tree.save(tmp_path / f"tree{suffix}")
        assert modes(bnorm.load(tmp_path / f"tree{suffix}")) == modes(tree) == wanted
        tree.eval()
        tree["position"].train()


def test_examples_of_other_libraries():
    pd, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    obs = {"a": torch.ones(3), "b": pd.DataFrame({"x": [1.0, 2.0]}), "c": torch.tensor(2), "d": pd.Series(["left"])}
    tree = RunningNorm.tree(obs)
    assert [tree[name] and tree[name].shape for name in "abcd"] == [(3,), (2, 1), None, None]
    z = tree(obs)
    assert z["a"].tolist() == [0, 0, 0]
    assert (tree["b"].mean.tolist(), z["c"] is obs["c"], z["d"] is obs["d"]) == ([[1], [2]], True, True)
    for bad in (torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16)):
        with pytest.raises(
            TypeError, match=r"^RunningNorm.tree: space_or_example: expected arrays that NumPy can read"
        ):
            RunningNorm.tree({"a": bad})


def test_only_trees_are_added():
    tree = RunningNormTree({"a": RunningNorm(2)})
    for add in (lambda: tree + 1, lambda: 1 + tree, lambda: tree - 1):
        with pytest.raises(TypeError, match="unsupported operand"):
            add()
