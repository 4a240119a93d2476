"""The S3 face of disks: any client of S3 reads and writes them, by path style."""
