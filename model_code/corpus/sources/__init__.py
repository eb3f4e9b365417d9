"""One file per kind of source, all behind the interface in `base.py`."""
