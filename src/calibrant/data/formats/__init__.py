"""One module per file format, each with ``names``, ``read`` and ``write``."""
