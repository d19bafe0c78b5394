"""A layer in training against a plain model: forwards, backwards and their vjp in any order, with steps, modes, copies,
states, files and errors between them.

The model keeps what each forward has seen and computes its gradients by the textbook, in long double. A long run:
pytest --hypothesis-profile=long tests/layers/test_model_training.py
"""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

import bnorm
from restoring import Restored

C = 3
ROWS = st.integers(2, 6)
SEEDS = st.integers(0, 50)


def batch(n, seed):
    return np.random.default_rng([n, seed]).normal(3.0, 2.0, (n, C)) * [1.0, 10.0, 0.1]


class Forward(NamedTuple):
    """What a forward has seen."""

    x: np.ndarray
    mean: np.ndarray
    rstd: np.ndarray
    gamma: np.ndarray
    training: bool

    def gradients(self, dy):
        """dx, dgamma, dbeta."""
        xhat = (self.x - self.mean) * self.rstd
        dgamma, dbeta = (dy * xhat).sum(0), dy.sum(0)
        inner = dy - (dbeta + xhat * dgamma) / len(dy) if self.training else dy
        return self.gamma * self.rstd * inner, dgamma, dbeta


class Training(Restored):
    @initialize(momentum=st.sampled_from([None, 0.1, 0.5]))
    def begin(self, momentum):
        self.t = bnorm.BatchNorm1d(C, momentum=momentum)
        self.training = True
        self.gamma, self.beta = np.ones(C, np.longdouble), np.zeros(C, np.longdouble)
        self.grads = [np.zeros(C, np.longdouble), np.zeros(C, np.longdouble)]
        self.moves = [True, True]
        self.last, self.pulls, self.saved = None, [], None

    def seen(self, x):
        """What a forward of x sees, and what it returns."""
        wide = x.astype(np.longdouble)
        mean, var = (wide.mean(0), wide.var(0)) if self.training else (self.t.running_mean.copy(), self.t.running_var)
        of = Forward(wide, mean, 1 / np.sqrt(var + np.longdouble(self.t.eps)), self.gamma.copy(), self.training)
        return of, (wide - mean) * of.rstd * self.gamma + self.beta

    def pulled(self, pull, of, seed):
        dy = np.random.default_rng(seed).normal(size=of.x.shape)
        dx, *grads = of.gradients(dy)
        np.testing.assert_allclose(pull(dy).astype(float), dx.astype(float), rtol=1e-9, atol=1e-9 * np.abs(dx).max())
        for i, grad in enumerate(grads):
            if self.moves[i]:
                self.grads[i] = self.grads[i] + grad

    @rule(n=ROWS, seed=SEEDS)
    def forward(self, n, seed):
        x = batch(n, seed)
        self.last, want = self.seen(x)
        np.testing.assert_allclose(self.t(x), want.astype(float), rtol=1e-9, atol=1e-10)

    @rule(seed=SEEDS)
    def backward(self, seed):
        if self.last is None:
            with pytest.raises(RuntimeError, match="forward"):
                self.t.backward(batch(2, seed))
            return
        of, self.last = self.last, None
        self.pulled(self.t.backward, of, seed)

    @rule(n=ROWS, seed=SEEDS)
    def vjp(self, n, seed):
        """It leaves the forward of the layer as it is."""
        x = batch(n, seed)
        of, want = self.seen(x)
        y, pull = self.t.vjp(x)
        np.testing.assert_allclose(y, want.astype(float), rtol=1e-9, atol=1e-10)
        self.pulls.append((pull, of))

    @precondition(lambda self: self.pulls)
    @rule(data=st.data(), seed=SEEDS)
    def pull(self, data, seed):
        """Any of those that are open, once."""
        pull, of = self.pulls.pop(data.draw(st.integers(0, len(self.pulls) - 1)))
        self.pulled(pull, of, seed)
        with pytest.raises(RuntimeError, match="vjp"):
            pull(batch(len(of.x), seed))

    @rule(n=ROWS, seed=SEEDS)
    def forward_that_keeps_nothing(self, n, seed):
        with bnorm.no_backward():
            self.t(batch(n, seed))
        self.last = None

    @rule(training=st.booleans())
    def mode(self, training):
        self.t.train(training)
        self.training = training

    @rule()
    def step(self):
        for parameter, values, grad in zip(self.t.parameters(), (self.gamma, self.beta), self.grads, strict=True):
            parameter.data -= 0.125 * np.tanh(parameter.grad)
            values -= 0.125 * np.tanh(grad)

    @rule()
    def zero_grad(self):
        self.t.zero_grad()
        self.grads = [0 * grad for grad in self.grads]

    @rule(which=st.integers(0, 1), moves=st.booleans())
    def freeze(self, which, moves):
        self.t.parameters()[which].requires_grad = moves
        self.moves[which] = moves

    @precondition(lambda self: self.last is not None)
    @rule(seed=SEEDS)
    def wrong_backward(self, seed):
        """The forward is still there."""
        for bad in ({"dy": np.ones((len(self.last.x) + 1, C))}, {"dy": self.last.x.astype(float), "out": np.ones(C)}):
            with pytest.raises(ValueError, match="shape"):
                self.t.backward(**bad)
        self.backward(seed)

    @rule(n=ROWS, seed=SEEDS, kind=st.sampled_from(["channels", "one row", "out", "state"]))
    def wrong(self, n, seed, kind):
        """Nothing has changed, and the forward is still there."""
        x = batch(n, seed)
        if kind == "channels":
            call = lambda: self.t(x[:, 1:])  # noqa: E731
        elif kind == "one row":
            call = lambda: self.t.train()(x[:1])  # noqa: E731
        elif kind == "out":
            call = lambda: self.t(x, out=np.empty((n, C + 1)))  # noqa: E731
        else:
            call = lambda: self.t.load_state_dict({"weight": np.ones(C), "bias": np.ones(C + 1)})  # noqa: E731
        with pytest.raises((ValueError, KeyError), match=r"shape|value|state_dict"):
            call()
        self.t.train(self.training)

    def disturb(self, original):
        """The copy has no forward, and parameters of its own. What was open belongs to the original."""
        self.last, self.pulls = None, []
        original(batch(3, 7))
        original.backward(batch(3, 8))
        for parameter in original.parameters():
            parameter.data += 5.0

    def store(self, suffix):
        """A file has the mode and which parameters are frozen, and no gradients."""
        super().store(suffix)
        self.last, self.pulls, self.grads = None, [], [0 * grad for grad in self.grads]

    store = rule(suffix=st.sampled_from([".npz", ".safetensors"]))(store)

    @rule()
    def remember(self):
        self.saved = self.t.state_dict().copy(), self.gamma.copy(), self.beta.copy()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self):
        self.t.load_state_dict(self.saved[0])
        self.gamma, self.beta = self.saved[1].copy(), self.saved[2].copy()

    @invariant()
    def agrees(self):
        for parameter, values, grad in zip(self.t.parameters(), (self.gamma, self.beta), self.grads, strict=True):
            np.testing.assert_allclose(parameter.data, values.astype(float), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(parameter.grad, grad.astype(float), rtol=1e-8, atol=1e-8)
        assert self.t.training == self.training


TestTraining = Training.TestCase
TestTraining.settings = settings(
    max_examples=max(3, settings.default.max_examples // 2), stateful_step_count=30, deadline=None
)
