"""The version of the package, read by the build and by `gyrator.__version__`."""

__version__ = "0.1.0"
