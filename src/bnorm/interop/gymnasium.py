"""Gymnasium's wrappers that normalize observations and rewards, on `RunningNorm`, for environments and vectors of them.

    env = NormalizeObservation(env)     for gymnasium.wrappers.NormalizeObservation, and for that of wrappers.vector
    env = NormalizeReward(env)          for gymnasium.wrappers.NormalizeReward, and for that of wrappers.vector

The arguments and attributes are Gymnasium's: obs_rms and return_rms, which are a RunningNorm, and update_running_mean.
They differ in what they compute: nothing is mixed into the first statistics, what is not finite does not count, and a
return ends with its episode.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.checks import missing
from bnorm.interop.neighbors import discounted
from bnorm.streams import RunningNorm

try:
    from gymnasium import ObservationWrapper, Wrapper
    from gymnasium.error import InvalidBound
    from gymnasium.spaces import Box
    from gymnasium.utils import RecordConstructorArgs
    from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise missing(__name__, "gymnasium", "rl", error) from error

__all__ = ["NormalizeObservation", "NormalizeReward"]


class _Switch:
    """What both wrappers share: one name for two classes, and a switch."""

    _single: type
    _vector: type
    _norm: RunningNorm
    _updates = True

    def __new__(cls, env: Any = None, *args: Any, **options: Any) -> Any:  # copies and pickles are made without env
        """Make the wrapper of an environment, or that of a vector of environments."""
        if cls in (NormalizeObservation, NormalizeReward):
            cls = cls._vector if isinstance(env, VectorEnv) else cls._single
        return super().__new__(cls)

    @property
    def update_running_mean(self) -> bool:
        """Whether steps and resets update the statistics; set it to False for evaluation.

        Wrappers that share their statistics have a switch each.
        """
        return self._updates

    @update_running_mean.setter
    def update_running_mean(self, setting: bool) -> None:
        self._updates = bool(setting)


class NormalizeObservation(_Switch):
    """Normalize the observations of an environment, or of a vector of environments, as float32.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        With arrays as observations. (For dictionaries and tuples there is `RunningNorm.tree`.)
    epsilon : float, default 1e-8
        Added to the variance.
    """

    def __init__(self, env: Any, epsilon: float = 1e-8) -> None:
        raise _not_to_subclass(self)  # `__new__` makes an object of another class

    @property
    def obs_rms(self) -> RunningNorm:
        """The statistics; assign a RunningNorm to continue from it."""
        return self._norm

    @obs_rms.setter
    def obs_rms(self, value: RunningNorm) -> None:
        self._norm = _checked(self, value, self._norm.shape)

    def _start(self, shape: Any, epsilon: float) -> None:
        _positive(epsilon)
        RecordConstructorArgs.__init__(self, epsilon=epsilon)
        if shape is None:
            raise ValueError(
                "NormalizeObservation: env: expected observations that are arrays, got an observation space without "
                "a shape; RunningNorm.tree(space) normalizes dictionaries and tuples"
            )
        self.epsilon = epsilon
        self._norm = RunningNorm(tuple(shape), eps=epsilon)

    def _float32(self, obs: Any) -> ndarray:
        z: ndarray = np.asarray(self._norm.train(self._updates)(obs), np.float32)
        return z


class SingleNormalizeObservation(NormalizeObservation, ObservationWrapper, RecordConstructorArgs):  # type: ignore[misc]
    """NormalizeObservation of an environment."""

    def __init__(self, env: Any, epsilon: float = 1e-8) -> None:
        self._start(env.observation_space.shape, epsilon)
        ObservationWrapper.__init__(self, env)
        self.observation_space = _unbounded(env.observation_space.shape)

    def observation(self, observation: Any) -> ndarray:
        """Update the statistics by the observation, and normalize it."""
        return self._float32(observation)


class VectorNormalizeObservation(NormalizeObservation, VectorWrapper, RecordConstructorArgs):  # type: ignore[misc]
    """NormalizeObservation of a vector of environments."""

    def __init__(self, env: Any, epsilon: float = 1e-8) -> None:
        self._start(env.single_observation_space.shape, epsilon)
        VectorWrapper.__init__(self, env)
        self.single_observation_space = _unbounded(env.single_observation_space.shape)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset. If only some environments are reset (`reset_mask`), only their observations are new and count."""
        mask = (options or {}).get("reset_mask")  # now, as the environments remove it from the options
        obs, infos = self.env.reset(seed=seed, options=options)
        if mask is None:
            return self._float32(obs), infos
        if self.update_running_mean:
            self._norm.update(obs[np.asarray(mask, bool)])
        return np.asarray(self._norm.normalize(obs), np.float32), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step. The last observations of episodes, which some vectors have in infos, count and are normalized too."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        ended = infos.get("_final_obs")
        if ended is not None and "final_obs" in infos and np.any(ended):
            finals = infos["final_obs"].copy()
            places = np.flatnonzero(ended)
            z = self._float32(np.stack([finals[i] for i in places]))
            for i, last in zip(places, z, strict=True):
                finals[i] = last
            infos = infos | {"final_obs": finals}
        return self._float32(obs), rewards, terminations, truncations, infos


class NormalizeReward(_Switch):
    """Divide rewards by the standard deviation of the discounted returns.

    A return ends with its episode, terminated or truncated. A reward that is not finite does not count, and its return
    goes on as if it had been 0.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
    gamma : float, default 0.99
        The discount of a step.
    epsilon : float, default 1e-8
        Added to the variance.
    """

    def __init__(self, env: Any, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        raise _not_to_subclass(self)  # `__new__` makes an object of another class

    @property
    def return_rms(self) -> RunningNorm:
        """The statistics of the returns; assign a RunningNorm to continue from it."""
        return self._norm

    @return_rms.setter
    def return_rms(self, value: RunningNorm) -> None:
        self._norm = _checked(self, value, ())

    def _start(self, gamma: float, epsilon: float) -> None:
        if not 0 <= gamma <= 1:
            raise InvalidBound(f"NormalizeReward: gamma: expected a number from 0 to 1, got {gamma!r}")
        _positive(epsilon)
        RecordConstructorArgs.__init__(self, gamma=gamma, epsilon=epsilon)
        self.gamma, self.epsilon = gamma, epsilon
        self._norm = RunningNorm((), eps=epsilon)

    def _follow(self, returns: ndarray, reward: Any) -> ndarray:
        """Return the returns after these rewards, and add them to the statistics."""
        return discounted(returns, self.gamma, reward, self._norm if self.update_running_mean else None)


class SingleNormalizeReward(NormalizeReward, Wrapper, RecordConstructorArgs):  # type: ignore[misc]
    """NormalizeReward of an environment."""

    def __init__(self, env: Any, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        self._start(gamma, epsilon)
        Wrapper.__init__(self, env)
        self.discounted_reward = np.zeros(1)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and begin a new return."""
        self.discounted_reward = np.zeros(1)
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, with the reward divided."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.discounted_reward = self._follow(self.discounted_reward, np.float64(reward))
        if terminated or truncated:
            self.discounted_reward = np.zeros(1)
        return obs, reward / self._norm.std[()], terminated, truncated, info


class VectorNormalizeReward(NormalizeReward, VectorWrapper, RecordConstructorArgs):  # type: ignore[misc]
    """NormalizeReward of a vector of environments."""

    def __init__(self, env: Any, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        self._start(gamma, epsilon)
        VectorWrapper.__init__(self, env)
        self.accumulated_reward = np.zeros(self.num_envs)
        self._resets = np.zeros(self.num_envs, bool)  # environments whose next step only resets them

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and begin a new return in the environments that are reset."""
        mask = (options or {}).get("reset_mask")
        obs, infos = self.env.reset(seed=seed, options=options)
        which = np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool)
        self.accumulated_reward = np.where(which, 0.0, self.accumulated_reward)
        self._resets = self._resets & ~which
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step, with the rewards divided."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        plays = ~self._resets
        after = self.accumulated_reward.copy()
        after[plays] = self._follow(after[plays], np.asarray(rewards, np.float64)[plays])
        ended = np.logical_or(terminations, truncations)
        self.accumulated_reward = np.where(ended, 0.0, after)
        same_step = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP) == AutoresetMode.SAME_STEP
        self._resets = ended & (not same_step)
        return obs, rewards / self._norm.std[()], terminations, truncations, infos


NormalizeObservation._single, NormalizeObservation._vector = SingleNormalizeObservation, VectorNormalizeObservation
NormalizeReward._single, NormalizeReward._vector = SingleNormalizeReward, VectorNormalizeReward
for _wrapper in (NormalizeObservation, NormalizeReward):  # the name in texts, and in specs that make the wrapper again
    _wrapper._single.__name__ = _wrapper._vector.__name__ = _wrapper.__name__


def _not_to_subclass(wrapper: _Switch) -> TypeError:
    base = NormalizeObservation if isinstance(wrapper, NormalizeObservation) else NormalizeReward
    names = f"Single{base.__name__}, or of Vector{base.__name__} for vectors of environments,"
    return TypeError(
        f"{type(wrapper).__name__}: expected a subclass of bnorm.interop.gymnasium.{names} got one of {base.__name__}, "
        "which only makes objects of these two"
    )


def _unbounded(shape: Any) -> Any:
    return Box(-np.inf, np.inf, shape, np.float32)


def _positive(epsilon: float) -> None:
    if not epsilon > 0:
        raise InvalidBound(f"epsilon: expected a number above 0, got {epsilon!r}")


def _checked(wrapper: Any, value: Any, shape: tuple[int, ...]) -> RunningNorm:
    if not isinstance(value, RunningNorm) or value.shape != shape:
        raise TypeError(f"{type(wrapper).__name__}: expected a RunningNorm of shape {shape}, got {value!r}")
    return value
