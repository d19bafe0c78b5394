# ruff: noqa: E501
"""Faults in layers and functions, to be planted by `mutations.py`; `__init__.py` explains the entries."""

FAULTS = {
    "Layers and their state": [
        (
            "an error in the middle of loading leaves half a state",
            "layers/state.py",
            "    if wrong:\n        raise ValueError(f\"{who}: {name}: expected {expects or _described(expected)}; got {'; '.join(wrong)}\")\n",
            "    if wrong and not found:\n        raise ValueError(f\"{who}: {name}: expected {expects or _described(expected)}; got {'; '.join(wrong)}\")\n",
            "tests/layers/test_state.py",
        ),
        (
            "a negative running variance is loaded",
            "layers/state.py",
            "    if last in NOT_NEGATIVE and (a < 0).any():\n",
            "    if last not in NOT_NEGATIVE and (a < 0).any():\n",
            "tests/layers/test_state.py tests/files/test_hostile_files.py",
        ),
        (
            "a state shares its arrays with the layer",
            "layers/base.py",
            "return state.StateDict((name, a.copy()) for name, a in self._state().items())",
            "return state.StateDict((name, a) for name, a in self._state().items())",
            "tests/layers/test_state.py",
        ),
        (
            "the forward is forgotten before the backward has succeeded",
            "layers/base.py",
            "        dx, dgamma, dbeta = saved.pull_back(self._who, dy, wanted, out, given)\n",
            "        holder._saved = None\n        dx, dgamma, dbeta = saved.pull_back(self._who, dy, wanted, out, given)\n",
            "tests/layers/test_layers.py tests/layers/test_vjp.py tests/layers/test_interrupts.py",
        ),
        (
            "gradients of parameters that need none are added",
            "layers/base.py",
            "dbetas = beta._grad if beta is not None and beta._requires_grad else None",
            "dbetas = beta._grad if beta is not None else None",
            "tests/layers/test_training.py tests/layers/test_layers.py",
        ),
        (
            "out may overlap the parameters",
            "layers/base.py",
            "        given = () if out is None else (self._own or self._owned(),)\n",
            "        given = ()\n",
            "tests/layers/test_errors.py",
        ),
        (
            "frozen statistics stay frozen after an error",
            "layers/tracking.py",
            "        try:\n            yield\n        finally:\n            self._blocks = [",
            "        yield\n        if True:\n            self._blocks = [",
            "tests/layers/test_pooled.py",
        ),
        (
            "inference without statistics goes on",
            "layers/tracking.py",
            "        return scale, beta - mean * scale\n",
            "        return scale, beta + mean * scale\n",
            "tests/interop/test_folding.py",
        ),
        (
            "threads take each other's forward",
            "layers/backward.py",
            "        if taker.thread == thread and (taker.layer is layer or taker.layer is None):\n",
            "        if taker.layer is layer or (taker.thread == thread and taker.layer is None):\n",
            "tests/layers/test_vjp.py",
        ),
        (
            "a changed x is not looked for",
            "layers/backward.py",
            "not in (None, _digest(x))\n",
            "not in (None, before)\n",
            "tests/layers/test_debug.py",
        ),
        (
            "the counts of a state are lost",
            "layers/tracking.py",
            "            arrays.seen = self._counts.copy()\n",
            "            pass\n",
            "tests/layers/test_state.py tests/layers/test_model.py",
        ),
    ],
    "Functions": [
        (
            "an x that out has overwritten is used in a backward",
            "passes.py",
            "        if x is None:\n            raise RuntimeError(",
            "        if x is None and layout is None:\n            raise RuntimeError(",
            "tests/functional/test_errors.py",
        ),
        (
            "the gradient of beta is that of gamma",
            "passes.py",
            "        return dx, dgamma if self.has_gamma else None, dbeta if self.has_beta else None\n\n\nclass RowSaved",
            "        return dx, dgamma if self.has_gamma else None, dgamma if self.has_beta else None\n\n\nclass RowSaved",
            "tests/functional/test_gradients.py",
        ),
    ],
}
