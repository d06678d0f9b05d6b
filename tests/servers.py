"""The NATS servers of the tests, as the environment selects them."""

import os
from typing import Final, cast

from tocsin.adapters.nats.client.connection import FastClient

SERVER: Final = "TOCSIN_TEST_NATS_SERVER"
"""The path of another nats-server to test with; the default is the installed package."""

REPLICAS: Final = int(os.environ["TOCSIN_TEST_REPLICAS"]) if "TOCSIN_TEST_REPLICAS" in os.environ else None
"""3: a cluster of three in place of one server, and in the conformance suite streams of three replicas."""

FAST_CLIENT: Final = cast("FastClient", os.environ.get("TOCSIN_TEST_FAST_CLIENT", "auto"))
"""`off`: the conformance suite uses only public methods of nats-py."""
