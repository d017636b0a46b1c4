"""Takes folders in: one work a file, one row a file."""
