"""What a state file that `bnorm.load` refuses must lead to."""

import time
import tracemalloc

import pytest

import bnorm


def refused(path, match="expected"):
    """It is refused at once, in memory of the size of the file, and says which file."""
    size = path.stat().st_size
    tracemalloc.start()
    start = time.process_time()  # not of the clock: another program may have the processor meanwhile
    with pytest.raises(ValueError, match=match) as caught:
        bnorm.load(path)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"bnorm.load: {path}: expected ")
    assert seconds < 5
    assert peak < 20 * size + (4 << 20), peak
