"""Batch normalization with running statistics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy import ndarray
from numpy.typing import ArrayLike, DTypeLike

from bnorm import checks
from bnorm.checks import FLOATS
from bnorm.distributed.communicator import Communicator, Group, checked
from bnorm.distributed.sync import Shared
from bnorm.kernels import BACKENDS, view
from bnorm.kernels.activation import Name
from bnorm.kernels.cpu.entries import again
from bnorm.layers.backward import OPEN, drops, keep
from bnorm.layers.documents import normalizes, public
from bnorm.layers.shapes import wrong_shape
from bnorm.layers.tracking import Tracking
from bnorm.passes import batch_forward, known_forward

ON_SINGLE = ("raise", "running")
WEIGHT = (
    "How much each value counts in the statistics of a training batch, or a bool mask. The shape is that of x\n"
    "without the channel axis, or (N,). A value of weight 0 does not count, but y is computed for it. With ddof=1 a\n"
    "batch whose weights add up to 1 or less has no variance for the running statistics: `nonfinite` says what then."
)


class BatchNorm(Tracking):
    """The base class of batch norm for each number of dimensions."""

    __slots__ = ("_group", "_on_single", "_replaces")

    _replaces: bool  # inside pooled_stats: its argument `replace`

    _SINGLE = ("cuda",)

    _DOCUMENT = """
    y = (x - mean) / sqrt(var + eps) gamma + beta. In training, mean and var are those of the batch, and update the
    running statistics. In inference they are the running statistics, which the backward treats as constants.
    With ddof=1 it computes what PyTorch's layer of this name does.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        ddof: int = 0,
        axis: int = 1,
        activation: Name = None,
        negative_slope: float = 0.01,
        nonfinite: str = "skip",
        on_single: str = "raise",
        dtype: "DTypeLike | None" = "float64",
        device: str | None = "cpu",
        comm: "Communicator | None" = None,
    ) -> None:
        super().__init__(
            *(num_features, eps, momentum, affine, track_running_stats, bias, ddof, axis),
            *(activation, negative_slope, nonfinite, dtype, device),
        )
        self.on_single = on_single
        self._group = None if comm is None else Group(checked(self._who, comm))

    @property
    def comm(self) -> "Communicator | None":
        """The communicator of the ranks whose batches count as one, or None."""
        return None if self._group is None else self._group.comm

    @property
    def on_single(self) -> str:
        """How to treat a training batch of one value per channel: "raise", or use the "running" statistics."""
        return self._on_single

    @on_single.setter
    def on_single(self, value: str) -> None:
        on_single = checks.choice(self._who, "on_single", value, ON_SINGLE)
        if on_single == "running" and not self._track_running_stats:
            raise ValueError(f"{self._who}: on_single: expected 'raise' without running statistics, got 'running'")
        self._on_single: str = on_single

    @normalizes(weight=WEIGHT)
    def __call__(self, x: Any, weight: "ArrayLike | None" = None, out: ndarray | None = None) -> ndarray:
        """Normalize x. In training this updates the running statistics."""
        if self._group is None or not (self._training or not self._track_running_stats):
            return self._forward(x, weight, out, None)
        kernels = self._kernels_of_all(self._group)
        with kernels.turn("forward"):
            return self._forward(x, weight, out, kernels)

    def _forward(self, x: Any, weight: "ArrayLike | None", out: ndarray | None, kernels: Shared | None) -> ndarray:
        """Do `__call__`. kernels: None, or those for a batch that is spread over all ranks."""
        given = () if out is None else ({"x": x, "weight": weight}, self._own or self._owned())
        layout: Any = self._layout
        block = again(x, layout)  # in a loop every x is like the last one, and needs fewer checks
        if block is None:
            if type(x) is not self._kind or x.dtype not in FLOATS:
                x = self._taken(x, integers=True)
            shape = x.shape
            if len(shape) not in self._names or shape[self._axis] != self._num_features:
                raise wrong_shape(self._who, shape, self._num_features, self._names)
            block, layout = view.channels(x, self._axis, False)
            self._layout = layout if type(x) is ndarray else None
        who, act, eps, seen = self._who, self._act, self._eps, (block, layout)
        gamma, beta, mean, var = self._constants or self._vectors()
        known = mean, var
        moving, keeps = None, True
        if self._training or not self._track_running_stats:
            moving = self._moving
            rule = None if moving is None else moving.rule
            single = None if self._on_single == "raise" else known
            try:
                y, saved = batch_forward(who, x, seen, gamma, beta, eps, act, weight, out, given, rule, kernels, single)
            except checks.SingleValueError:
                raise self._single_value(x.shape, weight) from None
            except FloatingPointError as error:
                raise self._not_finite(error) from None
            if saved.frozen:
                moving = None
            elif saved.left and type(saved.left) is int:  # on a device it is known only after the update
                self._warn_once(saved.left)
        else:
            keeps = not OPEN or not drops(self)
            y, saved = known_forward(who, x, seen, gamma, beta, known, eps, act, weight, out, given, keeps)
        before = self._saved
        if OPEN and keeps:
            keep(self, saved)
        else:
            self._saved = saved
        if moving is not None:
            try:
                # This call and the lines above it are all that changes the layer. No signal is handled between them, as
                # Python handles signals only at calls.
                left = saved.kernels.settle(moving.rule, saved.stats, saved.count, y.size, saved.left)
            except RuntimeError:  # of a launch on a device, which would have computed what a backward needs
                self._saved = before
                raise
            if left:
                self._warn_once(left)
        return y

    def __getstate__(self) -> Any:
        """The state of a layer, outside any block."""
        own, slots = super().__getstate__()
        slots.pop("_replaces", None)
        return own, slots

    def backward(self, dy: "ArrayLike | tuple[ArrayLike, ArrayLike | None]", out: ndarray | None = None) -> ndarray:
        """Return the gradient of x, for the last forward, and add the gradients of parameters to their `grad`.

        There is one backward for each forward. If a layer is used several times before the first backward, use `vjp`.
        All ranks of comm must call it, and the parameters get the gradients of this rank's batch.

        Parameters
        ----------
        dy : array_like
            The gradient of y.
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
        if self._group is not None and self._saved is None and self._training:  # an error, on all ranks
            with self._kernels_of_all(self._group).turn("backward"):
                return super().backward(dy, out)
        return super().backward(dy, out)

    @contextmanager
    def pooled_stats(self, replace: bool = False) -> Iterator[None]:
        """Training batches inside this block are pooled, and count as one batch at its end.

        Every value weighs the same. After an exception the running statistics have not changed. Inside frozen_stats
        they do not change either.

        Parameters
        ----------
        replace : bool, default False
            Whether the pooled statistics replace the running statistics, instead of being averaged into them.
        """
        replace, running = checks.flag(self._who, "replace", replace), self._moving
        if running is not None and running is not self._running:
            raise RuntimeError(f"{self._who}: pooled_stats: expected one at a time, got one inside another")
        if running is None:
            yield
            return
        pool, self._replaces = running.pool(), replace
        with self._block(pool):
            yield
        try:
            if self._kind is ndarray and not self._warned:
                self._warn_once(running.copy().commit(pool, replace))
            skipped = running.commit(pool, replace)
        except FloatingPointError as error:
            raise self._not_finite(error) from None
        self._warn_once(skipped)

    @property
    def _of_weights(self) -> str:
        return " (with ddof=1 also if weights add up to 1 or less)" if self.ddof else ""

    def _kernels_of_all(self, group: Group) -> Shared:
        settings = {"eps": self._eps, "on_single": self._on_single, "tracking": self._moving is not None}
        settings |= {name: getattr(self._running, name) for name in ("momentum", "ddof", "nonfinite")}
        settings |= {"dtype": self._running.mean.dtype.name, "pooled_stats": None}
        if self._moving not in (None, self._running):
            settings["pooled_stats"] = f"batch {self._moving.batches + 1}, replace={self._replaces}"
        return Shared(group.comm, self._who, BACKENDS[self._kind], tuple(settings.items()))

    def _single_value(self, shape: tuple[int, ...], weight: "ArrayLike | None") -> checks.SingleValueError:
        ways = "normalize a larger batch"
        if self._track_running_stats:
            ways += ", or set on_single='running', which normalizes such a batch by the running statistics, or eval()"
        else:
            ways += ", or each sample by itself (LayerNorm)"
        return checks.SingleValueError(
            f"{self._who}: x: expected more than one value per channel{'' if self._group is None else ' of all ranks'} "
            f"for statistics, got shape {shape}"
            f"{'' if weight is None else ' with one weight above zero'}; {ways}"
        )


@public()
class BatchNorm1d(BatchNorm):
    """Batch normalization of (N, C) or (N, C, L): each channel over all other axes.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> bn = bnorm.BatchNorm1d(2)
    >>> x = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> bn(x).round(3)
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> dx = bn.backward(np.ones((2, 2)))
    >>> bn.beta.grad
    array([2., 2.])
    >>> bn.running_mean
    array([0.2, 2. ])
    >>> bn.eval()(x).shape
    (2, 2)
    """

    __slots__ = ()
    _POSITIONS = ("", "L")


@public()
class BatchNorm2d(BatchNorm):
    """Batch normalization of (N, C, H, W): each channel over all other axes.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> bn = bnorm.BatchNorm2d(3, activation="relu")
    >>> y = bn(np.random.default_rng(0).normal(size=(8, 3, 5, 5)))
    >>> dx = bn.backward(np.ones_like(y))
    >>> last = bnorm.BatchNorm2d(3, axis=-1)(np.zeros((8, 5, 5, 3)))  # channels-last
    """

    __slots__ = ()
    _POSITIONS = ("HW",)


@public()
class BatchNorm3d(BatchNorm):
    """Batch normalization of (N, C, D, H, W): each channel over all other axes.

    Examples
    --------
    >>> import numpy as np, bnorm
    >>> bn = bnorm.BatchNorm3d(3)
    >>> y = bn(np.random.default_rng(0).normal(size=(2, 3, 4, 5, 5)))
    """

    __slots__ = ()
    _POSITIONS = ("DHW",)
