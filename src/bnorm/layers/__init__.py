"""Normalization layers for nets of NumPy or CuPy arrays: forward, backward, parameters and running statistics.

bn = BatchNorm1d(64, activation="relu")
y = bn(x)                       # forward
dx = bn.backward(dy)            # adds to bn.gamma.grad and bn.beta.grad
for p in bn.parameters():
    p.data -= 0.1 * p.grad
bn.zero_grad()
bn.to("cuda")                   # from now on it takes and returns CuPy arrays
"""

from bnorm.devices import DeviceError
from bnorm.layers.backward import no_backward, set_debug
from bnorm.layers.base import Layer
from bnorm.layers.batch import BatchNorm1d, BatchNorm2d, BatchNorm3d
from bnorm.layers.instance import InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from bnorm.layers.nets import load_state_dict, state_dict
from bnorm.layers.parameters import Parameter
from bnorm.layers.rows import GroupNorm, LayerNorm, RMSNorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "DeviceError",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "Layer",
    "LayerNorm",
    "Parameter",
    "RMSNorm",
    "load_state_dict",
    "no_backward",
    "set_debug",
    "state_dict",
]
