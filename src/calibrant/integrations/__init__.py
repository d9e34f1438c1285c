"""Integrations with other libraries: one module each, named after the library, which has to be installed."""
