"""Job definitions in YAML and JSON files, and archive objects in a folder."""

from .definition_files import STDIN, load

__all__ = ["STDIN", "load"]
