"""The NATS servers of the tests, as the environment selects them."""

import os
from typing import Final

SERVER: Final = "TOCSIN_TEST_NATS_SERVER"
"""The path of another nats-server to test with; the default is the installed package."""

REPLICAS: Final = int(os.environ["TOCSIN_TEST_REPLICAS"]) if "TOCSIN_TEST_REPLICAS" in os.environ else None
"""3: a cluster of three in place of one server, and in the conformance suite streams of three replicas."""
