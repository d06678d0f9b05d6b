"""The fixtures of the stages, for what stages stand on."""

from tests.stages.conftest import _reader, metrics, reads, world

__all__ = ["_reader", "metrics", "reads", "world"]
