"""The DAG advancer stage."""
