"""A registered retriever as MLflow serves it ("models from code").

`mlflow models serve` loads this file by itself. The logged model has a copy of `model_code`, so it
can be loaded where the project is not installed. Serve it with one thread per process. On small
machines, starting OpenMP's threads costs far more than they save: 358 ms per request, and 10 ms
with one thread.

    OMP_NUM_THREADS=1 mlflow models serve -m models:/freshet@champion --env-manager local

The input is a table with the column `query`, and the parameter `k` is the number of hits. The
output is a list of hits for each query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from model_code.retrieval.kinds import open_retriever
from model_code.text.snippets import require_queries

# Number of hits per query, unless a request names another one.
DEFAULT_HITS = 10


class ServedRetriever(PythonModel):
    """An MLflow model that searches with a registered retriever.

    Its hits contain the titles and texts of documents.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the retriever, and the titles and texts, from the artifact folder `retriever`."""
        folder = Path(context.artifacts["retriever"])
        self.retriever = open_retriever(folder / "encoder", folder / "index")

        columns = ["document_id", "title", "text"]
        documents = pd.read_parquet(folder / "documents.parquet", columns=columns)
        self.documents = documents.set_index("document_id").to_dict("index")

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Search for the texts in the column `query`.

        Args:
            context: Not used.
            model_input: A table with the column `query`.
            params: `k`, the number of hits per query.

        Returns:
            A list of hits for each query. A hit has the keys rank, score, document_id, title and
            text.

        Raises:
            SettingsError: If a query is empty.
        """
        queries = model_input["query"].tolist()
        require_queries(queries)
        k = (params or {}).get("k", DEFAULT_HITS)

        results = []
        for ranking in self.retriever.search(queries, k):
            hits = []
            for rank, (document_id, score) in enumerate(ranking, start=1):
                hit = {"rank": rank, "score": score, "document_id": document_id}
                hit.update(self.documents[document_id])
                hits.append(hit)
            results.append(hits)
        return results


set_model(ServedRetriever())
