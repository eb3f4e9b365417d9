"""Guards the stage `pseudo_queries`: its table, its report, and equal bytes for equal inputs."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.encoding.settings import EncoderSettings
from model_code.files import hash_path
from model_code.queries.settings import ClozeSettings, PseudoQuerySettings
from model_code.stages import pseudo_queries

SETTINGS = PseudoQuerySettings(
    inverse_cloze=ClozeSettings(per_document=4, min_words=10, max_words=10)
)


def write_corpus(folder) -> None:
    """Thirty documents: one too short, two share their text; nobody asks for any."""
    texts = {f"d{i:02}": " ".join(f"word{i}x{j}" for j in range(40)) for i in range(28)}
    texts |= {"d28": "too short", "d29": texts["d00"]}
    documents = pd.DataFrame(
        {"document_id": list(texts), "title": "", "text": list(texts.values())}
    )
    rows = pd.DataFrame(columns=["query_id", "document_id", "split"]).astype(str)
    folder.mkdir()
    documents.to_parquet(folder / "documents.parquet")
    documents.assign(ordinal=0).to_parquet(folder / "passages.parquet")
    rows.assign(text="question").to_parquet(folder / "queries.parquet")
    rows.assign(relevance=1).to_parquet(folder / "qrels.parquet")


@pytest.fixture
def run_stage(tmp_path):
    """Run the stage; returns output folder, table and report."""

    def run(name: str = "run", settings: PseudoQuerySettings = SETTINGS, seed: int = 1) -> tuple:
        root = tmp_path / name
        root.mkdir()
        write_corpus(root / "corpus")
        (root / "output").mkdir()
        report = pseudo_queries.run(
            StageContext(
                root=root,
                inputs={"corpus": root / "corpus", "query_generator": root / "query_generator"},
                output=root / "output",
                settings={
                    "pseudo_queries": settings,
                    "encoder": EncoderSettings(device="cpu"),
                    "seed": seed,
                },
                checkpoints=root,
            )
        )
        return root, pd.read_parquet(root / "output" / "pseudo_queries.parquet"), report

    return run


def test_pseudo_queries_have_unique_ids(
    run_stage,
):
    _, table, report = run_stage()

    assert list(table.columns) == ["query_id", "document_id", "text", "kind"]
    assert table["query_id"].is_unique
    assert set(table["kind"]) == {"inverse_cloze"}
    assert not {"d00", "d28", "d29"} & set(table["document_id"])
    assert report["documents"] == 30
    assert report["documents_without_query"] == 3
    assert report["dropped"]["several_documents"] > 0
    assert report["kept"] == len(table)
    assert report["kept"] == report["generated"] - sum(report["dropped"].values())
    assert report["kept"] == report["by_kind"]["inverse_cloze"]


def test_equal_inputs_and_seed_give_equal_pseudo_queries(run_stage):
    first, _, first_report = run_stage("one")
    second, _, second_report = run_stage("two")

    assert second_report == first_report
    assert hash_path(second / "output") == hash_path(first / "output")


def test_another_seed_gives_other_pseudo_queries(run_stage):
    first, *_ = run_stage("one")
    other, *_ = run_stage("three", seed=2)

    assert hash_path(other / "output") != hash_path(first / "output")


def test_empty_pseudo_query_table_keeps_columns(run_stage):
    _, table, report = run_stage(
        settings=PseudoQuerySettings(inverse_cloze=ClozeSettings(max_share=0.01))
    )

    assert len(table) == 0
    assert report["kept"] == 0
    assert list(table.columns) == ["query_id", "document_id", "text", "kind"]
