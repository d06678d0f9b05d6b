"""Dependency keeper: lets an execution wait for the runs of other jobs."""
