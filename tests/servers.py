"""Which NATS the tests run on, where the environment asks for another than one server of the installed version."""

import os
from typing import Final

SERVER: Final = "TOCSIN_TEST_NATS_SERVER"
"""Names another nats-server to test with; by default the one that is installed."""

REPLICAS: Final = int(os.environ["TOCSIN_TEST_REPLICAS"]) if "TOCSIN_TEST_REPLICAS" in os.environ else None
"""3: a cluster of three in place of one server, and in the conformance suite streams of three replicas."""
