"""The ports of the event log, implemented on JetStream streams and buckets."""
