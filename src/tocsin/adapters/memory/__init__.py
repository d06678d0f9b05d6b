"""The ports in memory, without a server or real time.

They reject exactly what the real adapters reject (`tests/conformance`).
"""
