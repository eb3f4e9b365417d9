"""Guards live collections: generations are copies, whole or absent, opened once each, switched and
rolled back.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from model_code.collection.generations import generation_store as collection
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
    set_default_retriever,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import LedgerCursor
from model_code.collection.segments.documents import DOCUMENTS, DocumentFile
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import hash_path, read_json, write_json
from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
from tests.model_code.collection.conftest import Build


def snapshot(root: Path) -> dict[str, str]:
    """Every file below `root`, hidden ones too, with its content's hash."""
    return {
        str(path.relative_to(root)): hash_path(path) for path in root.rglob("*") if path.is_file()
    }


def test_reopening_first_build_changes_nothing(build: Build, tmp_path: Path) -> None:
    generation = build.open(tmp_path, model_version=3)
    assert generation.folder == tmp_path / "live" / "hce" / "generations" / "000000"

    manifest = generation.manifest
    assert manifest["fingerprint"] == read_json(build.index / "manifest.json")["fingerprint"]
    assert manifest["parent"] is None
    assert manifest["documents"] == 9
    assert manifest["passages"] == 10
    assert manifest["provenance"] == {"model_version": 3}
    assert GenerationStore(tmp_path / "live", "hce").current() == generation
    assert default_retriever(tmp_path / "live") == "hce"
    assert set(
        DocumentFile(generation.folder / DOCUMENTS).read(["csv.reader", "later.document"])
    ) == {"csv.reader"}

    before = snapshot(tmp_path)
    assert build.open(tmp_path, model_version=4) == generation
    assert snapshot(tmp_path) == before


def test_it_is_a_copy(build: Build, tmp_path: Path) -> None:
    folders = {name: path for name, path in vars(build).items() if path.is_dir()}
    copies = {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in folders.items()}
    generation = replace(build, **copies).open(tmp_path)
    for path in copies.values():
        shutil.rmtree(path)
    generation.verify()

    assert (
        Searcher.open(tmp_path / "live").search("split a string", 1)[0].document_id == "str.split"
    )


def test_another_build_becomes_current(build: Build, other_build: Build, tmp_path: Path) -> None:
    build.open(tmp_path)

    second = other_build.open(tmp_path)

    assert second.number == 1
    assert second.manifest["parent"] is None
    assert GenerationStore(tmp_path / "live", "hce").current() == second


@pytest.fixture
def opened_again(build: Build, other_build: Build, tmp_path: Path) -> tuple[Generation, Generation]:
    """The first generation of a build, and the one after another build was open in between."""
    first = build.open(tmp_path, model_version=1)
    other_build.open(tmp_path)
    return first, build.open(tmp_path)


def test_rewind_to_previous_build_shares_its_files(
    opened_again: tuple[Generation, Generation], tmp_path: Path
) -> None:
    _, again = opened_again

    generations = GenerationStore(tmp_path / "live", "hce").generations()
    assert again.number == 2
    assert again.build == 0
    assert again.manifest["parent"] == 0
    assert [path.name for path in again.folder.iterdir()] == ["manifest.json"]
    assert again.needs == {0, 2}
    # Only the generation of the build names the version of the model.
    assert again.manifest["provenance"] == {}
    assert [generation.number for generation in generations] == [0, 1, 2]


def test_rewind_to_previous_build_finds_the_same(
    opened_again: tuple[Generation, Generation], tmp_path: Path
) -> None:
    first, _ = opened_again
    live = tmp_path / "live"

    hits = Searcher.open(live).search("split a string", 5)

    expected = Searcher(live, first, {}).search("split a string", 5)
    assert [replace(hit, generation=first.number) for hit in hits] == expected


def test_generations_are_ordered_by_number(build: Build, tmp_path: Path) -> None:
    generation = build.open(tmp_path)
    store = GenerationStore(tmp_path / "live", "hce")
    facts = {key: generation.manifest[key] for key in (*collection.COPIED_KEYS, "provenance")}
    with store.staging_dir() as folder:
        store.write_manifest(folder, facts, generation.cursor)
        store.set_current(store.commit(folder, 999_999))

    store.publish_again(generation, generation.cursor, {})

    assert [each.number for each in store.generations()] == [0, 999_999, 1_000_000]


def test_uncommitted_generations_are_deleted(build: Build, tmp_path: Path) -> None:
    first = build.open(tmp_path)
    store = GenerationStore(tmp_path / "live", "hce")
    for number in (1, 2):
        shutil.copytree(first.folder, first.folder.with_name(f"{number:06d}"))

    store.remove_uncommitted()

    assert [generation.number for generation in store.generations()] == [0]
    assert store.publish_again(first, LedgerCursor(), {}).number == 1


def test_leftovers_of_another_format_are_refused_and_kept(build: Build, tmp_path: Path) -> None:
    first = build.open(tmp_path)
    store = GenerationStore(tmp_path / "live", "hce")
    leftover = first.folder.with_name("000001")
    shutil.copytree(first.folder, leftover)
    write_json(leftover / "manifest.json", {**read_json(leftover / "manifest.json"), "format": 3})
    unfinished = first.folder.with_name(".making.x")
    unfinished.mkdir()

    with pytest.raises(FreshetError, match=r"format 3.*freshet export --all.*freshet import"):
        store.remove_uncommitted()

    assert leftover.is_dir()
    assert unfinished.is_dir()


def test_two_retrievers_live_side_by_side(build: Build, other_build: Build, tmp_path: Path) -> None:
    build.open(tmp_path, "hce")
    other_build.open(tmp_path, "contrastive")
    live = tmp_path / "live"

    assert retrievers(live) == ["contrastive", "hce"]
    assert default_retriever(live) == "contrastive"

    set_default_retriever(live, "hce")
    assert Searcher.open(live).generation.retriever == "hce"
    assert Searcher.open(live, "contrastive").generation.retriever == "contrastive"
    with pytest.raises(
        FreshetError, match=r"'mlr' is not live \(live: contrastive, hce\); take one of these"
    ):
        set_default_retriever(live, "mlr")


@pytest.mark.parametrize("step", ["write_manifest", "fsync_tree", "write_text"])
def test_crash_at_any_step_leaves_old_generation(
    build: Build, other_build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = build.open(tmp_path)

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collection, step, crash)
        # kill -9 tidies nothing
        patch.setattr(collection.shutil, "rmtree", lambda *arguments, **options: None)
        with pytest.raises(KeyboardInterrupt):
            other_build.open(tmp_path)
    live = GenerationStore(tmp_path / "live", "hce")
    assert live.current() == first
    assert Searcher.open(tmp_path / "live").search("split a string", 1)
    assert other_build.open(tmp_path).number == 1
    assert [path.name for path in sorted((live.folder / "generations").iterdir())] == [
        "000000",
        "000001",
    ]


def test_parts_that_do_not_belong_together_are_refused(
    build: Build, other_build: Build, tmp_path: Path
) -> None:
    with pytest.raises(FingerprintMismatch, match="run the stage index again"):
        replace(build, encoder=other_build.encoder).open(tmp_path)

    frame = pd.read_parquet(build.documents)
    frame[frame["document_id"] != "re.split"].to_parquet(tmp_path / "short.parquet", index=False)

    with pytest.raises(
        FreshetError, match="lacks 1 documents that the index holds, first 're.split'"
    ):
        replace(build, documents=tmp_path / "short.parquet").open(tmp_path)

    tree = Hierarchy.load(build.hierarchy)
    (tmp_path / "tree").mkdir()
    Hierarchy(tree.centroids, tree.parents, tree.leaves[:8]).save(tmp_path / "tree")
    write_json(tmp_path / "tree" / DOCUMENT_IDS, read_json(build.hierarchy / DOCUMENT_IDS)[:8])

    with pytest.raises(
        FreshetError, match="places 8 passages of 8 documents, but the index holds 9"
    ):
        replace(build, hierarchy=tmp_path / "tree").open(tmp_path)
    assert GenerationStore(tmp_path / "live", "hce").generations() == []
    with pytest.raises(FreshetError, match="nothing is live yet"):
        default_retriever(tmp_path / "live")


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_damaged_generation_is_never_switched_to(
    build: Build, other_build: Build, tmp_path: Path, damage: str
) -> None:
    file = build.open(tmp_path).folder / DOCUMENTS
    second = other_build.open(tmp_path)
    live = GenerationStore(tmp_path / "live", "hce")
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"nonsense")

    with pytest.raises(FreshetError, match=f"documents.safetensors (is|was) {damage}"):
        live.publish_again(live.read(0), LedgerCursor(), {})
    assert live.current() == second
    assert len(live.generations()) == 2
    with pytest.raises(FreshetError, match="no generation 7; there are: 0, 1"):
        live.read(7)


def test_swapped_encoder_and_newer_format_are_refused(
    build: Build, other_build: Build, tmp_path: Path
) -> None:
    generation = build.open(tmp_path)
    shutil.rmtree(generation.folder / "encoder")
    shutil.copytree(other_build.encoder, generation.folder / "encoder")

    with pytest.raises(FingerprintMismatch, match="its encoder has fingerprint"):
        Searcher.open(tmp_path / "live")

    write_json(generation.folder / "manifest.json", {**generation.manifest, "format": 99})
    with pytest.raises(FreshetError, match="has format 99"):
        Generation.read(generation.folder)
