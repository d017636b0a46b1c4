"""A runnable Django project: a small site that takes folders in, file by file, through a pool."""
