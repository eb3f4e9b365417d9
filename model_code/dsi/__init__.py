"""Retrievers of the kind `dsi`, which search one learned vector per document.

Training classifies queries into documents (IncDSI, section 3, stage 1). The literature calls ids
with a learned vector atomic document ids.
"""
