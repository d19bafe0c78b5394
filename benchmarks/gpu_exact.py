"""What the benchmark on a GPU compares with: normalizations in float64, written with array operations of CuPy."""

from typing import Any

EPS = 1e-5


def wide(cupy: Any, a: Any) -> Any:
    """As float64; bfloat16 by way of float32, which CuPy converts it to."""
    return a.astype(cupy.float32).astype(cupy.float64) if a.dtype.name == "bfloat16" else a.astype(cupy.float64)


def exact_batch(cupy: Any, x: Any, dy: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> dict[str, list[Any]]:
    """(outer, C) or (outer, C, inner). mean and var are those of inference."""
    over = tuple(i for i in range(x.ndim) if i != 1)
    x, dy = wide(cupy, x), wide(cupy, dy)

    def channel(a: Any) -> Any:
        return a.reshape(1, -1, *(1 for _ in range(x.ndim - 2)))

    away = x - x.mean(over, keepdims=True)
    away -= away.mean(over, keepdims=True)
    rstd = 1 / cupy.sqrt((away**2).mean(over, keepdims=True) + EPS)
    xhat = away * rstd
    dgamma, dbeta = (dy * xhat).sum(over), dy.sum(over)
    count = x.size // x.shape[1]
    dx = channel(gamma) * rstd * (dy - channel(dbeta) / count - xhat * (channel(dgamma) / count))
    known = (x - channel(mean)) / cupy.sqrt(channel(var) + EPS)
    return {
        "forward": [xhat * channel(gamma) + channel(beta)],
        "inference": [known * channel(gamma) + channel(beta)],
        "backward": [dx, dgamma, dbeta],
    }


def exact_rows(cupy: Any, x: Any, dy: Any, gamma: Any, beta: Any, rms: bool) -> dict[str, list[Any]]:
    """(N, G, K, L)."""
    x, dy = wide(cupy, x), wide(cupy, dy)
    gamma, beta = (a.reshape(1, *x.shape[1:3], 1) for a in (gamma, beta))
    over = (2, 3)
    away = x if rms else x - x.mean(over, keepdims=True)
    rstd = 1 / cupy.sqrt((away**2).mean(over, keepdims=True) + EPS)
    xhat, g = away * rstd, dy * gamma
    through = (g * xhat).mean(over, keepdims=True) * xhat
    dx = rstd * (g - through - (0 if rms else g.mean(over, keepdims=True)))
    dgamma, dbeta = (dy * xhat).sum((0, 3)).ravel(), dy.sum((0, 3)).ravel()
    return {"forward": [xhat * gamma + beta], "backward": [dx, dgamma, dbeta]}
