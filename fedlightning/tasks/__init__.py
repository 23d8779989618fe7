"""Ready-made tasks."""

from fedlightning.tasks.quadratic_saddle import ClientNumbers, QuadraticSaddle

__all__ = ["ClientNumbers", "QuadraticSaddle"]
