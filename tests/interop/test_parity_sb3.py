"""What Stable-Baselines3 tests of its VecNormalize, of the one on RunningNorm; and that its algorithms take it."""

import pickle
import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the environments are Gymnasium's")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is what is extended")
    from stable_baselines3.common import vec_env

from gymnasium import spaces  # noqa: E402  after the skips

from bnorm import RunningNorm  # noqa: E402
from bnorm.interop.sb3 import VecNormalize  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Rewards(gymnasium.Env):
    """Goes through 0, 1, 3, 4, which are observations and rewards, from one of these on."""

    def __init__(self, start=0):
        self.action_space, self.observation_space = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))
        self.values, self.start, self.t = [0, 1, 3, 4], start, start

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.array([self.values[self.start]], "f4"), {}

    def step(self, action):
        self.t += 1
        value = self.values[(self.t + self.start) % 4]
        return np.array([value], "f4"), value, self.t == 4, False, {}


class Goals(gymnasium.Env):
    """Random observations with goals, and, if mixed, a part that is no array."""

    def __init__(self, mixed=False):
        names = ("observation", "achieved_goal", "desired_goal")
        parts = {name: spaces.Box(-20.0, 20.0, (4,), np.float32) for name in names}
        self.observation_space = spaces.Dict(parts | ({"room": spaces.Discrete(3)} if mixed else {}))
        self.action_space = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space.seed(0)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(-self.t % 7), self.t % 5 == 0, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0).astype(np.float32)


def pendulum():
    return gymnasium.make("Pendulum-v1")


def warmed(make, steps=60, **options):
    venv = VecNormalize(vec_env.DummyVecEnv([make]), **options)
    venv.seed(0)
    venv.action_space.seed(0)
    venv.reset()
    for _ in range(steps):
        venv.step([venv.action_space.sample()])
    return venv


def close(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    return np.allclose(a, b, atol=1e-5)


def same(a, b):
    for name in ("clip_obs", "clip_reward", "norm_obs", "norm_reward", "gamma", "epsilon", "training", "norm_obs_keys"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.observation_space == b.observation_space
    norms = [[*(v.obs_rms.values() if isinstance(v.obs_rms, dict) else [v.obs_rms]), v.ret_rms] for v in (a, b)]
    for mine, other in zip(*norms, strict=True):
        for name, array in mine.state_dict().items():
            np.testing.assert_array_equal(array, other.state_dict()[name])


def test_statistics_of_observations_and_returns():
    envs = VecNormalize(vec_env.DummyVecEnv([Rewards, lambda: Rewards(1)]))
    envs.reset()
    assert envs.obs_rms.mean.item() == 0.5
    assert envs.ret_rms.mean == 0
    envs.step([0, 0])
    assert envs.obs_rms.mean.item() == 1.25
    assert envs.ret_rms.mean == 2
    for _ in range(600):
        envs.step([0, 0])
    assert envs.obs_rms.mean.item() == pytest.approx(2, abs=5e-3)
    assert envs.ret_rms.mean == pytest.approx(5.688, abs=1e-2)
    assert envs.obs_rms.count.item() == 1204


@pytest.mark.parametrize("suffix", ["", ".pkl", ".npz"])
@pytest.mark.parametrize("make", [pendulum, Goals])
def test_limits_and_files(tmp_path, make, suffix):
    venv = warmed(make, 1, clip_obs=0.5, clip_reward=0.1, gamma=0.9)
    for _ in range(20):
        obs, rewards, *_ = venv.step([venv.action_space.sample()])
        for x in obs.values() if isinstance(obs, dict) else [obs]:
            assert x.dtype == np.float32
            assert np.abs(x).max() <= 0.5
        assert np.abs(rewards).max() <= np.float32(0.1)
    path = tmp_path / f"statistics{suffix}"
    venv.save(path)
    loaded = VecNormalize.load(path, vec_env.DummyVecEnv([make]))
    same(venv, loaded)
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(path.read_bytes())
    assert b"stable_baselines3" not in path.read_bytes()


def test_a_pickle_is_not_read(tmp_path):
    theirs = vec_env.VecNormalize(vec_env.DummyVecEnv([pendulum]))
    theirs.save(tmp_path / "theirs.pkl")
    with pytest.raises(ValueError, match="expected a state file"):
        VecNormalize.load(tmp_path / "theirs.pkl", vec_env.DummyVecEnv([pendulum]))
    warmed(pendulum, 3).save(tmp_path / "ours.pkl")
    with pytest.raises(ValueError, match="expected observations of"):
        VecNormalize.load(tmp_path / "ours.pkl", vec_env.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))


@pytest.mark.parametrize("make", [pendulum, Goals])
def test_originals(make):
    venv = warmed(make)
    for _ in range(3):
        obs, rewards, _, _ = venv.step([venv.action_space.sample()])
        original, original_rewards = venv.get_original_obs(), venv.get_original_reward()
        assert original_rewards.dtype == rewards.dtype
        assert not close(original, obs)
        assert close(venv.normalize_obs(original), obs)
        assert close(venv.unnormalize_obs(obs), original)
        np.testing.assert_allclose(venv.normalize_reward(original_rewards), rewards)
        np.testing.assert_allclose(venv.unnormalize_reward(rewards), original_rewards, rtol=1e-6)


def test_rewards_from_elsewhere():
    venv = warmed(lambda: gymnasium.make("CartPole-v1"))
    assert (venv.normalize_reward(np.array([1, 1])) < 1).all()


def test_selected_keys():
    venv = warmed(Goals, 10, norm_obs_keys=["observation"])
    obs, *_ = venv.step([venv.action_space.sample()])
    original = venv.get_original_obs()
    assert not np.allclose(obs["observation"], original["observation"])
    np.testing.assert_array_equal(obs["achieved_goal"], original["achieved_goal"])
    assert obs["achieved_goal"] is not original["achieved_goal"]
    warmed(lambda: Goals(mixed=True), 3, norm_obs_keys=["observation", "desired_goal"])
    warmed(lambda: Goals(mixed=True), 3, norm_obs=False)
    with pytest.raises(ValueError, match="explicitly pass the observation keys"):
        warmed(lambda: Goals(mixed=True))
    with pytest.raises(ValueError, match="is applicable only"):
        warmed(Rewards, norm_obs_keys=["key"])


@pytest.mark.parametrize("make", [pendulum, Goals])
def test_synchronized(make):
    venv = warmed(make, clip_obs=100.0, clip_reward=100.0)
    other = VecNormalize(vec_env.DummyVecEnv([make]), training=False, clip_obs=100.0, clip_reward=100.0)
    assert vec_env.unwrap_vec_normalize(vec_env.VecMonitor(venv)) is venv
    obs, rewards = venv.reset(), np.random.default_rng(0).normal(size=10)
    original = venv.get_original_obs()
    assert not close(obs, other.normalize_obs(original))
    vec_env.sync_envs_normalization(venv, other)
    assert close(obs, other.normalize_obs(original))
    np.testing.assert_allclose(venv.normalize_reward(rewards), other.normalize_reward(rewards))
    other.reset()
    other.step([other.action_space.sample()])
    same_state = other.ret_rms.state_dict(), venv.ret_rms.state_dict()
    np.testing.assert_array_equal(same_state[0]["var"], same_state[1]["var"])


def test_rewards_that_are_not_normalized():
    venv, rewards = warmed(pendulum, norm_reward=False), np.array([1.0, 20.0])
    np.testing.assert_array_equal(venv.normalize_reward(rewards), rewards)
    np.testing.assert_array_equal(venv.unnormalize_reward(rewards), rewards)


def test_a_reset_begins_new_returns():
    venv = warmed(Rewards, 2)
    assert venv.returns[0] > 0
    venv.reset()
    assert venv.returns[0] == 0


def test_settings_are_those_of_the_statistics():
    venv = VecNormalize(vec_env.DummyVecEnv([pendulum]), clip_obs=3.0, epsilon=0.5)
    assert (venv.obs_rms.eps, venv.obs_rms.clip, venv.ret_rms.eps, venv.ret_rms.clip) == (0.5, 3.0, 0.5, None)
    venv.normalize_reward(np.ones(1))
    assert venv.ret_rms.clip is None


def test_settings_can_be_assigned():
    venv = warmed(pendulum)
    venv.clip_obs, venv.epsilon = 0.25, 1.0
    np.testing.assert_allclose(venv.normalize_reward(np.ones(1)), (venv.ret_rms.var + 1) ** -0.5, rtol=1e-6)
    assert np.abs(venv.normalize_obs(venv.get_original_obs() + 100)).max() == 0.25
    assert isinstance(venv.obs_rms, RunningNorm)
    again = pickle.loads(pickle.dumps(venv))
    again.set_venv(vec_env.DummyVecEnv([pendulum]))
    again.reset()
    np.testing.assert_array_equal(again.ret_rms.var, venv.ret_rms.var)


def test_first_statistics_are_those_of_the_data():
    venv = VecNormalize(vec_env.DummyVecEnv([Rewards] * 4))
    theirs = vec_env.VecNormalize(vec_env.DummyVecEnv([Rewards] * 4))
    for envs in (venv, theirs):
        envs.reset()
    assert venv.obs_rms.std.item() == 1  # four times the same
    assert np.sqrt(theirs.obs_rms.var + 1e-8).item() < 1e-2  # what the next observation is divided by


def test_what_is_not_finite_does_not_poison():
    class Broken(Rewards):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return (obs * np.nan, np.inf, *rest) if self.t == 2 else (obs, reward, *rest)

    venv = warmed(Broken, 20)
    assert venv.obs_rms.skipped.item() == 5
    assert venv.ret_rms.skipped == 5
    assert np.isfinite(venv.ret_rms.var)
    assert np.isfinite(venv.returns).all()


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_algorithms(name):
    import torch

    torch.set_num_threads(1)
    settings = {"PPO": {"n_steps": 8, "batch_size": 8, "n_epochs": 1}, "SAC": {"learning_starts": 4, "batch_size": 4}}
    venv = VecNormalize(vec_env.DummyVecEnv([pendulum]))
    model = getattr(sb3, name)("MlpPolicy", venv, policy_kwargs={"net_arch": [8]}, seed=0, **settings[name])
    assert model.get_vec_normalize_env() is venv
    model.learn(total_timesteps=16)
    assert venv.obs_rms.count[0] >= 16
    other = VecNormalize(vec_env.DummyVecEnv([pendulum]), training=False, norm_reward=False)
    model.set_env(other)
    assert model.get_vec_normalize_env() is other
