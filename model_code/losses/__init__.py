"""Training losses: functions of vectors, without any knowledge of texts, encoders or trainers."""
