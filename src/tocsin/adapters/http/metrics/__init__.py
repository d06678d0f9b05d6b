"""The Prometheus metrics of an installation, which the API serves on a separate port."""

from .exposition import MEDIA_TYPE, REFRESH_INTERVAL_S, Metrics, metrics_app

__all__ = ["MEDIA_TYPE", "REFRESH_INTERVAL_S", "Metrics", "metrics_app"]
