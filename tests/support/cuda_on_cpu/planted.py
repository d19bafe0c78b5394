"""Runs the kernels of planted.cu and prints what was seen: `planted.py SANITIZE BUG...`, one line of JSON for each.

A process of its own, since an AddressSanitizer has to be there from the start, and ends it when it finds something.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda_on_cpu.emulator import ORDERS, Emulator, EmulatorError

SOURCE = Path(__file__).with_name("planted.cu").read_text(encoding="utf-8")
TOTAL = (
    "NONE NO_BARRIER NO_SECOND_BARRIER EARLY_RETURN OTHER_BARRIER HALF_WARP STRANGER WRONG_WIDTH READ_PAST WRITE_PAST "
    "SHARED_PAST DYNAMIC_PAST SAME_PART NO_FENCE TICKET_FIRST OVERFLOW"
).split()
SHARES = ("NONE", "WRONG_COUNT")
BUGS = (*TOTAL, "WRONG_COUNT", "MISALIGNED")
NAMES = [*(f"total<float, {bug}>" for bug in TOTAL), *(f"shares<float, {bug}>" for bug in SHARES)]
SIZES = np.dtype({"names": ["n", "parts"], "formats": ["i8", "i4"], "offsets": [0, 8], "itemsize": 16})
BLOCKS, VALUES = 3, 4003


LABEL = "planted.cu"


def emulator(sanitize: str | None) -> Emulator:
    return Emulator(SOURCE, NAMES, sanitize, LABEL)


def run_total(emulator: Emulator, bug: str, order: int) -> str:
    """What an array of small whole numbers gives, whose sums are exact in any order: "right" or "wrong"."""
    rng = np.random.default_rng(0)
    x = emulator.copy(rng.integers(-9, 10, VALUES).astype("f4"), offset=bug == "MISALIGNED")
    parts, out, ticket = emulator.empty((2, BLOCKS), "f4"), emulator.empty(2, "f4"), emulator.copy(np.zeros(1, "u4"))
    name = f"total<float, {'NONE' if bug == 'MISALIGNED' else bug}>"
    args = (x, parts, out, ticket, np.array((VALUES, BLOCKS), SIZES)[()])
    for _ in range(2):  # the ticket returns to zero by itself
        parts[...] = out[...] = np.nan
        emulator.launch(name, (BLOCKS,), (256,), 256 * 4, args, order)
        if not np.array_equal(out, [x.sum()] * 2):
            return "wrong"
    return "right"


def run_shares(emulator: Emulator, bug: str, order: int) -> str:
    parts, y, arrived = emulator.empty(BLOCKS, "f4"), emulator.empty(BLOCKS, "f4"), emulator.copy(np.zeros(1, "u4"))
    sums = np.array([sum(range(g, g + 32)) for g in range(BLOCKS)], "f4")
    for _ in range(2):
        emulator.launch(f"shares<float, {bug}>", (BLOCKS,), (32,), 0, (parts, y, arrived), order)
        if not np.array_equal(y, 256 * sums / sums.sum()):
            return "wrong"
    return "right"


def seen(emulator: Emulator, bug: str) -> list[str]:
    """For each order "right", "wrong", or the error."""
    found = []
    for order in ORDERS:
        for run in (run_total,) * (bug != "WRONG_COUNT") + (run_shares,) * (bug in SHARES):
            try:
                found.append(run(emulator, bug, order))
            except EmulatorError as error:
                found.append(str(error))
    return found


def main(sanitize: str, *bugs: str) -> None:
    loaded = emulator(None if sanitize == "None" else sanitize)
    for bug in bugs:
        print(json.dumps({bug: seen(loaded, bug)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
