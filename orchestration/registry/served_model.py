"""A registered retriever as MLflow runs it ("models from code"): `mlflow models serve` loads this
file on its own.

The logged model carries a copy of `model_code`, so it can be loaded where the project is not. Serve
it with one thread per process, as on small machines OpenMP's teams cost far more than they give
(358 ms a request, 10 ms with one):

    OMP_NUM_THREADS=1 mlflow models serve -m models:/freshet@champion --env-manager local

Input is a table with the column "query", parameter `k` the number of hits; output one list of hits
per query.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from model_code.retrieval.kinds import open_retriever
from model_code.text.snippets import require_queries


class ServedRetriever(PythonModel):
    """Searches, and looks up titles and texts."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load retriever, titles and texts from the artifact folder "retriever"."""
        folder = Path(context.artifacts["retriever"])
        self.retriever = open_retriever(folder / "encoder", folder / "index")
        documents = pd.read_parquet(
            folder / "documents.parquet", columns=["document_id", "title", "text"]
        )
        self.documents = documents.set_index("document_id").to_dict("index")

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[list[dict[str, Any]]]:
        """For each row's "query" its best documents: rank, score, document_id, title, text.
        SettingsError if empty.
        """
        texts = model_input["query"].tolist()
        require_queries(texts)
        rankings = self.retriever.search(texts, (params or {}).get("k", 10))
        return [
            [
                {"rank": rank, "score": score, "document_id": document, **self.documents[document]}
                for rank, (document, score) in enumerate(ranking, start=1)
            ]
            for ranking in rankings
        ]


set_model(ServedRetriever())
