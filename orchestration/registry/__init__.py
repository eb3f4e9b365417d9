"""What is registered in MLflow: versions of retrievers, who is champion, and why."""
