"""The manifests of Kubernetes: their structure, and whether the processes in them come up."""
