"""The loops, compiled once for each SIMD level; bnorm.kernels.cpu chooses one of them at import."""
