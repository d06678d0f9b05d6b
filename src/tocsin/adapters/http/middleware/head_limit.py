"""The head of a request is bounded: httptools, which parses it, would keep as much as somebody sends."""

from typing import Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST: Final = 65_536
"""Bytes of a request line and its headers; a head that came in one piece may be longer by that piece."""


class HeadLimit(HttpToolsProtocol):
    """One connection."""

    _unfinished = 0
    _is_in_head = False

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_in_head:
            return
        self._unfinished += len(data)
        if self._unfinished > MOST:
            self.send_400_response(f"the head of the request is longer than {MOST:,} bytes")

    @override
    def on_message_begin(self) -> None:
        self._is_in_head, self._unfinished = True, 0
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
