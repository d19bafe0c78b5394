"""Statistics beyond one process: what ranks share, and blocks of Dask collections."""

from bnorm.distributed.communicator import Communicator
from bnorm.distributed.merging import merge_all

__all__ = ["Communicator", "merge_all"]
