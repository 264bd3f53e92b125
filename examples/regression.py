"""The data of regression.paren: points on a smooth surface, with noise."""

import numpy as np


def surface(rows: int, noise: float) -> dict[str, np.ndarray]:
    """Fields `x` float32[rows, 2], uniform on [-2, 2], and `y` float32[rows] = sin(x0) cos(x1) + noise."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, (rows, 2)).astype(np.float32)
    y = np.sin(x[:, 0]) * np.cos(x[:, 1]) + noise * generator.normal(size=rows)
    return {"x": x, "y": y.astype(np.float32)}
