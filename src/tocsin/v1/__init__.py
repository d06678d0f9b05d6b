"""Messages and client of the gRPC service `tocsin.v1.Scheduler`.

    from tocsin.v1 import scheduler_pb2, scheduler_pb2_grpc

They are generated from `schemas/proto`, at the place where generated code imports them. It needs the extra `grpc`.
"""
