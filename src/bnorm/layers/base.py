"""The base class of all layers: parameters, mode, the saved forward, state."""

import copy
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks, devices
from bnorm.checks import FLOAT64
from bnorm.kernels import kind_of, moved, view
from bnorm.kernels.activation import Name
from bnorm.kernels.cpu.entries import in_float64
from bnorm.layers import state
from bnorm.layers.backward import OPEN, Pull, forward_and_pull, refuse_changed
from bnorm.layers.parameters import Parameter
from bnorm.passes import Saved

SYNONYMS = ("elementwise_affine",)  # names that PyTorch has for other arguments
# Not pickled: caches, and the forward, which has data of the net.
MADE_ANEW = ("_constants", "_layout", "_narrow", "_own", "_saved")


def fixed(name: str, doc: str) -> Any:
    """Return a read-only property, whose value is set at construction."""
    return property(attrgetter(f"_{name}"), doc=doc)


def adjustable(name: str, check: Callable[[str, Any], Any], doc: str) -> Any:
    """Return a property that checks assigned values by `check`."""

    def assign(layer: "Layer", value: Any) -> None:
        setattr(layer, f"_{name}", check(layer._who, value))

    return property(attrgetter(f"_{name}"), assign, doc=doc)


class Layer:
    """A forward, y = layer(x), and its backward, dx = layer.backward(dy).

    A backward uses the mode, statistics and parameters of its forward. The x of the forward is kept, not copied: do not
    change it before the backward (`bnorm.set_debug(True)` finds such changes).

    With device "cuda" all arrays, x and y included, are CuPy arrays. A forward and a backward never synchronize with
    the GPU, except once to validate weights, and with nonfinite="raise".

    A layer has slots, so assigning to an unknown attribute is an AttributeError. A subclass may have attributes of its
    own.
    """

    __slots__ = (
        *("__weakref__", "_act", "_activation", "_affine", "_beta", "_bias", "_constants", "_device", "_dtype", "_eps"),
        *("_gamma", "_kind", "_layout", "_narrow", "_negative_slope", "_own", "_saved", "_training", "_who"),
    )

    _SINGLE: ClassVar[tuple[str, ...]] = ()  # devices whose kernels take float32 arrays of this layer as they are
    _eps: Any  # a number, or in some layers None

    eps = adjustable("eps", checks.epsilon, "Added to the variance, inside the root.")
    training = adjustable(
        "training", lambda who, value: checks.flag(who, "training", value), "The mode. train() and eval() set it too."
    )
    affine = fixed("affine", "Whether there are parameters: gamma, and beta unless bias is False.")
    activation = fixed("activation", 'The activation in the same pass: None, "relu", "leaky_relu", "silu" or "gelu".')
    negative_slope = fixed("negative_slope", "The slope of the leaky ReLU below 0.")
    dtype = fixed("dtype", "The dtype of parameters and running statistics.")
    device = fixed("device", 'The device of parameters and running statistics: "cpu" or "cuda".')

    def __init__(
        self,
        who: str,
        shape: tuple[int, ...],
        eps: float | None,
        affine: bool,
        bias: bool,
        activation: Name,
        negative_slope: float,
        dtype: "DTypeLike | None",
        device: str | None,
    ) -> None:
        self._who = who  # in messages
        self.eps = eps
        self._affine = checks.flag(who, "affine", affine)
        self._bias = checks.flag(who, "bias", bias)
        self._act = checks.activation(who, activation, negative_slope)
        self._activation, self._negative_slope = activation, float(negative_slope)
        self._dtype = checks.parameter_dtype(who, "float64" if dtype is None else dtype)
        device = "cpu" if device is None else device  # PyTorch's None: the default
        self._kind: Any = devices.arrays_on(who, device)  # the type of this layer's arrays
        self._device = device
        self._training = True
        self._gamma = Parameter._holding(self._new(shape, 1)) if self._affine else None
        self._beta = Parameter._holding(self._new(shape, 0)) if self._affine and self._bias else None
        self._saved: Saved | None = None
        self._settle()

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that defines one of `forward` and `__call__`, as those of PyTorch define forward, defines both."""
        super().__init_subclass__(**options)
        both = {"forward", "__call__"}
        own = next(found for kind in cls.__mro__ if (found := both & vars(kind).keys()))
        for other in both - own:
            setattr(cls, other, getattr(cls, *own))

    def __call__(self, x: Any, *args: Any, **options: Any) -> ndarray:
        """Return y, in the shape, dtype and memory order of x."""
        raise NotImplementedError

    forward = __call__  # in a subclass its own, by `__init_subclass__` and `public`

    @property
    def gamma(self) -> Parameter | Any:  # None only without affine: users need not rule it out
        """The scale, also called weight; None without affine. Assigned values are copied into its data."""
        return self._gamma

    @gamma.setter
    def gamma(self, value: Any) -> None:
        self._assign("gamma", value)

    @property
    def beta(self) -> Parameter | Any:
        """The shift, also called bias; None without affine or bias. Assigned values are copied into its data."""
        return self._beta

    @beta.setter
    def beta(self, value: Any) -> None:
        self._assign("beta", value)

    weight = gamma  # PyTorch's names
    bias = beta

    def parameters(self) -> list[Parameter]:
        """Return the parameters: gamma and beta, if the layer has them."""
        return [p for _, p in self.named_parameters()]

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Return pairs of name and parameter: "gamma" and "beta", if the layer has them."""
        return [(name, p) for name, p in (("gamma", self._gamma), ("beta", self._beta)) if p is not None]

    def zero_grad(self) -> None:
        """Set the gradients of the parameters to zero, in place."""
        state.apply([state.write(p.grad, 0) for p in self.parameters()])

    def reset_parameters(self) -> None:
        """Set gamma to 1 and beta to 0."""
        state.apply([state.write(p.data, name == "gamma") for name, p in self.named_parameters()])

    def train(self, mode: bool = True) -> Self:
        """Set training mode; train(False) is eval(). Return the layer."""
        self._training = checks.flag(self._who, "mode", mode)
        return self

    def eval(self) -> Self:
        """Set inference mode. Return the layer."""
        return self.train(False)

    def save(self, path: Any) -> None:
        """Write parameters, statistics and settings to a file, which `bnorm.load` reads.

        PyTorch's layer of the same name loads the arrays of a .safetensors file with strict=True. Gradients, a forward
        without a backward, and the device are not saved: a loaded layer is on the CPU. An object of your own subclass
        is saved as an object of the layer's class.

        Parameters
        ----------
        path : str or path-like
            A name that ends in .safetensors or .npz. An existing file is replaced.
        """
        from bnorm.layers import saving  # here, so that `import bnorm` is faster

        saving.save(self, path)

    def to(self, device: str) -> Self:
        """Move parameters, their gradients and statistics to a device. Return the layer.

        Parameters stay the same objects, so an optimizer may keep them. A saved forward is dropped, as its x is not
        moved.

        Parameters
        ----------
        device : {"cpu", "cuda"}
            "cuda" is CuPy's current device.
        """
        kind = devices.arrays_on(self._who, device)
        if kind is not self._kind:
            arrays = {name: moved(a, kind) for name, a in self._memory().items()}
            self._place(arrays)
            self._kind, self._device, self._saved = kind, device, None
            self._settle()
        return self

    def backward(self, dy: "ArrayLike | tuple[ArrayLike, ArrayLike | None]", out: ndarray | None = None) -> ndarray:
        """Return the gradient of x, for the last forward, and add the gradients of parameters to their `grad`.

        There is one backward for each forward. If a layer is used several times before the first backward, use `vjp`.

        Parameters
        ----------
        dy : array_like, or a pair of them
            The gradient of y; (dy, dh) after a forward with a residual, which returned (y, h).
        out : ndarray, optional
            An array for dx: dy, the x of the forward, or an array that overlaps no other.

        Returns
        -------
        dx : ndarray

        Raises
        ------
        RuntimeError
            If there was no forward since the last backward, or it was inside `no_backward`.
        """
        saved = self._saved
        if saved is None:
            raise RuntimeError(
                f"{self._who}: backward: expected a forward before each backward, got none: each backward uses up the "
                "last forward, of any thread, and no_backward() keeps none; for several uses, or several threads, "
                "y, pull = layer.vjp(x) returns the backward of each use"
            )
        return self._pulled(self, dy, saved, out)

    def vjp(self, x: Any, *args: Any, **options: Any) -> tuple[ndarray, Pull]:
        """Return y and the backward of this forward: y, pull = layer.vjp(x), then dx = pull(dy), once.

        Use it if a layer is used several times in one step (a shared layer, a recurrent net). There may be any number
        of backwards, to be called in any order. The arguments are those of `layer(x)`, and training updates the running
        statistics in the same way; `layer.backward` still belongs to the last `layer(x)`.

        Returns
        -------
        y : ndarray
        pull : callable
            `pull(dy, out=None)` returns dx, and adds to the gradients of the parameters, as `backward` does.

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
        """Return copies of all arrays under PyTorch's names, on the device of the layer."""
        return state.StateDict((name, a.copy()) for name, a in self._state().items())

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> state.Incompatible:
        """Load a `state_dict()` of a layer, or of PyTorch's layer. After an error nothing is loaded.

        Parameters
        ----------
        state_dict : mapping of str to array or tensor
            Arrays of any device. The names gamma and beta are accepted for weight and bias.
        strict : bool, default True
            Whether missing and unexpected names are an error. A wrong shape always is. As in PyTorch, a state may lack
            num_batches_tracked.

        Returns
        -------
        Incompatible
            A named tuple of the `missing_keys` and `unexpected_keys`.
        """
        return state.load(self._who, "state_dict", {"": self}, state_dict, strict)

    def _state(self) -> dict[str, ndarray]:
        return {state.NAMES[name]: p.data for name, p in self.named_parameters()}

    def _loading(self, found: Mapping[str, ndarray], seen: ndarray | None) -> list[state.Change]:
        """Return the changes that load these arrays into the layer."""
        here = self._state()
        return [state.write(here[name], a) for name, a in found.items()]

    def _assign(self, name: str, value: Any) -> None:
        p = getattr(self, f"_{name}")
        if value is p:  # an in-place operator assigns the same object
            return
        if p is None:
            raise ValueError(f"{self._who}: {name}: expected no value without this parameter, got {value!r}")
        state.rewrite(p.data, checks.vector(self._who, name, value, p.shape, self._kind, "the layer"))

    def _pulled(self, holder: "Layer | Pull", dy: Any, saved: Saved, out: ndarray | None) -> ndarray:
        """Return dx for the forward that `holder` has saved, and add gradients; afterwards `holder` has no forward."""
        if OPEN:
            refuse_changed(self._who, saved)
        gamma, beta = self._gamma, self._beta
        dgammas = gamma._grad if gamma is not None and gamma._requires_grad else None  # to which gradients are added
        dbetas = beta._grad if beta is not None and beta._requires_grad else None
        wanted = (dgammas is not None or dbetas is not None) and (holder, dgammas, dbetas)
        given = () if out is None else (self._own or self._owned(),)
        if wanted and saved.x is not None and type(saved.x) is not self._kind:
            raise RuntimeError(f"{self._who}: pull: expected the layer on the device of its forward, got it on another")
        dx, dgamma, dbeta = saved.pull_back(self._who, dy, wanted, out, given)
        # No interrupt can come between these two lines, nor in the call: the backward is complete or has not happened.
        # Kernels that have added gradients themselves return none, and have dropped the forward in the same step.
        holder._saved = None
        if dgamma is not None or dbeta is not None:
            saved.kernels.add(dgammas, dgamma, dbetas, dbeta)
        return dx

    def _new(self, shape: tuple[int, ...], value: float) -> ndarray:
        """Return a new array for this layer, on its device."""
        new = np.empty(shape, self._dtype)
        new.fill(value)
        return moved(new, self._kind)  # type: ignore[no-any-return]

    def _taken(self, x: Any, integers: bool = False) -> ndarray:
        """Return x as an array that the kernels take, on this layer's device, or on any if the layer has no arrays."""
        elsewhere = not self._owned() and kind_of(x) is not None
        return checks.array(self._who, x, None if elsewhere else self._kind, "the layer", integers=integers)

    def _settle(self) -> None:
        """Clear all caches, after arrays were replaced."""
        self._constants: tuple[ndarray | None, ...] | None = None  # `_arrays`, if the kernels read them as they are
        self._narrow: tuple[ndarray | None, ...] | None = None  # `_arrays`, to be converted
        self._own: dict[str, ndarray] | None = None
        self._layout: view.Layout | None = None  # of the last x, for `again` to use for the next one

    def _vectors(self) -> tuple[ndarray | None, ...]:
        """Return `_arrays()` as kernels read them. `_constants or _vectors()` saves a call where that matters."""
        if self._dtype == FLOAT64 or self._device in self._SINGLE:
            self._constants = self._arrays()
            return self._constants
        return self._in_float64()

    def _in_float64(self) -> tuple[ndarray | None, ...]:
        """Return `_arrays()` as float64."""
        if self._narrow is None:
            self._narrow = self._arrays()
        if self._kind is ndarray:
            return in_float64(self._narrow)
        return tuple(a if a is None else a.astype(FLOAT64, copy=False) for a in self._narrow)

    def _owned(self) -> dict[str, ndarray]:
        """Return `_memory()`, cached. `_own or _owned()` saves a call where that matters."""
        if self._own is None:
            self._own = self._memory()
        return self._own

    def _arrays(self) -> tuple[ndarray | None, ...]:
        """Return gamma and beta; subclasses append more."""
        return tuple(p if p is None else p.data for p in (self._gamma, self._beta))

    def _memory(self) -> dict[str, ndarray]:
        """Return all arrays of this layer by name; `out` must not overlap them."""
        arrays = {name: p.data for name, p in self.named_parameters()}
        return arrays | {f"{name}.grad": p.grad for name, p in self.named_parameters()}

    def _place(self, arrays: Mapping[str, ndarray]) -> None:
        """Replace the arrays of this layer by these, under the names of `_memory`."""
        for name, p in self.named_parameters():
            p._data, p._grad = arrays[name], arrays[f"{name}.grad"]

    def __getstate__(self) -> tuple[Any, dict[str, Any]]:
        both: Any = super().__getstate__()
        own, slots = both  # the __dict__ of a subclass, and all slots
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
        """Return a copy with its own arrays, like a copy of an array: two layers that share a state would be a trap."""
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        shown = [self._who.removesuffix(")")]
        for name, argument in inspect.signature(type(self)).parameters.items():
            if argument.default is argument.empty or name in SYNONYMS:
                continue
            value = self._bias if name == "bias" else getattr(self, name, argument.default)
            if checks.differ(value, argument.default):
                shown.append(f"{name}={value.name if isinstance(value, np.dtype) else value!r}")
        return f"{', '.join(shown + self._switches())})"

    def _switches(self) -> list[str]:
        """Return settings for `repr` that have changed since construction: mode and requires_grad."""
        frozen = [f"{name}.requires_grad=False" for name, p in self.named_parameters() if not p.requires_grad]
        return frozen if self._training else ["training=False", *frozen]


def signature_of(name: str, *arguments: Any) -> str:
    """Return the name of a layer in messages."""
    return f"{name}({', '.join(map(repr, arguments))})"
