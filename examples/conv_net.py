"""A small convolutional net in plain NumPy on handwritten digits, with and without batch norm.

    python examples/conv_net.py                     # some seconds; the loss curves go to conv_net.png
    python examples/conv_net.py --plot curves.png   # to another file
    python examples/conv_net.py --quick             # fewer epochs

The net has two convolutions, each with batch norm and a ReLU in one pass, and a linear layer on top. The same net
without batch norm starts from the same weights and sees the same batches. At the learning rate used here, batch norm
brings the loss down faster. At the end the trained net is saved with `bnorm.state_dict`, and a new net that loads it
gives the same predictions.

Lines to copy into a net of your own:

    bn = bnorm.BatchNorm2d(16, activation="relu")        # (N, C, H, W), in place of a ReLU
    y = bn(x); dx = bn.backward(dy)                      # adds to bn.gamma.grad and bn.beta.grad
    with bnorm.no_backward(): ...                        # evaluation keeps no images for a backward
    state = bnorm.state_dict({"conv1": weight, "bn1": bn})   # the whole net, layers and parameters
    bnorm.load_state_dict({"conv1": weight, "bn1": bn}, state)
"""

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import bnorm

try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise SystemExit(f"conv_net.py needs {error.name}: pip install matplotlib tqdm") from None

EPOCHS = 9
BATCH = 64
LEARNING_RATE = 0.5
CHANNELS = (1, 8, 16)
CLASSES = 10
SIZE = 8  # pixels along an edge


class Conv:
    """A 3x3 convolution with zero padding, as one matrix product over the neighborhood of every pixel."""

    def __init__(self, inputs, outputs, rng, bias):
        self.weight = bnorm.Parameter(rng.normal(0, np.sqrt(2 / (9 * inputs)), (9 * inputs, outputs)))  # He's
        self.bias = bnorm.Parameter(np.zeros(outputs)) if bias else None

    def __call__(self, x):
        n, channels, height, width = x.shape
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # (N, C, H, W, 3, 3)
        self.columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, channels * 9)
        y = self.columns @ self.weight
        if self.bias is not None:
            y += self.bias
        return y.reshape(n, height, width, -1).transpose(0, 3, 1, 2)

    def backward(self, dy):
        n, outputs, height, width = dy.shape
        flat = dy.transpose(0, 2, 3, 1).reshape(-1, outputs)
        self.weight.grad += self.columns.T @ flat
        if self.bias is not None:
            self.bias.grad += flat.sum(axis=0)
        windows = (flat @ self.weight.data.T).reshape(n, height, width, -1, 3, 3)
        padded = np.zeros((n, windows.shape[3], height + 2, width + 2))
        for i in range(3):
            for j in range(3):
                padded[:, :, i : i + height, j : j + width] += windows[..., i, j].transpose(0, 3, 1, 2)
        return padded[:, :, 1:-1, 1:-1]


class ReLU:
    """y = max(x, 0)."""

    def __call__(self, x):
        self.y = np.maximum(x, 0)
        return self.y

    def backward(self, dy):
        return dy * (self.y > 0)


class Pool:
    """The mean of each 2x2 block of pixels."""

    def __call__(self, x):
        n, channels, height, width = x.shape
        return x.reshape(n, channels, height // 2, 2, width // 2, 2).mean(axis=(3, 5))

    def backward(self, dy):
        return dy.repeat(2, axis=2).repeat(2, axis=3) / 4


class Linear:
    """y = x W + b, with one row of x for each image."""

    def __init__(self, inputs, outputs, rng):
        self.weight = bnorm.Parameter(rng.normal(0, np.sqrt(1 / inputs), (inputs, outputs)))
        self.bias = bnorm.Parameter(np.zeros(outputs))

    def __call__(self, x):
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.weight + self.bias

    def backward(self, dy):
        self.weight.grad += self.x.T @ dy
        self.bias.grad += dy.sum(axis=0)
        return (dy @ self.weight.data.T).reshape(self.shape)


class Net:
    """Convolution, batch norm with ReLU, and pooling, twice; then a linear layer."""

    def __init__(self, batch_norm, seed):
        rng = np.random.default_rng(seed)
        self.layers = {}
        for i, (inputs, outputs) in enumerate(pairwise(CHANNELS), start=1):
            # Batch norm subtracts the mean, and so removes a bias; its beta is the bias.
            self.layers[f"conv{i}"] = Conv(inputs, outputs, rng, bias=not batch_norm)
            self.layers[f"bn{i}"] = bnorm.BatchNorm2d(outputs, activation="relu") if batch_norm else ReLU()
            self.layers[f"pool{i}"] = Pool()
        self.layers["out"] = Linear(CHANNELS[-1] * (SIZE // 4) ** 2, CLASSES, rng)

    def __call__(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x

    def backward(self, dy):
        for layer in reversed(self.layers.values()):
            dy = layer.backward(dy)

    def named(self):
        """The argument of `bnorm.state_dict`: layers of the package and parameters of other layers, by name."""
        found = {}
        for name, layer in self.layers.items():
            if isinstance(layer, bnorm.BatchNorm2d):
                found[name] = layer
            elif isinstance(layer, Conv | Linear):
                found |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
        return {name: item for name, item in found.items() if item is not None}

    def parameters(self):
        for item in self.named().values():
            yield from [item] if isinstance(item, bnorm.Parameter) else item.parameters()

    def set_training(self, training):
        for layer in self.layers.values():
            if isinstance(layer, bnorm.BatchNorm2d):
                layer.training = training


def cross_entropy(logits, labels):
    """The mean loss of a batch, and its gradient with respect to the logits."""
    rows = np.arange(len(labels))
    logits = logits - logits.max(axis=1, keepdims=True)  # the same probabilities, and exp cannot overflow
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    dlogits = np.exp(log_p)
    dlogits[rows, labels] -= 1
    return -log_p[rows, labels].mean(), dlogits / len(labels)


def train(net, x, labels, epochs, seed, title):
    """Plain stochastic gradient descent, in place; the loss at each step."""
    rng = np.random.default_rng(seed)
    parameters, losses = list(net.parameters()), []
    net.set_training(True)
    with tqdm(range(epochs), desc=title, unit="epoch", leave=False) as bar:
        for _ in bar:
            order = rng.permutation(len(x))
            for start in range(0, len(x) - BATCH + 1, BATCH):  # the few images left over would be a step of chance
                batch = order[start : start + BATCH]
                loss, dlogits = cross_entropy(net(x[batch]), labels[batch])
                losses.append(loss)
                for p in parameters:
                    p.zero_grad()
                net.backward(dlogits)
                for p in parameters:
                    p.data -= LEARNING_RATE * p.grad
            bar.set_postfix(loss=f"{loss:.3g}")
    return losses


def predictions(net, x):
    """The digits that a net predicts, each image by itself; nothing is kept for a backward."""
    net.set_training(False)
    with bnorm.no_backward():
        return net(x).argmax(axis=1)


def save(net, path):
    """Save the whole net in one NumPy file."""
    np.savez(path, **bnorm.state_dict(net.named()))


def load(net, path):
    """Load a file into a net of the same structure. An error loads nothing."""
    with np.load(path) as state:
        bnorm.load_state_dict(net.named(), dict(state))


def digits(seed):
    """Images (N, 1, 8, 8) and labels to train on and to test on, with pixels from 0 to 1."""
    x, labels = load_digits(return_X_y=True)
    x = x.reshape(-1, 1, SIZE, SIZE) / 16
    x, x_test, labels, labels_test = train_test_split(x, labels, test_size=0.25, stratify=labels, random_state=seed)
    return x, labels, x_test, labels_test


def plot(path, curves):
    """The loss of both nets at each step, as a PNG; thick lines are averages over ten steps."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for name, losses in curves.items():
        (line,) = ax.semilogy(losses, linewidth=0.6, alpha=0.35)
        window = min(10, len(losses))
        smooth = np.convolve(losses, np.full(window, 1 / window), "valid")
        ax.semilogy(np.arange(window - 1, len(losses)), smooth, color=line.get_color(), linewidth=2, label=name)
    ax.set(title=f"Digits, learning rate {LEARNING_RATE:g}", xlabel="step", ylabel="training loss")
    ax.grid(alpha=0.3)
    ax.legend()
    figure.savefig(path, format="png", dpi=120)


def arguments():
    parser = argparse.ArgumentParser(description="Train a convolutional NumPy net with and without batch norm.")
    parser.add_argument("--plot", type=Path, default="conv_net.png", metavar="PATH", help="PNG of the loss curves")
    parser.add_argument("--quick", action="store_true", help="a third of the epochs")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order of the images")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    return args


@threadpool_limits.wrap(limits=1)  # matrices as small as these are slower on several
def main():
    args = arguments()
    epochs = EPOCHS // 3 if args.quick else EPOCHS
    x, labels, x_test, labels_test = digits(args.seed)
    print(f"Handwritten digits: {len(x)} to train on, {epochs} times, and {len(x_test)} to test on.\n")
    print(f"{'':13}{'first loss':>12}{'last loss':>12}{'test accuracy':>16}")
    curves = {}
    for name, batch_norm in (("plain", False), ("batch norm", True)):
        net = Net(batch_norm, args.seed)
        losses = curves[name] = train(net, x, labels, epochs, args.seed, name)
        seen = predictions(net, x_test)
        print(f"{name:13}{losses[0]:12.2g}{np.mean(losses[-10:]):12.2g}{np.mean(seen == labels_test):16.1%}")

    with tempfile.TemporaryDirectory() as folder:
        save(net, Path(folder) / "net.npz")
        again = Net(True, args.seed + 1)
        load(again, Path(folder) / "net.npz")
    same = np.array_equal(predictions(again, x_test), seen)
    print(f"\nSaved and loaded, the net with batch norm gives {'the same' if same else 'OTHER'} predictions.")
    plot(args.plot, curves)
    print(f"Loss curves: {args.plot}")


if __name__ == "__main__":
    main()
