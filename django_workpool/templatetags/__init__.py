"""The tag library ``workpool``."""
