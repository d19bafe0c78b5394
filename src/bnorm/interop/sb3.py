"""`VecNormalize` of Stable-Baselines3 on `RunningNorm`: the same arguments and attributes, accepted by its algorithms.

It differs in what it computes: nothing is mixed into the first statistics, and what is not finite does not count. Its
file holds statistics and settings in the format of bnorm, and no pickle.
"""

from copy import deepcopy
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.checks import missing
from bnorm.files import container
from bnorm.interop.neighbors import discounted
from bnorm.layers.saving import flag
from bnorm.streams import RunningNorm, saving

try:
    from stable_baselines3.common import vec_env
except ImportError as error:
    raise missing(__name__, "stable_baselines3", "sb3", error) from error

__all__ = ["VecNormalize"]

CLASS = "VecNormalize"
NUMBERS = ("clip_obs", "clip_reward", "gamma", "epsilon")
FLAGS = ("training", "norm_obs", "norm_reward")


class VecNormalize(vec_env.VecNormalize):  # type: ignore[misc]
    """Normalize the observations and rewards of a vector of environments.

    obs_rms, a RunningNorm or a dictionary of them, has the statistics of the observations, and ret_rms those of the
    discounted returns. Everything else is as in Stable-Baselines3, of whose class this is one.

    Parameters
    ----------
    venv : stable_baselines3.common.vec_env.VecEnv
    training : bool, default True
        Whether steps and resets update the statistics.
    norm_obs, norm_reward : bool, default True
        Whether to normalize observations, and rewards.
    clip_obs, clip_reward : float, default 10.0
        The largest absolute value of the results.
    gamma : float, default 0.99
        The discount of a step.
    epsilon : float, default 1e-8
        Added to the variance.
    norm_obs_keys : list of str, optional
        The keys of dictionaries to normalize; all by default.
    """

    obs_rms: Any

    def __init__(
        self,
        venv: Any,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        norm_obs_keys: list[str] | None = None,
    ) -> None:
        super().__init__(venv, training, norm_obs, norm_reward, clip_obs, clip_reward, gamma, epsilon, norm_obs_keys)
        if norm_obs:
            if isinstance(self.obs_rms, dict):
                self.obs_rms = {key: self._norm(self.obs_spaces[key].shape) for key in self.obs_rms}
            else:
                self.obs_rms = self._norm(self.observation_space.shape)
        self.ret_rms = RunningNorm((), eps=epsilon)

    def reset(self) -> Any:
        """Reset all environments, and return their first observations, normalized."""
        self.old_obs = obs = self.venv.reset()
        self.returns = np.zeros(self.num_envs)
        return self._seen(obs)

    def step_wait(self) -> Any:
        """Observations, rewards, dones and infos of the step."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.old_obs, self.old_reward = obs, rewards
        obs = self._seen(obs)
        if self.training:
            self._update_reward(rewards)
        rewards = self.normalize_reward(rewards)
        for i in np.flatnonzero(dones):
            if "terminal_observation" in infos[i]:
                infos[i]["terminal_observation"] = self.normalize_obs(infos[i]["terminal_observation"])
        self.returns[dones] = 0
        return obs, rewards, dones, infos

    def normalize_obs(self, obs: Any) -> Any:
        """Observations normalized by the present statistics, as float32."""
        return self._through(obs, lambda norm, x: _float32(self._set(norm).normalize(x)))

    def unnormalize_obs(self, obs: Any) -> Any:
        """The observations that these were before."""
        return self._through(obs, lambda norm, x: self._set(norm).denormalize(x))

    def normalize_reward(self, reward: Any) -> ndarray:
        """Rewards divided by the standard deviation of the returns, as float32."""
        if self.norm_reward:
            reward = np.clip(reward / self._set(self.ret_rms, False).std, -self.clip_reward, self.clip_reward)
        return _float32(reward)

    def unnormalize_reward(self, reward: Any) -> Any:
        """The rewards that these were before."""
        return reward * self._set(self.ret_rms, False).std if self.norm_reward else reward

    def save(self, save_path: Any) -> None:
        """Write statistics and settings to a file, which `load` reads: no pickle, and no environment.

        The name may end in anything; .npz chooses that format, and all else is the format of safetensors.
        """
        arrays, structure = saving.arrays(self.ret_rms, "ret."), None
        if self.norm_obs:
            parts = self.obs_rms if isinstance(self.obs_rms, dict) else {"": self.obs_rms}
            structure = [[key, saving.arguments(norm)] for key, norm in parts.items()]
            for i, norm in enumerate(parts.values()):
                arrays |= saving.arrays(norm, f"obs{i}.")
        settings = {name: float(getattr(self, name)) for name in NUMBERS}
        settings |= {name: bool(getattr(self, name)) for name in FLAGS} | {"norm_obs_keys": self.norm_obs_keys}
        config = {"class": CLASS, "settings": settings, "obs": structure, "ret": saving.arguments(self.ret_rms)}
        container.write(f"{CLASS}: save", save_path, config, arrays, _format(save_path))

    @staticmethod
    def load(load_path: Any, venv: Any) -> "VecNormalize":
        """The VecNormalize of a file that `save` wrote, around these environments."""
        who = f"{CLASS}.load"
        config, entries = container.read(who, load_path, _format(load_path))
        if config.get("class") != CLASS:
            raise ValueError(f"{who}: {load_path}: expected a {CLASS}, got {config.get('class')!r}")
        try:
            settings = config["settings"]
            for name in FLAGS:
                flag(settings[name])
            norms = _norms(config["obs"], entries)
            ret = saving.filled(RunningNorm, config["ret"], _under("ret.", entries))
        except Exception as error:  # values of a damaged file may lead to any error
            raise ValueError(f"{who}: {load_path}: expected a {CLASS}, got a damaged file: {error}") from None
        new = VecNormalize(venv, **settings)
        if norms is not None:
            mine = new.obs_rms if isinstance(new.obs_rms, dict) else {"": new.obs_rms}
            shapes = [{key: norm.shape for key, norm in some.items()} for some in (mine, norms)]
            if shapes[0] != shapes[1]:
                raise ValueError(f"{who}: venv: expected observations of {shapes[1]}, as in the file, got {shapes[0]}")
            new.obs_rms = norms if isinstance(new.obs_rms, dict) else norms[""]
        new.ret_rms = ret
        return new

    def _norm(self, shape: Any) -> RunningNorm:
        return RunningNorm(tuple(shape), clip=self.clip_obs, eps=self.epsilon)

    def _set(self, norm: RunningNorm, clips: bool = True) -> RunningNorm:
        """The statistics with the present settings, which may have been assigned."""
        if norm.eps != self.epsilon:
            norm.eps = self.epsilon
        if clips and norm.clip != self.clip_obs:
            norm.clip = self.clip_obs
        return norm

    def _seen(self, obs: Any) -> Any:
        """Normalize observations of all environments; in training, first add them to the statistics."""
        if not self.training:
            return self.normalize_obs(obs)
        return self._through(obs, lambda norm, x: _float32(self._set(norm).train()(x)))

    def _through(self, obs: Any, f: Any) -> Any:
        """Return a copy of observations, with f(norm, x) for each array x that is normalized."""
        if not self.norm_obs:
            return deepcopy(obs)
        if isinstance(obs, dict):
            norms = self.obs_rms
            return {key: f(norms[key], x) if key in norms else deepcopy(x) for key, x in obs.items()}
        return f(self.obs_rms, obs)

    def _update_reward(self, reward: Any) -> None:
        self.returns = discounted(self.returns, self.gamma, reward, self.ret_rms)


def _float32(a: Any) -> ndarray:
    result: ndarray = np.asarray(a, np.float32)
    return result


def _format(path: Any) -> str:
    return container.NPZ if str(path).lower().endswith(container.NPZ) else container.SAFETENSORS


def _under(prefix: str, entries: dict[str, container.Entry]) -> dict[str, container.Entry]:
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}


def _norms(structure: Any, entries: dict[str, container.Entry]) -> dict[str, RunningNorm] | None:
    if structure is None:
        return None
    return {
        key: saving.filled(RunningNorm, given, _under(f"obs{i}.", entries)) for i, (key, given) in enumerate(structure)
    }
