"""What the pool costs on this machine: the cases of ``manage.py bench``."""
