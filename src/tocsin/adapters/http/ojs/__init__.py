"""The HTTP binding of the Open Job Spec."""
