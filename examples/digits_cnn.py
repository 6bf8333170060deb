"""A small CNN on real handwritten digits, the whole train step compiled.

python examples/digits_cnn.py [--quick]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tracejit as tj
from tracejit import nn
from tracejit.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.dropout = nn.Dropout(0.25)
        self.linear = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.linear(self.dropout(x.flatten(1)))


def digits(train: bool) -> tj.data.TensorDataset:
    images, labels = tj.data.digits(train)
    return tj.data.TensorDataset(tj.from_numpy(images[:, None].astype(np.float32) / 16), tj.from_numpy(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three epochs")
    parser.add_argument("--out", default="", help="write the trained model here, as a .tj file")
    options = parser.parse_args()

    tj.manual_seed(0)
    model = Net()
    optimizer = tj.optim.Adam(model.parameters(), lr=2e-3)
    loader = tj.data.DataLoader(digits(train=True), batch_size=64, shuffle=True, drop_last=True)

    @tj.compile
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    start = time.perf_counter()
    for epoch in range(3 if options.quick else 20):
        losses = [step(x, y).item() for x, y in loader]
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, {time.perf_counter() - start:.1f} s")

    model.eval()
    images, labels = digits(train=False).tensors
    with tj.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    print(f"test accuracy {accuracy:.4f}")
    assert accuracy > (0.85 if options.quick else 0.97)
    if options.out:
        tj.export.save(model, (images[:8],), options.out, dynamic={0: "n"})
        print(f"exported to {options.out}: {tj.export.load(options.out).signature}")


if __name__ == "__main__":
    main()
