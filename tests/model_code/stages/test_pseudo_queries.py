"""Guards the stage `pseudo_queries`: its table, its report, the held-out split, and equal bytes for equal inputs."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.tables import judged, load_corpus
from model_code.encoding.settings import EncoderSettings
from model_code.files import hash_path
from model_code.queries.settings import ClozeSettings, PseudoQuerySettings
from model_code.stages import pseudo_queries

SETTINGS = PseudoQuerySettings(
    dev_share=0.3,
    test_share=0.3,
    inverse_cloze=ClozeSettings(per_document=4, min_words=10, max_words=10),
    short_cloze=ClozeSettings(per_document=1, min_words=4, max_words=5),
)


def write_corpus(folder, qrels: list[tuple[str, str, str]]) -> None:
    """Thirty documents: one is new, one too short, two share their text. `qrels` holds (query, document, split)."""
    texts = {f"d{i:02}": " ".join(f"word{i}x{j}" for j in range(40)) for i in range(28)}
    texts |= {"d28": "too short", "d29": texts["d00"]}
    documents = pd.DataFrame({"document_id": list(texts), "title": "", "text": list(texts.values()), "part": "initial"})
    documents.loc[documents["document_id"] == "d01", "part"] = "new"
    rows = pd.DataFrame(qrels, columns=["query_id", "document_id", "split"]).astype(str)
    folder.mkdir()
    documents.to_parquet(folder / "documents.parquet")
    documents.rename(columns={"part": "ordinal"}).to_parquet(folder / "passages.parquet")
    rows.assign(text="question").to_parquet(folder / "queries.parquet")
    rows.assign(relevance=1).to_parquet(folder / "qrels.parquet")


@pytest.fixture
def run_stage(tmp_path):
    """Run the stage on a corpus with these qrels; returns output folder, table and report."""

    def run(name: str = "run", qrels: tuple = (), settings: PseudoQuerySettings = SETTINGS, seed: int = 1) -> tuple:
        root = tmp_path / name
        root.mkdir()
        write_corpus(root / "corpus", list(qrels))
        (root / "output").mkdir()
        report = pseudo_queries.run(
            StageContext(
                root=root,
                inputs={"corpus": root / "corpus", "query_generator": root / "query_generator"},
                output=root / "output",
                settings={"pseudo_queries": settings, "encoder": EncoderSettings(device="cpu"), "seed": seed},
                checkpoints=root,
            )
        )
        return root, pd.read_parquet(root / "output" / "pseudo_queries.parquet"), report

    return run


def test_without_qrels_documents_are_held_out_whole(run_stage):
    root, table, report = run_stage()
    assert list(table.columns) == ["query_id", "document_id", "text", "kind", "split"]
    assert table["query_id"].is_unique
    assert (table.groupby("document_id")["split"].nunique() == 1).all()
    assert set(table["split"]) == {"train", "dev", "test"}
    kinds = table.groupby("split")["kind"].unique().map(list).to_dict()
    assert kinds == {"train": ["inverse_cloze"], "dev": ["short_cloze"], "test": ["short_cloze"]}
    for split in ("dev", "test"):
        judgements = judged(load_corpus(root / "corpus"), table, split)
        assert judgements.source == "pseudo-queries"
        assert len(judgements.queries) == report["by_split"][split]


def test_neither_new_nor_short_nor_ambiguous_documents_have_queries(run_stage):
    _, table, report = run_stage()
    assert not {"d00", "d01", "d28", "d29"} & set(table["document_id"])
    assert report["documents"] == 29
    assert report["documents_without_query"] == 3
    assert report["dropped"]["several_documents"] > 0


def test_counts_add_up(run_stage):
    _, table, report = run_stage()
    assert report["kept"] == len(table) == report["generated"] - sum(report["dropped"].values())
    assert report["kept"] == sum(report["by_split"].values()) == sum(k["queries"] for k in report["by_kind"].values())
    assert report["by_kind"]["inverse_cloze"]["words_median"] == 10
    assert 4 <= report["by_kind"]["short_cloze"]["words_min"] <= report["by_kind"]["short_cloze"]["words_max"] <= 5


def test_judged_dev_or_test_queries_leave_all_for_training(run_stage):
    _, table, report = run_stage(qrels=[("q1", "d05", "test")])
    assert report["by_split"] == {"train": len(table), "dev": 0, "test": 0}
    assert table["document_id"].nunique() == 26


def test_judged_train_queries_alone_do_not(run_stage):
    _, _, report = run_stage(qrels=[("q1", "d05", "train")])
    assert report["by_split"]["dev"] > 0


def test_equal_inputs_give_equal_bytes_and_another_seed_others(run_stage):
    (one, _, report), (two, _, again), (other, _, _) = run_stage("one"), run_stage("two"), run_stage("three", seed=2)
    assert report == again
    assert hash_path(one / "output") == hash_path(two / "output") != hash_path(other / "output")


def test_a_corpus_of_short_documents_is_asked_for_its_first_by_title_or_first_words(run_stage):
    tiny = ClozeSettings(max_share=0.01)
    settings = PseudoQuerySettings(inverse_cloze=tiny, short_cloze=tiny)
    _, table, report = run_stage(settings=settings)
    words = " ".join(f"word0x{j}" for j in range(16))
    assert table.to_dict("records") == [
        {"query_id": "d00~title~0", "document_id": "d00", "text": words, "kind": "title", "split": "test"}
    ]
    assert report["kept"] == 1
