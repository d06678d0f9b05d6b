"""The fixtures of the stages, for what stages stand on."""

from tests.stages.conftest import metrics, world

__all__ = ["metrics", "world"]
