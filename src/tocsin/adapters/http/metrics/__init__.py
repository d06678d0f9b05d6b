"""The Prometheus metrics of an installation, which the API serves on a separate port."""
