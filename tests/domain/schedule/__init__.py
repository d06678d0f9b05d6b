"""The calendar: which instants a schedule names."""
