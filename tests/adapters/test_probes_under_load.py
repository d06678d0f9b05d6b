"""The probes of a process, while other clients hold connections."""

import asyncio
import socket

import httpx

from tocsin.adapters.otel.process_metrics import MAX_CONNECTIONS, serving_process_metrics


async def test_idle_connections_keep_no_probe_out() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    async with serving_process_metrics(listener, lambda: None), httpx.AsyncClient() as client:
        idle = [await asyncio.open_connection(host, port) for _ in range(MAX_CONNECTIONS)]
        answer = await client.get(f"http://{host}:{port}/livez")
        assert answer.text == "ok\n"
        assert await idle[0][0].read() == b""
        for _, writer in idle:
            writer.close()
