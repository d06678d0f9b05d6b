"""W2 without traces, with 1 % and with 100 % of them, in interleaved rounds.

    python -m benchmarks.trace_pairs [--pairs 10] [--profile default] [--json FILE]

Each round runs W2 once for each part of the executions that is exported, in processes of their own, and each round begins with another
part. A receiver of OTLP in this process takes the spans and counts their bytes, so a round in which nothing came is seen. The rate of
a round is compared with the rate without traces of the same round, because the machine changes between rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Final, cast

RATE: Final = "executions_per_second"
CASES: Final[Mapping[str, str | None]] = {"off": None, "1 %": "0.01", "100 %": "1"}
"""The ratio of each case; None: tracing is off."""


class Receiver(ThreadingHTTPServer):
    """Takes every request of OTLP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.received = 0
        """Bytes of spans, as sent."""

    @property
    def url(self) -> str:
        """The endpoint of this receiver."""
        return f"http://127.0.0.1:{self.server_port}"

    def take(self) -> int:
        """Return the bytes since the last call."""
        with self.lock:
            received, self.received = self.received, 0
        return received


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Accept spans."""
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        receiver = cast("Receiver", self.server)
        with receiver.lock:
            receiver.received += size
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no line."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver in a thread."""
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def rate_of(case: str, profile: str, receiver: Receiver) -> tuple[float, int]:
    """Run W2 once; return its executions a second, and the bytes of spans that came."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    if (ratio := CASES[case]) is not None:
        environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": ratio,
        }
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "w2.json")
        command = [sys.executable, "-m", "benchmarks", "W2", "--profile", profile, "--json", str(written)]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own program
        [metrics] = json.loads(written.read_text()).values()
    return metrics[RATE], receiver.take()


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_pairs", description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10, help="rounds (default: 10)")
    parser.add_argument("--profile", choices=("default", "durable"), default="default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write {case: [rate of each round]} there as well")
    options = parser.parse_args()
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    sizes: dict[str, list[int]] = {case: [] for case in CASES}
    names = list(CASES)
    with receiving() as receiver:
        for number in range(options.pairs):
            first = number % len(names)
            for case in names[first:] + names[:first]:
                rate, size = rate_of(case, options.profile, receiver)
                rates[case].append(rate)
                sizes[case].append(size)
                print(f"round {number + 1}, {case}: {rate:,.0f} executions/s, {size:,} bytes of spans", flush=True)
    print(f"\n{'traces':8} {'executions/s':>13} {'of off, median':>15} {'least':>7} {'most':>7} {'bytes of spans':>15}")
    for case, measured in rates.items():
        ratios = [rate / off for rate, off in zip(measured, rates["off"], strict=True)]
        print(
            f"{case:8} {median(measured):13,.0f} {median(ratios):15.3f} {min(ratios):7.3f} {max(ratios):7.3f} "
            f"{median(sizes[case]):15,.0f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rates, indent=1))


if __name__ == "__main__":
    main()
