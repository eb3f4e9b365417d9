"""Kind `dsi`: atomic document ids, one learned vector per document (stage 1 of IncDSI)."""
