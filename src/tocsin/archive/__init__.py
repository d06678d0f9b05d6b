"""The log as a sequence of messages that lie outside it: read from the streams, written to a file, read back.

Whatever looks at a whole log (an audit, a replay) takes such a sequence, and does not know where it comes from.
"""

from .export import CutOffError, Export, ExportError, Manifest, open_export, write
from .stream_reader import STREAMS, Extents, Selection, decoded, extents, read, wherever

__all__ = [
    "STREAMS",
    "CutOffError",
    "Export",
    "ExportError",
    "Extents",
    "Manifest",
    "Selection",
    "decoded",
    "extents",
    "open_export",
    "read",
    "wherever",
    "write",
]
