"""The gRPC service, an adapter in front of the HTTP API of the same process.

It needs the extra `grpc`. `scheduler_pb2` is generated from `schemas/proto`.
"""
