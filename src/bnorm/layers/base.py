"""What all layers share: parameters, mode, the forward that waits for its backward, state."""

import copy
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks, devices
from bnorm.checks import FLOAT64
from bnorm.kernels import kind_of, moved
from bnorm.layers import state
from bnorm.layers.backward import Pull, forward_and_pull
from bnorm.layers.parameters import Parameter
from bnorm.passes import Saved, pull_back

STATE_NAMES = {"gamma": "weight", "beta": "bias"}  # PyTorch's
SYNONYMS = ("elementwise_affine",)  # names that PyTorch has for other arguments
MADE_ANEW = ("_constants", "_own", "_saved")  # by `_settle`, or no part of a layer: the data of the net


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
    not copied: do not change it until then.

    device "cuda" keeps the arrays on a GPU, as CuPy arrays, and takes and returns such. A forward and a backward do not
    wait for the GPU, unless they are given weights, whose values are looked at.

    Attributes have slots, so that a name which is none is an AttributeError. A subclass may have any of its own.
    """

    __slots__ = (
        *("__weakref__", "_activation", "_affine", "_beta", "_bias", "_constants", "_device", "_dtype", "_eps"),
        *("_gamma", "_kind", "_negative_slope", "_own", "_saved", "_slope", "_training", "_who"),
    )

    _eps: Any  # a number; None where that means something

    eps = adjustable("eps", checks.epsilon, "Added to the variance, inside the root.")
    training = adjustable(
        "training", lambda who, value: checks.flag(who, "training", value), "The mode: train() and eval() set it too."
    )
    affine = fixed("affine", "Whether there are parameters: gamma, and beta unless bias is False.")
    activation = fixed("activation", 'What is applied after, in the same pass: None, "relu" or "leaky_relu".')
    negative_slope = fixed("negative_slope", "The slope of the leaky ReLU below 0.")
    dtype = fixed("dtype", "The type of parameters and running statistics.")
    device = fixed("device", 'Where these are: "cpu" or "cuda".')

    def __init__(
        self,
        who: str,
        shape: tuple[int, ...],
        eps: float | None,
        affine: bool,
        bias: bool,
        activation: str | None,
        negative_slope: float,
        dtype: "DTypeLike",
        device: str,
    ) -> None:
        self._who = who  # in messages
        self.eps = eps
        self._affine = checks.flag(who, "affine", affine)
        self._bias = checks.flag(who, "bias", bias)
        self._slope = checks.slope(who, activation, negative_slope)
        self._activation, self._negative_slope = activation, float(negative_slope)
        self._dtype = checks.parameter_dtype(who, dtype)
        self._kind: Any = devices.arrays_on(who, device)  # the type of all arrays here
        self._device = device
        self._training = True
        self._gamma = Parameter.holding(self._new(shape, 1)) if self._affine else None
        self._beta = Parameter.holding(self._new(shape, 0)) if self._affine and self._bias else None
        self._saved: Saved | None = None

    def __call__(self, x: Any, *args: Any, **options: Any) -> ndarray:
        """y, in the shape, type and memory order of x."""
        raise NotImplementedError

    @property
    def gamma(self) -> Parameter | None:
        """The scale, also called weight; None without affine. Values assigned to it are written into its data."""
        return self._gamma

    @gamma.setter
    def gamma(self, value: Any) -> None:
        self._assign("gamma", value)

    @property
    def beta(self) -> Parameter | None:
        """The shift, also called bias; None without affine or bias. Values assigned are written into its data."""
        return self._beta

    @beta.setter
    def beta(self, value: Any) -> None:
        self._assign("beta", value)

    weight = gamma  # PyTorch's names
    bias = beta

    def parameters(self) -> list[Parameter]:
        """gamma and beta, those that there are."""
        return [p for _, p in self.named_parameters()]

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Pairs of name and parameter."""
        return [(name, p) for name, p in (("gamma", self._gamma), ("beta", self._beta)) if p is not None]

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to zero, in place."""
        state.apply([state.write(p.grad, 0) for p in self.parameters()])

    def reset_parameters(self) -> None:
        """gamma to 1 and beta to 0."""
        state.apply([state.write(p.data, name == "gamma") for name, p in self.named_parameters()])

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
        from bnorm.layers import saving  # which import bnorm need not wait for

        saving.save(self, path)

    def to(self, device: str) -> Self:
        """Move parameters, their gradients and statistics to a device, "cpu" or "cuda", CuPy's current one.

        Parameters stay the same objects, so an optimizer that holds them goes on. A forward that has no backward yet is
        forgotten, as x and dy stay where they are.
        """
        kind = devices.arrays_on(self._who, device)
        if kind is not self._kind:
            arrays = {name: moved(a, kind) for name, a in self._memory().items()}
            self._place(arrays)
            self._kind, self._device, self._saved = kind, device, None
            self._settle()
        return self

    def backward(self, dy: "ArrayLike", out: ndarray | None = None) -> ndarray:
        """dx, from dy, the gradient of the last forward's y; adds those of the parameters to their grad.

        There is one backward for each forward: RuntimeError without one, or after one inside of `no_backward`. Where a
        layer is used several times before the first backward, `vjp` has one for each.
        out: dy itself, or the x of the forward, or memory of its own.
        """
        saved = self._saved
        if saved is None:
            raise RuntimeError(
                f"{self._who}: backward: expected a forward before each backward, got none (no_backward() keeps none); "
                "where a layer is used several times, y, pull = layer.vjp(x) returns the backward of each use"
            )
        return self._pulled(self, dy, saved, out)

    def vjp(self, x: Any, *args: Any, **options: Any) -> tuple[ndarray, Pull]:
        """y, and the backward of this very forward: y, pull = layer.vjp(x), then dx = pull(dy), once.

        A layer that is used several times in one step (a shared layer, a recurrent net) needs one backward for each
        use. Any number of them may be open, and they may be called in any order. The arguments are those of
        `layer(x)`, and training moves the running statistics as there; `layer.backward` still belongs to the last
        `layer(x)`.

        Examples
        --------
        >>> import numpy as np, bnorm
        >>> ln = bnorm.LayerNorm(3)
        >>> y1, pull1 = ln.vjp(np.array([[1.0, 2.0, 4.0]]))
        >>> y2, pull2 = ln.vjp(y1)
        >>> dy = np.array([[1.0, 0.0, 0.0]])
        >>> dx = pull1(pull2(dy))
        """
        return forward_and_pull(self, x, *args, **options)

    def state_dict(self) -> state.StateDict:
        """Copies of all arrays, under PyTorch's names, on the device of the layer."""
        return state.StateDict((name, a.copy()) for name, a in self._state().items())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> state.Incompatible:
        """Take over a `state_dict()`, of PyTorch's layer too, from any device; gamma and beta are names as well.

        strict: names that are missing or unexpected are an error. A wrong shape always is, and then nothing is loaded.
        Returns the names that were missing, and those not expected.
        """
        return state.load(self._who, "state_dict", {"": self}, state_dict, strict)

    def _state(self) -> dict[str, ndarray]:
        return {STATE_NAMES[name]: p.data for name, p in self.named_parameters()}

    def _loading(self, found: Mapping[str, ndarray], seen: ndarray | None) -> list[state.Change]:
        """What there is to change so that the layer has these arrays."""
        here = {STATE_NAMES[name]: p.data for name, p in self.named_parameters()}
        return [state.write(here[name], a) for name, a in found.items() if name in here]

    def _assign(self, name: str, value: Any) -> None:
        p = getattr(self, f"_{name}")
        if value is p:  # what an in-place operator leaves
            return
        if p is None:
            raise ValueError(f"{self._who}: {name}: expected no value without this parameter, got {value!r}")
        p.data[...] = checks.vector(self._who, name, value, p.shape, self._kind, "the layer")

    def _pulled(self, holder: "Layer | Pull", dy: Any, saved: Saved, out: ndarray | None) -> ndarray:
        """The backward of the forward that `holder` has saved, which it has no more after that."""
        gamma, beta = self._gamma, self._beta
        dgammas = gamma._grad if gamma is not None and gamma.requires_grad else None  # what they are added to
        dbetas = beta._grad if beta is not None and beta.requires_grad else None
        wanted = dgammas is not None or dbetas is not None
        if wanted and saved.x is not None and type(saved.x) is not self._kind:
            raise RuntimeError(f"{self._who}: pull: expected the layer on the device of its forward, got it on another")
        given = None if out is None else self._own
        dx, dgamma, dbeta = pull_back(self._who, dy, saved, wanted, out, given)
        # No interrupt comes between these two lines, nor into the call: the backward is done, or has not happened.
        holder._saved = None
        if wanted:
            saved.kernels.add(dgammas, dgamma, dbetas, dbeta)
        return dx

    def _new(self, shape: tuple[int, ...], value: float) -> ndarray:
        """An array of this layer, on its device."""
        new = np.empty(shape, self._dtype)
        new.fill(value)
        return moved(new, self._kind)  # type: ignore[no-any-return]

    def _taken(self, x: Any, integers: bool = False) -> ndarray:
        """x as an array that the kernels take: on this layer's device, but where it has no arrays, on any."""
        elsewhere = not self._own and kind_of(x) is not None
        return checks.array(self._who, x, None if elsewhere else self._kind, "the layer", integers=integers)

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

    def _option(self, name: str, default: Any) -> Any:
        """What an argument of the constructor stands at."""
        return self._bias if name == "bias" else getattr(self, name, default)

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        both: Any = super().__getstate__()
        own, slots = both  # what a subclass has in a __dict__, and all slots
        return own, {name: value for name, value in slots.items() if name not in MADE_ANEW}

    def __setstate__(self, state: tuple[Any, dict[str, Any]]) -> None:
        own, slots = state
        if own:
            self.__dict__.update(own)
        for name, value in slots.items():
            setattr(self, name, value)
        self._saved = None
        self._kind = devices.arrays_on(self._who, self._device)
        self._settle()

    def __copy__(self) -> Self:
        """A copy has arrays of its own, as that of an array has: two layers that move one state would be a trap."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        shown = [self._who.removesuffix(")")]
        for name, argument in inspect.signature(type(self)).parameters.items():
            if argument.default is argument.empty or name in SYNONYMS:
                continue
            value = self._option(name, argument.default)
            if value != argument.default:
                shown.append(f"{name}={value.name if isinstance(value, np.dtype) else value!r}")
        return f"{', '.join(shown + self._switches())})"

    def _switches(self) -> list[str]:
        """What was switched since the construction: mode and parameters."""
        frozen = [f"{name}.requires_grad=False" for name, p in self.named_parameters() if not p.requires_grad]
        return frozen if self._training else ["training=False", *frozen]


def signature_of(name: str, *arguments: Any) -> str:
    """How a layer calls itself in messages."""
    return f"{name}({', '.join(map(repr, arguments))})"
