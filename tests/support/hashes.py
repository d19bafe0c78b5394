"""The SHA-256 of what functions and layers return over all CASES, to compare one commit with another.

    python hashes.py > before.json      on one commit
    python hashes.py before.json        on the other: prints which digests differ, and a digest of all of them

Only public functions are used, and only those that both commits have.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np

import bnorm
import bnorm.functional as F
from cases import CASES, DTYPES

ACTIVATIONS = (None, "relu")


def digest(arrays):
    sha = sha256()
    for a in arrays:
        if a is not None:
            sha.update(f"{a.shape}{a.dtype}".encode() + np.ascontiguousarray(a).tobytes())
    return sha.hexdigest()


def results(function, x, dy, **options):
    """Return the digest of y, dx, dgamma, dbeta, or the message if the function raises."""
    try:
        y, saved = function(x, **options)
        return digest([y, *F.backward(dy, saved)])
    except ValueError as error:
        return str(error)


def of_functions(case, dtype):
    x, rng = case.array(dtype), np.random.default_rng(1)
    dy = rng.standard_normal(x.shape).astype(x.dtype.newbyteorder("="))
    gamma, beta, mean = rng.standard_normal((3, case.num_channels))
    for activation in ACTIVATIONS:
        common = {"gamma": gamma, "beta": beta, "axis": case.axis, "activation": activation}
        yield f"batch_norm {activation}", results(F.batch_norm, x, dy, **common)
        yield f"batch_norm plain {activation}", results(F.batch_norm, x, dy, axis=case.axis, activation=activation)
        yield f"batch_norm weighted {activation}", results(F.batch_norm, x, dy, **common, weight=case.weight())
        yield f"batch_norm given {activation}", results(F.batch_norm, x, dy, **common, mean=mean, var=beta**2)
        if x.ndim > 1:
            yield f"instance_norm {activation}", results(F.instance_norm, x, dy, **common)
            yield f"group_norm {activation}", results(F.group_norm, x, dy, num_groups=1, **common)
        shape = x.shape[-1:]
        scale, shift = rng.standard_normal((2, *shape))
        rows = {"gamma": scale, "normalized_shape": shape, "activation": activation}
        yield f"layer_norm {activation}", results(F.layer_norm, x, dy, **rows, beta=shift)
        yield (
            f"layer_norm plain {activation}",
            results(F.layer_norm, x, dy, normalized_shape=shape, activation=activation),
        )
        yield f"rms_norm {activation}", results(F.rms_norm, x, dy, **rows)
    holes = np.where(rng.random(x.shape) < 0.2, np.nan, x)
    for name, options in {"": {}, "weighted": {"weight": case.weight()}, "skipna": {"skipna": True}}.items():
        m = F.moments(holes if name == "skipna" else x, axis=case.axis, **options)
        yield f"moments {name}", digest([m._parts])


def of_layers(case, dtype):
    x, rng = case.array(dtype), np.random.default_rng(2)
    if case.axis % x.ndim != 1 or not case.num_channels:
        return
    dy = rng.standard_normal(x.shape).astype(x.dtype.newbyteorder("="))
    kinds = {2: bnorm.BatchNorm1d, 3: bnorm.BatchNorm1d, 4: bnorm.BatchNorm2d, 5: bnorm.BatchNorm3d}
    for options in ({}, {"momentum": None, "ddof": 1}, {"activation": "relu", "dtype": "float32"}):
        bn = kinds[x.ndim](case.num_channels, on_single="running", **options)
        found = []
        for batch in (x, x + np.asarray(1, x.dtype.newbyteorder("="))):
            found += [bn(batch), bn.backward(dy), bn.running_mean, bn.running_var, bn.gamma.grad, bn.beta.grad]
        found += [bn.eval()(x), bn.backward(dy)]
        yield f"BatchNorm {options}", digest(found)
    ln = bnorm.LayerNorm(x.shape[-1] or 1, activation="relu")
    if x.shape[-1]:
        yield "LayerNorm", digest([ln(x), ln.backward(dy), ln.gamma.grad, ln.beta.grad])


def of_the_transformer(case, dtype):
    x = case.array(dtype)
    if x.ndim != 2 or len(x) < 2 or x.shape[1] == 0:
        return
    for options in ({}, {"momentum": None}, {"halflife": 7.0}):
        t = bnorm.BatchNormTransformer(**options).fit(x).partial_fit(x[::-1])
        y = t.transform(x)
        yield f"transformer {options}", digest([t.running_mean_, t.running_var_, y, t.inverse_transform(y)])


def digests():
    return {
        f"{name} {case.name} {dtype}": value
        for case in CASES
        for dtype in DTYPES
        for kind in (of_functions, of_layers, of_the_transformer)
        for name, value in kind(case, dtype)
    }


def main():
    found = digests()
    if len(sys.argv) == 1:
        json.dump(found, sys.stdout, indent=0)
        return
    before = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    differ = [name for name, value in before.items() if found.get(name) != value]
    print(*differ, sep="\n")
    for name, all_of_them in (("before", before), ("now", found)):
        print(f"{name}: {len(all_of_them)} digests, {sha256(json.dumps(all_of_them).encode()).hexdigest()}")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
