"""Guards the evaluation assets: what their pages show of dev, test and variants."""

from __future__ import annotations

from assets.evaluation import preview_comparison, preview_metrics
from model_code.files import write_json


def test_evaluation_page_has_rows_per_system_and_split(tmp_path):
    metrics = {"dev": {"queries": 0}, "gate": {"queries": 0}, "test": {"queries": 4, "hit@1": 0.75}}
    for name, folder in {
        "zero_shot": "zero_shot",
        "zero_shot.rrf": "zero_shot/variants/rrf",
        "bm25": "bm25",
    }.items():
        write_json(tmp_path / folder / "metrics.json", {**metrics, "system": name})
    rows = [row.data for row in preview_metrics(tmp_path / "zero_shot")["metrics"].records]

    assert rows[0] == {"system": "zero_shot", "split": "test", "queries": 4, "hit@1": 0.75}
    assert [row["split"] for row in rows] == ["test"] * 2 + ["gate"] * 2 + ["dev"] * 2
    assert rows[4] == {"system": "zero_shot", "split": "dev", "queries": 0, "hit@1": ""}

    shown = [
        (row.data["system"], row.data["split"])
        for row in preview_metrics(tmp_path)["metrics"].records
    ]
    assert shown[:3] == [(name, "test") for name in ("bm25", "zero_shot", "zero_shot.rrf")]


def test_comparison_page_lists_best_systems_first(tmp_path):
    cells = {"bm25": 0.5, "hce": 0.7}
    systems = {
        name: {
            "MAP": {"value": 0.1},
            "nDCG@10": {"value": value, "low": 0.4, "high": 0.8, "over": "queries", "trainings": 1},
        }
        for name, value in cells.items()
    }
    facts = {"main_metric": "nDCG@10", "queries": 9, "split": "test", "documents": 12}
    write_json(tmp_path / "comparison.json", {**facts, "systems": systems})
    (tmp_path / "comparison.png").write_bytes(b"png")
    shown = preview_comparison(tmp_path)

    assert shown["results"].records[0].data == {
        "system": "hce",
        "nDCG@10": 0.7,
        "low": 0.4,
        "high": 0.8,
        "MAP": 0.1,
    }
    assert shown["picture"].value.startswith("![comparison](data:image/png;base64,")
    assert shown["best"].startswith("hce is the best of 2 systems")


def test_where_nobody_judged_the_page_says_so(tmp_path):
    facts = {
        "main_metric": "nDCG@10",
        "queries": 0,
        "split": "test",
        "documents": 12,
        "systems": {},
    }
    write_json(tmp_path / "comparison.json", facts)

    assert preview_comparison(tmp_path)["best"].startswith("This corpus has no judged")
