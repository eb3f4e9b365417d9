"""Compare retrievers that other libraries train with Freshet's retrievers."""
