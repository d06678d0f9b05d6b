"""Operations on executions, for the command line and the HTTP API.

A change is a fact that the domain decides on and the log's guard accepts; `by` and `reason` are recorded with it (hip-62,
Audit Trail). An operation that is not possible raises `OperationError`.
"""
