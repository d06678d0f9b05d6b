"""What can go wrong with more than one port."""


class SequenceConflict(Exception):
    """Another writer appended to this scope first: fold again, decide again."""


class LogUnavailable(Exception):
    """The log did not answer; whether it stored what was sent is unknown. Redelivery and the guards sort it out."""


class NotAllowed(LogUnavailable):
    """The log does not let this client do what it asked. Its rules may change, so that no work is given up for it."""
