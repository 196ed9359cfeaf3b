"""streamrf: out-of-core kernel machines with random features."""

__version__ = "0.1.0"
