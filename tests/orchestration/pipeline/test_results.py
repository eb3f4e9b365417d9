"""Guards the results: means over a retriever's seeds, and the split that is reported."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.errors import FreshetError
from model_code.evaluation.scores import SystemScores, mean_over_seeds
from model_code.files import write_json
from orchestration.pipeline.results import by_system, load_reported


def scores(system, value):
    values = pd.DataFrame({"nDCG@10": [value, 1.0], "hit@1": [0.0, 1.0]}, index=["q1", "q2"])
    return SystemScores(system, "test", values)


RUNS = [
    scores(name, value)
    for name, value in {"bm25": 0.0, "hce": 0.2, "hce_seed1": 0.4, "hce.rrf": 0.3, "hce_seed1.rrf": 0.9}.items()
]


def test_seeds_of_a_system_and_of_a_variant_are_averaged_apart():
    groups = by_system(RUNS)
    assert {name: len(runs) for name, runs in groups.items()} == {"bm25": 1, "hce": 2, "hce.rrf": 2}
    mean = mean_over_seeds(groups["hce.rrf"], "hce.rrf")
    assert mean.values["nDCG@10"].tolist() == pytest.approx([0.6, 1.0])


def written(folder, **queries: int):
    """An evaluation folder with so many judged queries of each split, all of hit@1 .5."""
    folder.mkdir(parents=True)
    write_json(folder / "metrics.json", {"system": folder.name})
    rows = [(f"q{i}", split, "hit@1", 0.5) for split, count in queries.items() for i in range(count)]
    pd.DataFrame(rows, columns=["query_id", "split", "metric", "value"]).to_parquet(folder / "scores.parquet")
    return folder


@pytest.mark.parametrize(("queries", "split"), [({"dev": 1, "test": 2}, "test"), ({"dev": 1}, "dev")])
def test_the_split_is_the_one_that_the_comparison_reports(tmp_path, queries, split):
    (scores,) = load_reported([written(tmp_path / "bm25", **queries)])
    assert (scores.split, scores.queries) == (split, queries[split])


def test_before_a_build_the_system_and_the_remedy_are_named(tmp_path):
    folders = [written(tmp_path / "bm25", test=1), tmp_path / "hce"]
    with pytest.raises(FreshetError, match="no results of hce yet: run `freshet run`"):
        load_reported(folders)
    with pytest.raises(FreshetError, match="no judged dev or test queries"):
        load_reported([written(tmp_path / "zero_shot")])
