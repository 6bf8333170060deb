"""Writes src/tracejit/data/digits.npz from scikit-learn's copy of the UCI digits. Run once; the file is committed.

    pip install scikit-learn && python benchmarks/make_digits.py

The archive holds `images` u8[1797, 8, 8] (values 0 to 16) and `labels` u8[1797], shuffled once: the source is ordered
by writer and, within a writer, by digit, so that a split of it by position would be lopsided. The first 1437 are for
training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "src" / "tracejit" / "data" / "digits.npz"


def main() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    assert np.array_equal(images, digits.images), "pixel values are integers from 0 to 16"
    order = np.random.default_rng(0).permutation(len(images))
    np.savez_compressed(TARGET, images=images[order], labels=labels[order])
    print(f"{TARGET}: {len(images)} images, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
