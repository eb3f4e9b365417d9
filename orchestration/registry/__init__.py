"""What is registered in MLflow: runs of stages, versions of retrievers, who is champion, and why."""
