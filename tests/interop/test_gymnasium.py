"""Gymnasium's wrappers on RunningNorm, beside Gymnasium's own on its own environments."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is what is wrapped")

from gymnasium import spaces  # noqa: E402  after the skip
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper  # noqa: E402

from bnorm import RunningNorm  # noqa: E402
from bnorm.interop.gymnasium import (  # noqa: E402
    NormalizeObservation,
    NormalizeReward,
    SingleNormalizeReward,
    VectorNormalizeObservation,
)


class Script(gymnasium.Env):
    """Gives scripted observations and rewards; an episode has so many steps."""

    def __init__(self, obs, rewards, ends="terminated"):
        self.obs, self.rewards, self.ends = np.asarray(obs, "f4"), rewards, ends
        self.observation_space = spaces.Box(-np.inf, np.inf, self.obs.shape[1:])
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs[0], {}

    def step(self, action):
        self.t += 1
        done = self.t == len(self.rewards)
        return (
            self.obs[self.t],
            self.rewards[self.t - 1],
            done and self.ends == "terminated",
            done and self.ends == "truncated",
            {},
        )


class Final(VectorWrapper):
    """Has last observations in infos in each step, and keeps its infos."""

    def step(self, actions):
        *rest, self.infos = self.env.step(actions)
        self.infos = {
            "final_obs": np.full(self.num_envs, None),
            "_final_obs": np.zeros(self.num_envs, bool),
        } | self.infos
        return *rest, self.infos


OBS = np.random.default_rng(0).normal(50, 3, size=(6, 2)).astype("f4")
REWARDS = [1.0, 5.0, -2.0, 3.0, 10.0]


def play(env, steps):
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    seen = [obs]
    for _ in range(steps):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(obs)
        if not hasattr(env, "num_envs") and (terminated or truncated):
            obs, _ = env.reset()
            seen.append(obs)
    return np.stack(seen)


def test_observations():
    env = NormalizeObservation(Script(OBS, REWARDS))
    assert isinstance(env, NormalizeObservation | gymnasium.Wrapper)
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    obs, _ = env.reset()
    assert obs.dtype == np.float32
    assert obs.tolist() == [0, 0]
    for t in range(1, 6):
        obs, *_ = env.step(0)
        seen = OBS[: t + 1].astype("f8")
        np.testing.assert_allclose(obs, (OBS[t] - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), atol=2e-6)
    assert env.obs_rms.count.tolist() == [6, 6]
    env.update_running_mean = False
    env.reset()
    assert env.obs_rms.count.tolist() == [6, 6]
    assert not env.update_running_mean


def test_wrappers_that_share_statistics_have_a_switch_each():
    env, test_env = (NormalizeObservation(Script(OBS, REWARDS)) for _ in range(2))
    test_env.update_running_mean = False
    test_env.obs_rms = env.obs_rms
    for _ in range(2):
        play(env, 3)
        count = env.obs_rms.count.tolist()
        play(test_env, 3)
        assert env.obs_rms.count.tolist() == count
    assert count == [8, 8]
    assert env.update_running_mean and not test_env.update_running_mean


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
@pytest.mark.parametrize("kind", [NormalizeObservation, NormalizeReward])
@pytest.mark.parametrize("vector", [False, True])
def test_copies_of_an_environment_with_its_wrapper(kind, vector, copied):
    env = kind(SyncVectorEnv([partial(Script, OBS, REWARDS)] * 2) if vector else Script(OBS, REWARDS))
    env.reset()
    env.step([0, 0] if vector else 0)
    env.update_running_mean = False
    again = copied(env)
    assert type(again) is type(env) and not again.update_running_mean
    for own, other in zip(env.step([0, 0] if vector else 0)[:2], again.step([0, 0] if vector else 0)[:2], strict=True):
        np.testing.assert_array_equal(own, other)
    assert again._norm is not env._norm


@pytest.mark.parametrize("vector", [False, True])
def test_first_statistics_are_those_of_the_data(vector):
    """Gymnasium's begin from variance 1 with a little weight, so that the first are far off."""
    make = gymnasium.make_vec if vector else gymnasium.make
    theirs_of = gymnasium.wrappers.vector if vector else gymnasium.wrappers
    ours, theirs = NormalizeObservation(make("CartPole-v1")), theirs_of.NormalizeObservation(make("CartPole-v1"))
    raw = play(make("CartPole-v1"), 300).astype("f8").reshape(-1, 4)
    play(ours, 300)
    play(theirs, 300)
    error = [np.abs(env.unwrapped and env.obs_rms.var / raw.var(0) - 1).max() for env in (ours, theirs)]
    assert error[0] < 1e-12
    assert error[1] > 1e-6
    np.testing.assert_allclose(ours.obs_rms.mean, raw.mean(0), atol=1e-14)


def test_a_broken_sensor_does_not_poison():
    obs = OBS.copy()
    obs[2, 0] = np.nan
    env = NormalizeObservation(Script(obs, REWARDS))
    assert np.isnan(play(env, 4)).sum() == 1
    assert env.obs_rms.skipped.tolist() == [1, 0]
    assert np.isfinite(env.obs_rms.var).all()


def test_many_autoreset_modes():
    for mode in AutoresetMode:
        envs = SyncVectorEnv([lambda: Script(OBS, REWARDS)] * 3, autoreset_mode=mode)
        env = NormalizeObservation(envs)
        assert env.observation_space.shape == (3, 2)
        obs, _ = env.reset()
        for _ in range(5):
            obs, _, ended, _, infos = env.step(np.zeros(3, int))
        assert ended.all()
        if mode == AutoresetMode.SAME_STEP:
            np.testing.assert_allclose(infos["final_obs"][0], env.obs_rms.normalize(OBS[5]), atol=1e-1)
            assert env.obs_rms.count.tolist() == [21, 21]  # with the first observations of the next episodes
        elif mode == AutoresetMode.DISABLED:
            obs, _ = env.reset(options={"reset_mask": np.array([True, False, False])})
            assert env.obs_rms.count.tolist() == [19, 19]  # only one is new
            np.testing.assert_allclose(obs[1], env.obs_rms.normalize(OBS[5]), atol=1e-6)
            env.update_running_mean = False
            env.reset(options={"reset_mask": np.array([False, True, False])})
            assert env.obs_rms.count.tolist() == [19, 19]
        else:
            assert env.obs_rms.count.tolist() == [18, 18]


def test_last_observations_in_infos():
    """They may be there in each step, and those of the vector inside do not change."""
    envs = Final(SyncVectorEnv([lambda: Script(OBS, REWARDS)] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    env = NormalizeObservation(envs)
    env.reset()
    for _ in range(5):
        *_, infos = env.step(np.zeros(2, int))
    np.testing.assert_array_equal(envs.infos["final_obs"][1], OBS[5])
    assert np.abs(infos["final_obs"][1]).max() < 3


@pytest.mark.parametrize("vector", [False, True])
def test_epsilon_is_that_of_the_statistics(vector):
    env = SyncVectorEnv([lambda: Script(OBS, REWARDS)] * 2) if vector else Script(OBS, REWARDS)
    assert NormalizeObservation(env, epsilon=0.5).obs_rms.eps == 0.5
    assert NormalizeReward(env, gamma=1, epsilon=0.5).return_rms.eps == 0.5


def returns_of(rewards, gamma, episodes):
    found = []
    for _ in range(episodes):
        total = 0.0
        for r in rewards:
            total = total * gamma + r
            found.append(total)
    return np.array(found)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_rewards(ends):
    env, got = NormalizeReward(Script(OBS, REWARDS, ends), gamma=0.9), []
    for _ in range(2):
        env.reset()
        got += [env.step(0)[1] for _ in REWARDS]
    returns = returns_of(REWARDS, 0.9, 2)
    for t, reward in enumerate(got):
        std = np.sqrt(returns[: t + 1].var() + 1e-8) if t else 1.0
        assert reward == pytest.approx(REWARDS[t % 5] / std, rel=1e-12)


def test_rewards_without_an_update():
    env = NormalizeReward(Script(OBS, REWARDS))
    env.reset()
    env.step(0)
    env.update_running_mean = False
    env.step(0)
    assert env.return_rms.count == 1


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_return_ends_where_the_environment_resets_itself(ends):
    env = NormalizeReward(gymnasium.wrappers.Autoreset(Script(OBS, REWARDS, ends)))
    env.reset()
    for _ in REWARDS:
        env.step(0)
    assert env.discounted_reward == 0


def test_returns_of_environments_that_are_not_reset_go_on():
    envs = [lambda n=n: Script(OBS, REWARDS[:n]) for n in (2, 5)]
    env = NormalizeReward(SyncVectorEnv(envs, autoreset_mode=AutoresetMode.DISABLED), gamma=0.9)
    env.reset()
    for _ in range(2):
        env.step(np.zeros(2, int))
    env.reset(options={"reset_mask": np.array([True, False])})
    for _ in range(2):
        env.step(np.zeros(2, int))
    returns = np.concatenate([returns_of(REWARDS[:2], 0.9, 2), returns_of(REWARDS[:4], 0.9, 1)])
    assert env.return_rms.count == 8
    assert env.return_rms.mean == pytest.approx(returns.mean(), rel=1e-12)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_rewards_of_a_vector(mode, ends):
    env = NormalizeReward(SyncVectorEnv([lambda: Script(OBS, REWARDS, ends)] * 2, autoreset_mode=mode), gamma=0.9)
    env.reset()
    for _ in range(11 if mode == AutoresetMode.NEXT_STEP else 10):  # a step that only resets does not count
        env.step(np.zeros(2, int))
    returns = returns_of(REWARDS, 0.9, 2)
    assert env.return_rms.count == 20
    assert env.return_rms.mean == pytest.approx(returns.mean(), rel=1e-12)
    assert env.return_rms.var == pytest.approx(returns.var(), rel=1e-12)


def test_a_broken_reward_does_not_poison():
    rewards = [1.0, np.nan, 2.0, np.inf, 3.0]
    env = NormalizeReward(Script(OBS, rewards), gamma=0.5)
    env.reset()
    got = [env.step(0)[1] for _ in rewards]
    assert env.return_rms.skipped == 2
    assert env.return_rms.mean == pytest.approx(np.mean([1, 2.25, 3 + 2.25 / 4]))
    assert np.isfinite(got)[[0, 2, 4]].all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda env: NormalizeObservation(env, epsilon=0), Exception, "epsilon: expected a number above 0, got 0"),
        (lambda env: NormalizeReward(env, gamma=1.1), Exception, "gamma: expected a number from 0 to 1, got 1.1"),
        (lambda env: NormalizeReward(env, epsilon=-1), Exception, "epsilon"),
        (
            lambda env: setattr(NormalizeObservation(env), "obs_rms", 3),
            TypeError,
            r"expected a RunningNorm of shape \(2,",
        ),
        (
            lambda env: setattr(NormalizeReward(env), "return_rms", RunningNorm(2)),
            TypeError,
            r"expected a RunningNorm of shape \(\), got RunningNorm\(2\)",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(Script(OBS, REWARDS))


def test_observations_without_a_shape():
    env = Script(OBS, REWARDS)
    env.observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,))})
    with pytest.raises(ValueError, match=r"RunningNorm\.tree\(space\) normalizes dictionaries"):
        NormalizeObservation(env)


def test_spec_makes_the_wrappers_again():
    env = NormalizeReward(NormalizeObservation(gymnasium.make("CartPole-v1"), epsilon=1e-6), gamma=0.5, epsilon=1e-4)
    again = gymnasium.make(env.spec)
    assert (again.gamma, again.epsilon, again.env.epsilon) == (0.5, 1e-4, 1e-6)
    assert isinstance(again, NormalizeReward)
    assert str(again).startswith("<NormalizeReward<NormalizeObservation<")


def test_statistics_are_saved_and_go_on(tmp_path):
    env = NormalizeObservation(gymnasium.make("CartPole-v1"))
    play(env, 50)
    env.obs_rms.save(tmp_path / "obs.npz")
    import bnorm

    other = NormalizeObservation(gymnasium.make("CartPole-v1"))
    other.obs_rms = bnorm.load(tmp_path / "obs.npz")
    np.testing.assert_array_equal(other.obs_rms.var, env.obs_rms.var)
    workers = [pickle.loads(pickle.dumps(env.obs_rms)) for _ in range(2)]
    merged = env.obs_rms + sum(worker - env.obs_rms for worker in workers)
    np.testing.assert_array_equal(merged.count, env.obs_rms.count)


# RunningNorm.tree ----------------------------------------------------------------------------------------------------

SPACE = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "hands": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,)))),
        "room": spaces.Discrete(5),
    }
)


def test_tree_of_a_space():
    SPACE.seed(0)
    tree = RunningNorm.tree(SPACE, clip=3)
    samples = [SPACE.sample() for _ in range(10)]
    z = [tree(x) for x in samples][-1]
    assert z["room"] is samples[-1]["room"]
    assert z["hands"][1].dtype == np.float32
    images = np.stack([x["image"] for x in samples]).astype("f8")
    np.testing.assert_allclose(tree["image"].var, images.var(0), rtol=1e-12)
    assert isinstance(RunningNorm.tree(SPACE["image"]), RunningNorm)
    example = RunningNorm.tree(samples[0], clip=3)  # where integers may be labels
    assert example["image"] is None
    floats = RunningNorm.tree(samples[0] | {"image": samples[0]["image"].astype("f4")}, clip=3)
    assert repr(floats) == repr(tree)
    np.testing.assert_array_equal([floats(x) for x in samples][-1]["image"], z["image"])
    with pytest.raises(TypeError, match="expected arrays of floats, or a space with a Box"):
        RunningNorm.tree(spaces.Discrete(3))


def test_what_to_subclass():
    for base, name in ((NormalizeObservation, "Observation"), (NormalizeReward, "Reward")):
        kind = type("Mine", (base,), {})
        message = f"^Mine: expected a subclass of bnorm.interop.gymnasium.SingleNormalize{name}, or of VectorNormalize"
        with pytest.raises(TypeError, match=message):
            kind(Script(OBS, REWARDS))
    single, vector = (type("Mine", (base,), {}) for base in (SingleNormalizeReward, VectorNormalizeObservation))
    assert type(single(Script(OBS, REWARDS))) is single
    assert type(vector(SyncVectorEnv([lambda: Script(OBS, REWARDS)]))) is vector
