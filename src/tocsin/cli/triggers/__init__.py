"""Commands about the triggers of jobs."""
