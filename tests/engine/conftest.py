"""The fixtures of the stages, for what stages stand on."""

from tests.stages.conftest import metrics, reads, world

__all__ = ["metrics", "reads", "world"]
