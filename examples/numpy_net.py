"""A classifier in plain NumPy, with and without batch norm, for several learning rates.

    python examples/numpy_net.py                         # some seconds; the loss curves go to numpy_net.png
    python examples/numpy_net.py --plot curves.png       # to another file
    python examples/numpy_net.py --quick                 # the highest learning rate alone, half as long

A net of two hidden layers learns the handwritten digits of scikit-learn by plain stochastic gradient descent. With and
without batch norm it starts from the same weights, those of He for ReLU, and sees the same batches. Up to a learning
rate of 1 both learn about equally well. At 3 the plain net diverges within a few steps, and the one with batch norm
still reaches its 98%. So batch norm allows a wider range of learning rates.

Lines to copy into a net of your own:

    bn = bnorm.BatchNorm1d(128, activation="relu")       # in place of a ReLU
    y = bn(x)                                            # forward, which updates the running statistics too
    dx = bn.backward(dy)                                 # adds to bn.gamma.grad and bn.beta.grad
    bn.parameters()                                      # for the optimizer: p.data -= learning_rate * p.grad
    bn.training = False                                  # before evaluation: use the running statistics
"""

import argparse
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
    raise SystemExit(f"numpy_net.py needs {error.name}: pip install matplotlib tqdm") from None

LEARNING_RATES = (0.1, 0.3, 1.0, 3.0)
EPOCHS = 30
BATCH = 128
SIZES = (64, 128, 128)  # pixels, and the two hidden layers
CLASSES = 10


class Linear:
    """y = x W + b, with He's initialization."""

    def __init__(self, inputs, outputs, rng, bias=True):
        self.weight = bnorm.Parameter(rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)))
        self.bias = bnorm.Parameter(np.zeros(outputs), requires_grad=bias)

    def __call__(self, x):
        self.x = x
        return x @ self.weight + self.bias

    def backward(self, dy):
        self.weight.grad += self.x.T @ dy
        if self.bias.requires_grad:
            self.bias.grad += dy.sum(axis=0)
        return dy @ self.weight.T

    def parameters(self):
        return [self.weight, self.bias]


class ReLU:
    """y = max(x, 0)."""

    def __call__(self, x):
        self.y = np.maximum(x, 0)
        return self.y

    def backward(self, dy):
        return dy * (self.y > 0)

    def parameters(self):
        return []


class Net:
    """Hidden layers with a ReLU, after batch norm if wanted, and a linear layer."""

    def __init__(self, batch_norm, seed):
        rng = np.random.default_rng(seed)
        self.layers = []
        for inputs, outputs in pairwise(SIZES):
            # Batch norm subtracts the mean, and so removes a bias; its beta is the bias.
            self.layers.append(Linear(inputs, outputs, rng, bias=not batch_norm))
            self.layers.append(bnorm.BatchNorm1d(outputs, activation="relu") if batch_norm else ReLU())
        self.layers.append(Linear(SIZES[-1], CLASSES, rng))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def backward(self, dy):
        for layer in reversed(self.layers):
            dy = layer.backward(dy)

    def parameters(self):
        return [p for layer in self.layers for p in layer.parameters()]

    def set_training(self, training):
        for layer in self.layers:
            layer.training = training  # the mode of batch norm; the others do not ask


def cross_entropy(logits, labels):
    """The mean loss of a batch, and its gradient with respect to the logits."""
    rows = np.arange(len(labels))
    logits = logits - logits.max(axis=1, keepdims=True)  # the same probabilities, and exp cannot overflow
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    dlogits = np.exp(log_p)
    dlogits[rows, labels] -= 1
    return -log_p[rows, labels].mean(), dlogits / len(labels)


def train(net, x, labels, learning_rate, epochs, seed, title):
    """Plain SGD, in place; the loss at each step. It ends early if the loss is not finite."""
    rng = np.random.default_rng(seed)
    parameters = net.parameters()
    losses = []
    net.set_training(True)
    with tqdm(range(epochs), desc=title, unit="epoch", leave=False) as bar:
        for _ in bar:
            order = rng.permutation(len(x))
            for start in range(0, len(x), BATCH):
                batch = order[start : start + BATCH]
                loss, dlogits = cross_entropy(net(x[batch]), labels[batch])
                losses.append(loss)
                if not np.isfinite(loss):
                    return losses
                for p in parameters:
                    p.zero_grad()
                net.backward(dlogits)
                for p in parameters:
                    p.data -= learning_rate * p.grad
            bar.set_postfix(loss=f"{loss:.3g}")
    return losses


def evaluate(net, x, labels):
    """Loss and accuracy in inference mode, which uses the running statistics and does not change them."""
    net.set_training(False)
    logits = net(x)
    return cross_entropy(logits, labels)[0], np.mean(logits.argmax(axis=1) == labels)


def digits(seed):
    """Images and labels for training and test, scaled by the training images alone."""
    x, labels = load_digits(return_X_y=True)
    x, x_test, labels, labels_test = train_test_split(x, labels, test_size=0.25, stratify=labels, random_state=seed)
    mean, std = x.mean(axis=0), x.std()  # one scale for all pixels: some of them are nearly always blank
    return (x - mean) / std, labels, (x_test - mean) / std, labels_test


def plot(path, curves):
    """The loss at each step as a PNG: one picture per learning rate, one line per net."""
    figure = Figure(figsize=(1 + 3.5 * len(curves), 3.5), layout="constrained")
    axes = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for ax, (rate, lines) in zip(axes, curves.items(), strict=True):
        for name, losses in lines.items():
            ax.semilogy(losses, label=name, linewidth=1)
        ax.set(title=f"learning rate {rate:g}", xlabel="step", ylim=(1e-4, 1e3))  # a loss that explodes leaves it
    axes[0].set_ylabel("training loss")
    axes[0].legend()
    figure.savefig(path, format="png", dpi=120)


def arguments():
    parser = argparse.ArgumentParser(description="Train a NumPy net with and without batch norm.")
    parser.add_argument("--plot", type=Path, default="numpy_net.png", metavar="PATH", help="PNG of the loss curves")
    parser.add_argument("--quick", action="store_true", help="the highest learning rate alone, half as many epochs")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order of the images")
    args = parser.parse_args()
    if not args.plot.parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent}")
    return args


@threadpool_limits.wrap(limits=1)  # matrices as small as these are slower on several
@np.errstate(over="ignore", invalid="ignore")  # a net that diverges is a result here
def main():
    args = arguments()
    rates, epochs = (LEARNING_RATES[-1:], EPOCHS // 2) if args.quick else (LEARNING_RATES, EPOCHS)
    x, labels, x_test, labels_test = digits(args.seed)

    curves, rows = {}, []
    for rate in rates:
        curves[rate], row = {}, f"{rate:<13g}"
        for name, batch_norm in (("plain", False), ("batch norm", True)):
            net = Net(batch_norm, args.seed)
            curves[rate][name] = train(net, x, labels, rate, epochs, args.seed, f"rate {rate:g}, {name}")
            loss, _ = evaluate(net, x, labels)
            _, accuracy = evaluate(net, x_test, labels_test)
            row += f"{loss:14.2g}{accuracy:16.1%}"
        rows.append(row)

    print(f"Handwritten digits: {len(x)} to train on, {epochs} times, and {len(x_test)} to test on.\n")
    print(f"{'':13}{'plain':>30}{'batch norm':>30}")
    print(f"{'learning rate':13}" + f"{'train loss':>14}{'test accuracy':>16}" * 2)
    print(*rows, sep="\n")
    plot(args.plot, curves)
    print(f"\nLoss curves: {args.plot}")


if __name__ == "__main__":
    main()
