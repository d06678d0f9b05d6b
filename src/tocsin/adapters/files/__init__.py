"""Job definitions in files: YAML and JSON, one file, a folder, or standard input."""

from .loading import STDIN, load

__all__ = ["STDIN", "load"]
