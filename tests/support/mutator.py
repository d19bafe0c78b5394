"""Hostile variants of a file: damaged in the ways that transfers, disks, other programs and attackers damage files."""

from collections.abc import Iterator
from random import Random

ODD = [0, 1, 0x7F, 0x80, 0xFF, *b'",\n\r\t;{}[]']
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def mutated(whole: bytes, rng: Random) -> bytes:
    """Return a variant with one to four faults, whose kinds and places are random."""
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not data:
            break
        at, size = rng.randrange(len(data)), rng.choice([1, 1, 4, 8, 64, 512])
        match rng.randrange(9):
            case 0:  # one bit
                data[at] ^= 1 << rng.randrange(8)
            case 1:  # a byte that means something
                data[at] = rng.choice(ODD)
            case 2:  # bytes of anything
                data[at : at + size] = rng.randbytes(len(data[at : at + size]))
            case 3:  # the end is missing
                del data[at:]
            case 4:  # a piece is missing
                del data[at : at + size]
            case 5:  # a piece is there twice
                data[at:at] = data[at : at + size]
            case 6:  # a page of zeros
                data[at : at + size] = bytes(len(data[at : at + size]))
            case 7:  # a size or an offset that leads elsewhere
                number = rng.choice(NUMBERS).to_bytes(8, "little")[: rng.choice([4, 8])]
                data[at : at + len(number)] = number
            case 8:  # a piece from another place
                other = rng.randrange(len(data))
                data[at : at + size] = data[other : other + size]
    return bytes(data)


def variants(whole: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield `count` variants, the same for the same seed."""
    rng = Random(seed)
    for _ in range(count):
        yield mutated(whole, rng)
