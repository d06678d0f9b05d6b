"""Job definitions in YAML and JSON files, and archive objects in a folder."""

from .definition_files import load, load_calendars, load_document
from .yaml_text import dump as dump_yaml

__all__ = ["dump_yaml", "load", "load_calendars", "load_document"]
