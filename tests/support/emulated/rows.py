"""What the tests of CUDA's row kernels run over."""

from itertools import product

from bnorm.kernels import MEAN_SQUARE, VARIANCE
from bnorm.kernels.activation import IDENTITY, RELU, leaky
from bnorm.kernels.gpu import plans

SHAPES = [  # (N, G, K, L)
    (5, 1, 7, 1),  # layer norm, no vector divides a row
    (30, 1, 700, 1),  # a warp holds a row
    (20, 1, 768, 1),
    (3, 1, 2049, 1),  # a block holds a row, value by value
    (5, 1, 5000, 1),  # the same by vectors, eight of a thread
    (2, 1, 16400, 1),  # too long to be held, and more gamma than is kept
    (4, 1, 1, 1),  # one feature
    (300, 1, 36, 1),  # many short rows, several to a warp
    (2500, 1, 64, 1),  # so many that sums over them are flushed
    (17, 3, 5, 1),  # group norm of (N, C)
    (3, 4, 2, 49),  # group norm of 7x7 images
    (2, 2, 2, 1100),  # long runs
    (2, 5, 1, 1025),  # instance norm
    (130, 6, 1, 16),
    (2, 1, 3, 64),  # one group: all of a sample
    (2, 2, 3, 3000),  # so long that it is read again, with channels that begin and end within a tile
    (3, 2, 1, 2101),  # the same of one channel
    (7, 2, 40, 30),  # threads that share a channel
    (4, 1, 300, 8),  # and channels that share a thread
    (0, 1, 8, 1),
    (3, 1, 0, 1),
    (3, 2, 2, 0),
    (3, 0, 0, 5),
]
RUNS = [(shape, "float32") for shape in SHAPES] + [
    (shape, t) for shape in SHAPES[1:10:2] for t in ("float16", "float64")
]
VARIANTS = [(True, VARIANCE, IDENTITY), (False, VARIANCE, RELU), (True, MEAN_SQUARE, leaky(0.2))]  # affine, rule, act
EVERY = [(*run, *variant) for run, variant in product(RUNS, VARIANTS)]
# The emulator's: each shape has one of the variants and each type meets all of them, as the instances of rows take the
# compiler longest; one shape, whose sums have kernels of their own, has all. Every two parameters of an instance meet.
DRAWN = [
    run
    for i, run in enumerate(EVERY)
    if (i // 3 + (run[1] == "float32") * 2) % 3 == i % 3 or run[:2] == ((2, 1, 16400, 1), "float32")
]
LARGE = plans.Limits(processors=3)  # whose shared memory holds the sums of long rows, where rows share columns
