"""A NumPy net on two ranks, each with half of every batch, which learns exactly as on one rank with whole batches.

    pip install ".[mpi]"                                          # in a clone of the repository
    mpiexec -n 2 python -m mpi4py examples/mpi_sync.py            # some seconds; any number of ranks
    mpiexec -n 2 python -m mpi4py examples/mpi_sync.py --quick    # a third of the epochs

Every rank has the same net and a share of each batch. Three lines make the ranks learn as one:

    bn = bnorm.BatchNorm1d(128, comm=MPI.COMM_WORLD)   # statistics of the batch of all ranks, forward and backward
    dlogits / size of the whole batch                  # the loss is the mean over all ranks
    p.grad[...] = comm.allreduce(p.grad)               # each rank's share of the gradient, added up; gamma, beta too

The script trains three times: on all ranks in this way; on all ranks, but with the statistics of each rank's own share;
and on one rank alone. The first and the last have the same loss at every step, up to rounding.
"""

import argparse

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

import bnorm

COMM = MPI.COMM_WORLD
EPOCHS, BATCH, RATE, HIDDEN, CLASSES = 9, 96, 0.5, 128, 10


class Linear:
    """y = x W + b, with He's initialization."""

    def __init__(self, inputs, outputs, rng):
        self.weight = bnorm.Parameter(rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)))
        self.bias = bnorm.Parameter(np.zeros(outputs))

    def __call__(self, x):
        self.x = x
        return x @ self.weight + self.bias

    def backward(self, dy):
        self.weight.grad += self.x.T @ dy
        self.bias.grad += dy.sum(axis=0)
        return dy @ self.weight.T

    def parameters(self):
        return [self.weight, self.bias]


def net(pixels, comm):
    """The same on every rank."""
    rng = np.random.default_rng(0)
    return [
        Linear(pixels, HIDDEN, rng),
        bnorm.BatchNorm1d(HIDDEN, activation="relu", comm=comm),
        Linear(HIDDEN, HIDDEN, rng),
        bnorm.BatchNorm1d(HIDDEN, activation="relu", comm=comm),
        Linear(HIDDEN, CLASSES, rng),
    ]


def losses_and_gradient(logits, labels):
    """The loss of each image, and the gradient of their sum."""
    rows = np.arange(len(labels))
    logits = logits - logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    gradient = np.exp(log_p)
    gradient[rows, labels] -= 1
    return -log_p[rows, labels], gradient


def train(layers, images, labels, epochs, comm):
    """Plain gradient descent; returns the loss of each step. comm: the ranks that share each batch, or None."""
    rank, ranks = (0, 1) if comm is None else (comm.Get_rank(), comm.Get_size())
    rng, history = np.random.default_rng(1), []  # every rank draws the same batches
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            mine = np.array_split(batch, ranks)[rank]
            x = images[mine]
            for layer in layers:
                x = layer(x)
            losses, dy = losses_and_gradient(x, labels[mine])
            dy /= len(batch)
            for layer in reversed(layers):
                dy = layer.backward(dy)
            loss = losses.sum() / len(batch)
            history.append(loss if comm is None else comm.allreduce(loss))
            for p in (p for layer in layers for p in layer.parameters()):
                gradient = p.grad if comm is None else comm.allreduce(p.grad)
                p.data -= RATE * gradient
                p.zero_grad()
    return np.array(history)


def main():
    parser = argparse.ArgumentParser(description="Data-parallel training with synchronized batch norm.")
    parser.add_argument("--quick", action="store_true", help="a third of the epochs")
    epochs = EPOCHS // 3 if parser.parse_args().quick else EPOCHS
    images, labels = load_digits(return_X_y=True)
    images = (images - images.mean(axis=0)) / images.std()
    pixels = images.shape[1]

    together = train(net(pixels, COMM), images, labels, epochs, COMM)
    apart = train(net(pixels, None), images, labels, epochs, COMM)
    if COMM.Get_rank():
        return
    alone = train(net(pixels, None), images, labels, epochs, None)

    print(f"Handwritten digits, batches of {BATCH}; loss after each epoch\n")
    print(f"{'epoch':>5}{'one rank':>16}{f'{COMM.Get_size()} ranks, comm=':>20}{'without comm=':>20}")
    steps = len(alone) // epochs
    for epoch in range(1, epochs + 1):
        row = [losses[steps * epoch - 1] for losses in (alone, together, apart)]
        print(f"{epoch:5}{row[0]:16.12f}{row[1]:20.12f}{row[2]:20.12f}")
    print(f"\nLargest difference from one rank, comm=: {np.abs(together - alone).max():.1e}")
    print(f"Largest difference from one rank, without comm=: {np.abs(apart - alone).max():.1e}")


if __name__ == "__main__":
    with threadpool_limits(1):  # small matrices, and ranks that share a machine
        main()
