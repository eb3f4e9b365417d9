"""Training losses, one per file: functions of vectors, without any knowledge of texts, encoders or trainers."""
