"""Stored messages of the log: read from the streams, written to a file, read back.

An audit or a replay takes such a sequence and does not depend on its origin.
"""

from .export import AlteredExportError, CutOffError, Export, ExportError, Manifest, open_export, write
from .stream_reader import Selection, decoded, extents, read

__all__ = [
    "AlteredExportError",
    "CutOffError",
    "Export",
    "ExportError",
    "Manifest",
    "Selection",
    "decoded",
    "extents",
    "open_export",
    "read",
    "write",
]
