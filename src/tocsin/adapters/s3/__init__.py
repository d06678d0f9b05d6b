"""Archive and backups on S3 and compatible stores."""
