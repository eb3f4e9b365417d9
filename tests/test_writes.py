"""Guards that the product writes files through `model_code/files.py`, whole or not at all, or
states why not.

pytest tests/test_writes.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("model_code", "orchestration", "assets", "freshet")
ONE_MODULE = "model_code/files.py"
METHODS = {
    "write_bytes",
    "rename",
    "hardlink_to",
    "symlink_to",
    "to_parquet",
    "to_csv",
    "to_json",
    "savefig",
    "write_table",
    "save_file",
    "save_pretrained",
    "savez",
    "write_index",
    "copyfile",
    "copytree",
    "move",
    "link",
}
OF_MODULES = {
    ("np", "save"),
    ("json", "dump"),
    ("torch", "save"),
    ("os", "replace"),
    ("shutil", "copy"),
}

ALLOWED = {
    "into a stage's staging folder, which `replace_folder` syncs and renames": """
        model_code/corpus/tables.py:write_table
        model_code/stages/corpus.py:run
        model_code/stages/pseudo_queries.py:run
        model_code/encoding/base_models.py:save_tokenizer
        model_code/encoding/base_models.py:save_transformer
        model_code/encoding/base_models.py:save_projection
        model_code/evaluation/system_evaluation.py:evaluate_system
        model_code/retrieval/dense_index.py:_write_inverted_file
        model_code/lexical/layout.py:_save_head
        model_code/lexical/layout.py:_write_modules
        model_code/queries/sequence_to_sequence.py:save_sequence_model
        model_code/retrieval/fused.py:Fusion.save model_code/retrieval/fused.py:build_folders
        model_code/stages/baselines.py:_build_headlines
        model_code/stages/baselines.py:_build_zero_shot
        model_code/stages/comparison.py:run orchestration/pipeline/runs.py:spool_record
        orchestration/freshness/workspace.py:_fill
        orchestration/freshness/workspace.py:_link_folders_of_settings""",
    "into a folder that `fsync_tree` forces to the disk before its rename, the commit point": """
        model_code/collection/generations/build.py:_copy_files
        model_code/collection/generations/generation_store.py:GenerationStore.commit
        model_code/training/loop.py:save_checkpoint
        model_code/collection/follow/follower.py:Follower._fetch_folder
        model_code/collection/backup/backup.py:link
        model_code/collection/backup/backup.py:backup
        model_code/collection/backup/backup.py:restore
        model_code/collection/backup/backup.py:_place_ledger
        model_code/collection/backup/import_.py:_copy_export""",
    "moves what exists as a whole, and loses nothing where it is undone": """
        model_code/collection/generations/generation_store.py:GenerationStore.delete
        model_code/collection/sync/inbox.py:_move
        model_code/collection/follow/follower.py:_delete_folder
        model_code/collection/backup/repair.py:_set_damage_aside
        model_code/collection/backup/repair.py:_repair_default_retriever
        model_code/collection/backup/repair.py:_set_ledger_aside""",
    "into a temporary folder, which nobody reads after the process": """
        orchestration/service/uploads.py:_read_all
        orchestration/cli/known_queries_demo.py:_copied_collection""",
    "the log of what other programs print, written anew at each start": """
        orchestration/cli/pages.py:run_together""",
    "a file that is locked, or says who holds a lock": """
        model_code/project.py:file_lock""",
    "into memory, a pipe, or the stream of a file that `atomic_write` gave": """
        model_code/evaluation/plots.py:draw
        model_code/corpus/sources/definitions.py:""",
    "made again by whoever finds it missing or torn": """
        orchestration/guard.py:_create_token
        orchestration/registry/built_retriever.py:log_retriever
        model_code/collection/index/changes.py:_readable_file""",
}


def mode_of(call: ast.Call, place: int) -> str:
    """The mode of an open(), as far as it is literal."""
    named = [each.value for each in call.keywords if each.arg == "mode"]
    given = [*call.args[place : place + 1], *named]
    literal = given[0].value if given and isinstance(given[0], ast.Constant) else None
    return literal if isinstance(literal, str) else "r"


def is_write(call: ast.Call) -> bool:
    """Whether a call writes, moves or copies a file, by its name."""
    match call.func:
        case ast.Name("open"):
            return not mode_of(call, 1).startswith("r")
        case ast.Attribute(ast.Name(module), name) if (module, name) in OF_MODULES:
            return True
        case ast.Attribute(ast.Name("os"), "open"):
            return "O_WRONLY" in ast.unparse(call) or "O_RDWR" in ast.unparse(call)
        case ast.Attribute(_, "open"):
            return not mode_of(call, 0).startswith("r")
        case ast.Attribute(_, "write_text"):
            return True
        # of a path: a string's takes two, a dataclass's none by place
        case ast.Attribute(_, "replace"):
            return len(call.args) == 1 and not call.keywords
        case ast.Attribute(_, name) | ast.Name(name):
            return name in METHODS
    return False


def is_atomic_write(node: ast.AST) -> bool:
    """Whether a block is one of `files.atomic_write`, which is atomic and reaches the disk."""
    return isinstance(node, ast.With) and any(
        isinstance(item.context_expr, ast.Call)
        and ast.unparse(item.context_expr.func) == "atomic_write"
        for item in node.items
    )


def writes(node: ast.AST, within: str = "") -> Iterator[str]:
    """The functions below `node` that write files outside of `atomic_write`."""
    for child in ast.iter_child_nodes(node):
        if is_atomic_write(child):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from writes(child, f"{within}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Call) and is_write(child):
            yield within
        yield from writes(child, within)


def found() -> dict[str, set[str]]:
    """Return the writes of each file of the product that has any, except in the module for writes."""
    writes_by_file = {}
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name == ONE_MODULE:
                continue
            file_writes = set(writes(ast.parse(path.read_text(encoding="utf-8"))))
            if file_writes:
                writes_by_file[name] = file_writes
    return writes_by_file


def test_writes_outside_files_module_state_reason():
    stated = {}
    for places in ALLOWED.values():
        for place in places.split():
            name, _, function = place.partition(":")
            stated.setdefault(name, set()).add(function)

    assert found() == stated, "write through model_code/files.py, or say here why that need not be"


def test_a_write_that_goes_past_it_is_noticed():
    past = (
        "open(p, 'w')",
        "p.open('ab')",
        "p.write_text(t)",
        "p.write_bytes(b)",
        "os.replace(a, b)",
        "a.replace(b)",
        "a.rename(b)",
        "shutil.move(a, b)",
        "shutil.copyfile(a, b)",
        "table.to_parquet(p)",
        "np.save(p, a)",
        "json.dump(a, f)",
        "save_file(a, p)",
        "os.open(p, os.O_WRONLY)",
    )
    for code in past:
        assert list(writes(ast.parse(f"def f():\n {code}"))) == ["f"], code

    harmless = (
        "open(p)",
        "p.open()",
        "p.open('rb')",
        "os.open(p, os.O_RDONLY)",
        "s.replace('a', 'b')",
        "replace(row, text='')",
        "write_text(p, t)",
    )
    for code in (*harmless, "with atomic_write(p) as a: a.write_text(t)"):
        assert list(writes(ast.parse(f"def f():\n {code}"))) == [], code
