"""A double of the API server of Kubernetes, which no package can start.

It keeps Jobs, pods, Secrets and logs in memory, plays the controller of Jobs and the kubelet as a test says, and compares the body of
each request with the published OpenAPI schema of Kubernetes. It proves which requests the worker sends and how it takes the answers. It
does not prove what a cluster does with it.
"""
