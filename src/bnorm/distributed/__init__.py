"""Statistics over several processes: ranks of a communicator, and blocks of Dask collections."""

from bnorm.distributed.communicator import Communicator
from bnorm.distributed.merging import merge_all

__all__ = ["Communicator", "merge_all"]
