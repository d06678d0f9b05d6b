"""Speed, measured: figures as ratios to a yardstick of the same run."""
