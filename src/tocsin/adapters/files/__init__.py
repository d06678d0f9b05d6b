"""Job definitions in files: YAML and JSON, one file, a folder, or standard input."""

from .definition_files import STDIN, load

__all__ = ["STDIN", "load"]
