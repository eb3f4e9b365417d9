"""The papers' methods in the papers' own forms, at a size that two cores allow."""
