"""Mean and deviation of all pixels of a folder of images, in one pass, with several threads.

    python examples/image_statistics.py            # images that it makes
    python examples/image_statistics.py FOLDER     # yours, and those in all folders below; it needs Pillow and tqdm

Nets want images whose channels have mean 0 and deviation 1. `bnorm.dataset_moments` finds the mean and deviation of all
pixels in the memory of a few images. A common shortcut is wrong, and this program shows by how much: the mean of the
deviations of single images, from which the famous constants of ImageNet come, ignores how much images differ from each
other.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import bnorm


def make_images(folder: Path, n: int = 60) -> None:
    """Images of many sizes, some dark and some bright."""
    rng = np.random.default_rng(0)
    for i in range(n):
        height, width = rng.integers(40, 120, 2)
        light = rng.uniform(20, 230, 3)
        pixels = light + rng.standard_normal((height, width, 3)) * 15
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:03}.png")


def decoded(path: Path) -> np.ndarray:
    """The pixels of an image, (height, width, 3), uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of images, with all folders below")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        if options.folder is None:
            make_images(folder)
        paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in {".png", ".jpg", ".jpeg", ".webp"})

        # A function for each image: a worker calls it, and Pillow decodes without Python's lock.
        m = bnorm.dataset_moments(
            [lambda path=path: decoded(path) for path in paths],
            axis=2,
            workers=options.workers,
            minmax=True,
            progress=True,
        ).scaled(1 / 255)

        singles = [bnorm.functional.moments(decoded(path), axis=2, scale=1 / 255) for path in paths]
        mean_of_deviations = np.mean([one.std() for one in singles], axis=0)
        if options.folder is None:  # few enough for the memory
            pixels = np.concatenate([decoded(path).reshape(-1, 3) for path in paths]) / 255
            print("mean, all pixels at once", pixels.mean(axis=0).round(4))
            print("deviation, at once", pixels.std(axis=0).round(4))

    print(f"{len(paths)} images, {m.count[0]:,.0f} pixels")
    print("mean               ", m.mean.round(4))
    print("deviation          ", m.std().round(4))
    print("least, greatest    ", m.min.round(4), m.max.round(4))
    print("mean of deviations ", mean_of_deviations.round(4), "   which is too small: it is that of one image")
    print(f"Normalized by it, the data set has a deviation of {(m.std() / mean_of_deviations).round(2)} instead of 1.")


if __name__ == "__main__":
    main()
