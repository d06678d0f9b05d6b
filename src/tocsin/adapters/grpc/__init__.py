"""The gRPC service, an adapter in front of the HTTP API of the same process.

It needs the extra `grpc`. Its messages are in `tocsin.v1`.
"""
