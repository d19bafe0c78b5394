"""The manners that all layers share: parameters, mode, the forward that waits for its backward, state."""

import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike

from bnorm import checks, devices
from bnorm.checks import FLOAT64
from bnorm.kernels import kind_of, moved
from bnorm.layers import saving, state
from bnorm.layers.parameters import Parameter
from bnorm.passes import Saved, pull_back

STATE_NAMES = {"gamma": "weight", "beta": "bias"}  # PyTorch's


def fixed(name: str, doc: str) -> Any:
    """A property that was settled at construction."""
    return property(attrgetter(f"_{name}"), doc=doc)


def adjustable(name: str, check: Callable[[str, Any], Any], doc: str) -> Any:
    """A property that may be assigned to, if `check` lets the value pass."""

    def assign(layer: "Layer", value: Any) -> None:
        setattr(layer, f"_{name}", check(layer._who, value))

    return property(attrgetter(f"_{name}"), assign, doc=doc)


class Layer:
    """A forward, y = layer(x), and its backward, dx = layer.backward(dy).

    The forward that a backward belongs to is held as it was, with its mode, statistics and parameters; its x too, and
    not copied: leave it as it is until then.

    device "cuda" keeps the arrays on a GPU, as CuPy arrays, and takes and returns such. A forward and a backward do not
    wait for the GPU, unless they are given weights, whose values are looked at.
    """

    eps = adjustable("eps", checks.epsilon, "Added to the variance, inside the root.")
    training = adjustable(
        "training", lambda who, value: checks.flag(who, "training", value), "The mode: train() and eval() set it too."
    )
    affine = fixed("affine", "Whether there are parameters, gamma and beta.")
    activation = fixed("activation", 'What is applied after, in the same pass: None, "relu" or "leaky_relu".')
    negative_slope = fixed("negative_slope", "The slope of the leaky ReLU below 0.")
    dtype = fixed("dtype", "The type of parameters and running statistics.")
    device = fixed("device", 'Where these are: "cpu" or "cuda".')

    def __init__(
        self,
        who: str,
        shape: tuple[int, ...],
        eps: float,
        affine: bool,
        activation: str | None,
        negative_slope: float,
        dtype: Any,
        device: str,
        shifts: bool = True,
    ) -> None:
        self._who = who  # in messages
        self._eps = checks.epsilon(who, eps)
        self._affine = checks.flag(who, "affine", affine)
        self._slope = checks.slope(who, activation, negative_slope)
        self._activation, self._negative_slope = activation, float(negative_slope)
        self._dtype = checks.parameter_dtype(who, dtype)
        self._kind: Any = devices.arrays_on(who, device)  # the type of all arrays here
        self._device = device
        self._training = True
        self._gamma = Parameter(self._new(shape, 1)) if self._affine else None
        self._beta = Parameter(self._new(shape, 0)) if self._affine and shifts else None
        self._saved: Saved | None = None

    @property
    def gamma(self) -> Parameter | None:
        """The scale; None without affine. Values assigned to it are written into its data."""
        return self._gamma

    @gamma.setter
    def gamma(self, value: Any) -> None:
        self._assign("gamma", value)

    @property
    def beta(self) -> Parameter | None:
        """The shift; None without affine. Values assigned to it are written into its data."""
        return self._beta

    @beta.setter
    def beta(self, value: Any) -> None:
        self._assign("beta", value)

    def parameters(self) -> list[Parameter]:
        """gamma and beta, those that there are."""
        return [p for _, p in self.named_parameters()]

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Pairs of name and parameter."""
        return [(name, p) for name, p in (("gamma", self._gamma), ("beta", self._beta)) if p is not None]

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero, in place."""
        for p in self.parameters():
            p.zero_grad()

    def reset_parameters(self) -> None:
        """gamma to 1 and beta to 0."""
        if self._gamma is not None:
            self._gamma.data[...] = 1
        if self._beta is not None:
            self._beta.data[...] = 0

    def train(self, mode: bool = True) -> Self:
        """Into training mode; train(False) is eval()."""
        self._training = checks.flag(self._who, "mode", mode)
        return self

    def eval(self) -> Self:
        """Into inference mode."""
        return self.train(False)

    def save(self, path: Any) -> None:
        """Write parameters, statistics and settings to a file, .safetensors or .npz, which `bnorm.load` reads.

        PyTorch's layer of that name loads the arrays of a .safetensors file with strict=True. Gradients and a forward
        that has no backward yet are not kept, nor is the device: what is loaded is on the CPU.
        """
        saving.save(self, path)

    def to(self, device: str) -> Self:
        """Move parameters, their gradients and statistics to a device, "cpu" or "cuda", CuPy's current one.

        Parameters are the same objects after it, for whoever holds them. A forward that has no backward yet is
        forgotten, as x and dy stay where they are.
        """
        kind = devices.arrays_on(self._who, device)
        if kind is not self._kind:
            arrays = {name: moved(a, kind) for name, a in self._memory().items()}
            self._place(arrays)
            self._kind, self._device, self._saved = kind, device, None
            self._settle()
        return self

    def backward(self, dy: ArrayLike, out: ndarray | None = None) -> ndarray:
        """dx, from dy, the gradient of the last forward's y; adds those of the parameters to their grad.

        There is one backward for each forward: RuntimeError without one.
        out: dy itself, or the x of the forward, or memory of its own.
        """
        saved = self._saved
        if saved is None:
            raise RuntimeError(f"{self._who}: backward: expected a forward before each backward, got none")
        gamma, beta = self._gamma, self._beta
        wanted = (gamma is not None and gamma.requires_grad) or (beta is not None and beta.requires_grad)
        given = None if out is None else self._own
        dx, dgamma, dbeta = pull_back(self._who, dy, saved, wanted, out, given)
        self._saved = None
        if gamma is not None and dgamma is not None and gamma.requires_grad:
            saved.kernels.add(gamma._grad, dgamma)
        if beta is not None and dbeta is not None and beta.requires_grad:
            saved.kernels.add(beta._grad, dbeta)
        return dx

    def state_dict(self) -> state.StateDict:
        """Copies of all arrays, under PyTorch's names, on the device of the layer."""
        return state.StateDict((name, a.copy()) for name, a in self._state().items())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> state.Incompatible:
        """Take over a `state_dict()`, of PyTorch's layer too, from any device; gamma and beta are names as well.

        strict: names that are missing or unexpected are an error. A wrong shape always is, and then nothing is loaded.
        Returns the names that were missing, and those not expected.
        """
        strict = checks.flag(self._who, "strict", strict)
        found, differing = state.read(self._who, state_dict, self._state(), strict)
        self._load({name: moved(a, self._kind) if a.ndim else a for name, a in found.items()}, state_dict)
        return differing

    def _state(self) -> dict[str, ndarray]:
        return {STATE_NAMES[name]: p.data for name, p in self.named_parameters()}

    def _load(self, found: Mapping[str, ndarray], state_dict: Mapping[str, Any]) -> None:
        for name, p in self.named_parameters():
            if STATE_NAMES[name] in found:
                p.data[...] = found[STATE_NAMES[name]]

    def _assign(self, name: str, value: Any) -> None:
        p = getattr(self, f"_{name}")
        if value is p:  # what an in-place operator leaves
            return
        if p is None:
            raise ValueError(f"{self._who}: {name}: expected no value without this parameter, got {value!r}")
        p.data[...] = checks.vector(self._who, name, value, p.shape, self._kind, "the layer")

    def _new(self, shape: tuple[int, ...], value: float) -> ndarray:
        """An array of this layer, on its device."""
        new: ndarray = moved(np.full(shape, value, self._dtype), self._kind)
        return new

    def _taken(self, x: Any) -> ndarray:
        """x as an array that the kernels take: on this layer's device, but where it has no arrays, on any."""
        elsewhere = not self._own and kind_of(x) is not None
        return checks.array(self._who, x, None if elsewhere else self._kind, "the layer")

    def _settle(self) -> None:
        """Keep the arrays that kernels take, where these are float64 and so never made anew, and those to keep off."""
        self._constants = self._wide() if self._dtype == FLOAT64 else None
        self._own = self._memory()

    def _wide(self) -> tuple[ndarray | None, ...]:
        """gamma and beta in float64, and in other layers more."""
        return tuple(p if p is None else p.data.astype(FLOAT64, copy=False) for p in (self._gamma, self._beta))

    def _memory(self) -> dict[str, ndarray]:
        """All arrays of this layer, by name: `out` has to keep off them."""
        arrays = {name: p.data for name, p in self.named_parameters()}
        return arrays | {f"{name}.grad": p.grad for name, p in self.named_parameters()}

    def _place(self, arrays: Mapping[str, ndarray]) -> None:
        """Take these for the arrays of this layer, which `_memory` names."""
        for name, p in self.named_parameters():
            p._data, p._grad = arrays[name], arrays[f"{name}.grad"]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_saved": None}  # the net's data is no part of a layer

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._kind = devices.arrays_on(self._who, self._device)
        self._settle()

    def __repr__(self) -> str:
        shown = [self._who.removesuffix(")")]
        for name, option in inspect.signature(type(self)).parameters.items():
            if option.default is not option.empty and (value := getattr(self, name, option.default)) != option.default:
                shown.append(f"{name}={value.name if isinstance(value, np.dtype) else value!r}")
        return f"{', '.join(shown + self._switches())})"

    def _switches(self) -> list[str]:
        """What was switched since the construction: mode and parameters."""
        frozen = [f"{name}.requires_grad=False" for name, p in self.named_parameters() if not p.requires_grad]
        return frozen if self._training else ["training=False", *frozen]


def signature_of(name: str, *arguments: Any) -> str:
    """How a layer calls itself in messages."""
    return f"{name}({', '.join(map(repr, arguments))})"
