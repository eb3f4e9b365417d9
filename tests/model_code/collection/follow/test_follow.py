"""Guards that followers equal their writer, and what they refuse.

Run: python -m pytest tests/model_code/collection/follow
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest

from model_code.collection.erase import erase_documents
from model_code.collection.follow import follower as follower_module
from model_code.collection.follow.follower import Follower
from model_code.collection.follow.head import read_head, read_registrations, write_head
from model_code.collection.follow.publish import publish
from model_code.collection.follow.signature import KEY_VARIABLE, read_key
from model_code.collection.follow.storage import SharedStorage
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.project_ledger import open_ledger
from model_code.errors import Damaged, FreshetError, SettingsError
from model_code.project import Project
from tests.model_code.collection.follow.places import (
    KEY,
    RETRIEVER,
    change,
    follow,
    held_folders,
    publish_to,
    require_intact,
    searches,
)


@pytest.fixture
def target(tmp_path) -> str:
    return str(tmp_path / "shared")


@pytest.fixture
def reader(own, target, tmp_path) -> Follower:
    """A follower of a published collection, which it holds."""
    publish_to(own, target)
    follower = follow(tmp_path / "copy", target)
    follower.update()
    return follower


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_follower_equals_writer_after_each_publication(own, tmp_path, kind):
    target = str(tmp_path / "shared") if kind == "folder" else f"memory://{uuid.uuid4().hex}"
    publish_to(own, target)
    follower = follow(tmp_path / "copy", target)
    follower.update()
    assert searches(follower.project) == searches(own)

    change(own, {"added": "word1 word2 word3", "d05": "word7 word8"}, deletes=["d06"])
    publish_to(own, target)
    assert follower.update()

    require_intact(follower.project)
    assert searches(follower.project) == searches(own)


def test_follower_sees_nothing_before_publication(own, reader):
    before = searches(reader.project)
    change(own, {"added": "word1 word2"})

    assert not reader.update()

    assert searches(reader.project) == before


def test_only_new_folders_are_transferred(own, reader, target, monkeypatch):
    change(own, {"added": "word1 word2"})
    fetched = []
    download = SharedStorage.download
    monkeypatch.setattr(
        SharedStorage,
        "download",
        lambda self, name, path: (fetched.append(name), download(self, name, path)),
    )

    report = publish_to(own, target)
    reader.update()

    assert report.uploaded == 1
    assert {name.split("/")[2].split("-")[0] for name in fetched} == {"000001"}


def test_publishing_twice_changes_nothing(own, target):
    first = publish_to(own, target)

    second = publish_to(own, target)

    assert not second.is_new
    assert second.uploaded == 0
    assert second.head == first.head


def test_compaction_and_revert_are_followed(own, reader, target):
    change(own, {"added": "word1 word2"}, deletes=["d03"])
    LiveIndex(own).compact()
    publish_to(own, target)
    reader.update()
    assert searches(reader.project) == searches(own)

    LiveIndex(own).revert(0)
    publish_to(own, target)
    reader.update()

    assert searches(reader.project) == searches(own)


def test_older_head_is_refused(own, reader, target, tmp_path):
    head = tmp_path / "shared/head.json"
    old = head.read_bytes()
    change(own, {"added": "word1 word2"})
    publish_to(own, target)
    reader.update()
    head.write_bytes(old)

    with pytest.raises(FreshetError, match="number 1, which is older than 2"):
        reader.update()

    assert searches(reader.project) == searches(own)


def test_head_from_before_an_erasure_is_refused(own, reader, target):
    storage = SharedStorage(target)
    erase_documents(LiveIndex(own), ["absent"])
    change(own, {"added": "word1"})
    publish_to(own, target)
    reader.update()
    head = read_head(storage, KEY)
    write_head(storage, KEY, replace(head, sequence=head.sequence + 1, erasures=0))

    with pytest.raises(FreshetError, match="before an erasure"):
        reader.update()


def test_changed_head_is_refused(reader, tmp_path):
    head = tmp_path / "shared/head.json"
    content = json.loads(head.read_text())
    content["sequence"] = 99
    head.write_text(json.dumps(content))

    with pytest.raises(FreshetError, match="another key"):
        reader.update()


def test_head_of_another_key_is_refused(own, target, tmp_path):
    publish(own, target, b"quite another key")

    with pytest.raises(FreshetError, match=f"another key than {KEY_VARIABLE}"):
        follow(tmp_path / "copy", target).update()


def test_torn_head_is_refused(reader, tmp_path):
    head = tmp_path / "shared/head.json"
    head.write_bytes(head.read_bytes()[:100])

    with pytest.raises(FreshetError, match="is torn"):
        reader.update()


@pytest.mark.parametrize("name", ["documents.safetensors", "manifest.json"])
def test_changed_file_is_refused_and_fetched_later(own, reader, target, tmp_path, name):
    before = searches(reader.project)
    change(own, {"added": "word1 word2"})
    publish_to(own, target)
    path = next((tmp_path / f"shared/generations/{RETRIEVER}").glob(f"000001-*/{name}"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1", b"2"))

    with pytest.raises(Damaged, match=f"{name} was changed"):
        reader.update()
    assert searches(reader.project) == before

    path.write_bytes(content)
    reader.update()
    assert searches(reader.project) == searches(own)


def test_second_writer_is_refused(own, reader, target, tmp_path):
    other = copy_of(own, tmp_path / "other")

    with pytest.raises(FreshetError, match="written by another project"):
        publish_to(other, target)


def test_writer_that_was_overtaken_is_refused(own, reader, target, tmp_path):
    other = copy_of(own, tmp_path / "other")
    publish_to(other, target, take_over=True)

    with pytest.raises(FreshetError, match="one machine writes"):
        publish_to(own, target)


def test_new_epoch_has_to_be_accepted(own, reader, target, tmp_path):
    other = copy_of(own, tmp_path / "other")
    change(other, {"added": "word1 word2"})
    epoch = publish_to(other, target, take_over=True).head.epoch
    with pytest.raises(FreshetError, match=f"--accept-epoch {epoch}"):
        reader.update()

    follower = follow(tmp_path / "copy", target, accept_epoch=epoch)
    follower.update()

    assert searches(follower.project) == searches(other)


def copy_of(project: Project, root) -> Project:
    import shutil

    ignored = shutil.ignore_patterns("publishing", "ledger*")
    return Project(shutil.copytree(project.root, root, ignore=ignored))


def test_folders_stay_until_the_slowest_follower_has_moved(own, reader, target, tmp_path):
    slow = follow(tmp_path / "slow", target, name="slow")
    publish_two_additions(own, target)
    reader.update()
    slow.update()
    LiveIndex(own).compact()
    assert publish_to(own, target).deleted == 0
    reader.update()
    assert publish_to(own, target).deleted == 0

    slow.update()

    assert publish_to(own, target).deleted > 0


def publish_two_additions(project: Project, target: str) -> None:
    """Publish a generation of two added segments, which a compaction replaces."""
    change(project, {"added": "word1"})
    change(project, {"added too": "word2"})
    publish_to(project, target)


def test_follower_without_sign_of_life_is_not_waited_for(own, reader, target, monkeypatch):
    publish_two_additions(own, target)
    reader.update()
    monkeypatch.setattr("model_code.collection.follow.head.FOLLOWER_EXPIRY_SECONDS", -1.0)
    LiveIndex(own).compact()

    assert publish_to(own, target).deleted > 0


def test_outdated_folders_leave_the_follower(own, reader, target):
    publish_two_additions(own, target)
    reader.update()
    LiveIndex(own).compact()
    publish_to(own, target)

    reader.update()

    head = read_head(SharedStorage(target), KEY)
    assert held_folders(reader) == set(head.folders)


def test_erased_text_is_in_no_file_of_storage_and_followers(own, reader, target, tmp_path):
    change(own, {"private": "a telephone number: 1234567"})
    publish_to(own, target)
    reader.update()
    erase_documents(LiveIndex(own), ["private"])

    publish_to(own, target)
    assert files_with(tmp_path / "shared", b"private") == []
    (registration,) = read_registrations(SharedStorage(target), KEY)
    assert registration.erasures == 0
    reader.update()

    assert files_with(tmp_path / "copy", b"private") == []
    (registration,) = read_registrations(SharedStorage(target), KEY)
    assert registration.erasures == read_head(SharedStorage(target), KEY).erasures > 0


def files_with(folder, text: bytes) -> list[str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in paths if text in path.read_bytes()]


def test_writer_waits_for_no_follower_that_holds_erased_text(own, reader, target, tmp_path):
    change(own, {"private": "a telephone number: 1234567"})
    publish_to(own, target)
    reader.update()
    erase_documents(LiveIndex(own), ["private"])

    report = publish_to(own, target)

    assert report.deleted > 0
    assert "reader: 1 behind, and still holds erased documents" in str(report)


class Crash(BaseException):
    """Stands for a process that was killed."""


def crash_at(monkeypatch, operation: int) -> None:
    """Raise at the n-th operation of a follower that changes a file."""
    done = 0

    def counted(function):
        def call(*arguments, **options):
            nonlocal done
            done += 1
            if done == operation:
                raise Crash
            return function(*arguments, **options)

        return call

    for name in ("write_text", "write_json", "fsync_tree", "set_default_retriever"):
        monkeypatch.setattr(follower_module, name, counted(getattr(follower_module, name)))
    for name in ("download", "write"):
        monkeypatch.setattr(SharedStorage, name, counted(getattr(SharedStorage, name)))


def test_follower_may_die_at_any_operation(own, reader, target, monkeypatch, tmp_path):
    """After each death a search answers from the old generation or from the new one."""
    old = searches(reader.project)
    change(own, {"added": "word1 word2", "d05": "word7 word8"}, deletes=["d06"])
    publish_to(own, target)
    new = searches(own)
    assert new != old

    deaths = 0
    for operation in range(1, 60, 2):
        with monkeypatch.context() as patch:
            crash_at(patch, operation)
            try:
                follow(tmp_path / "copy", target).update()
                break
            except Crash:
                deaths += 1
        require_intact(reader.project)
        assert searches(reader.project) in (old, new)

    assert deaths > 5
    follow(tmp_path / "copy", target).update()
    assert searches(reader.project) == new


def test_first_copy_may_be_interrupted(own, target, tmp_path, monkeypatch):
    publish_to(own, target)
    with monkeypatch.context() as patch:
        crash_at(patch, 6)
        with pytest.raises(Crash):
            follow(tmp_path / "copy", target).update()

    follower = follow(tmp_path / "copy", target)
    follower.update()

    assert searches(follower.project) == searches(own)


def test_interrupted_publication_is_not_seen(own, reader, target, monkeypatch):
    before = searches(reader.project)
    change(own, {"added": "word1 word2"})
    with monkeypatch.context() as patch:
        patch.setattr(SharedStorage, "upload", stop_at_third_file())
        with pytest.raises(Crash):
            publish_to(own, target)
    assert not reader.update()
    assert searches(reader.project) == before

    publish_to(own, target)
    reader.update()

    assert searches(reader.project) == searches(own)


def stop_at_third_file():
    upload = SharedStorage.upload
    done = 0

    def call(self, source, name):
        nonlocal done
        done += 1
        if done == 3:
            raise Crash
        upload(self, source, name)

    return call


def test_publication_that_died_after_the_head_goes_on(own, reader, target, monkeypatch):
    change(own, {"added": "word1 word2"})
    with monkeypatch.context() as patch:
        patch.setattr("model_code.collection.follow.publish._delete_unneeded", die)
        with pytest.raises(Crash):
            publish_to(own, target)

    report = publish_to(own, target)

    assert not report.is_new
    reader.update()
    assert searches(reader.project) == searches(own)


def die(*_) -> None:
    raise Crash


def test_reader_of_newest_head_has_no_lag(reader):
    lag = reader.lag()

    assert lag.behind == 0
    assert lag.seconds == 0.0


def test_lag_is_reported(own, reader, target, monkeypatch):
    change(own, {"added": "word1 word2"})
    head = publish_to(own, target).head

    def fail_to_download(*arguments):
        raise OSError("no")

    def forty_seconds_later():
        return head.published + 40.0

    monkeypatch.setattr(SharedStorage, "download", fail_to_download)
    with pytest.raises(OSError, match="no"):
        reader.update()
    monkeypatch.setattr("time.time", forty_seconds_later)
    lag = reader.lag()

    assert lag.sequence == 1
    assert lag.behind == 1
    assert lag.seconds == pytest.approx(40.0)


def test_lost_storage_is_one_line_and_searches_go_on(own, reader, tmp_path):
    (tmp_path / "shared").rename(tmp_path / "away")

    with pytest.raises(FreshetError, match="nothing is published at") as raised:
        reader.update()

    assert "\n" not in str(raised.value)
    assert searches(reader.project) == searches(own)


def test_copy_refuses_changes(reader):
    with pytest.raises(FreshetError, match="only its writer can be changed"):
        open_ledger(reader.project)
    with pytest.raises(FreshetError, match="only its writer can be changed"):
        LiveIndex(reader.project).compact()


def test_folder_with_other_files_is_no_copy(own, target, tmp_path):
    publish_to(own, target)

    with pytest.raises(FreshetError, match="is not empty; name a new folder"):
        follow(own.root, target)


def test_copy_of_one_place_does_not_follow_another(reader, tmp_path):
    with pytest.raises(FreshetError, match="follows .*shared, not .*elsewhere"):
        follow(tmp_path / "copy", str(tmp_path / "elsewhere"))


def test_private_settings_are_not_published(own, target, tmp_path):
    own.params_file.write_text(
        "retrievers: {r: {}}\nlive: {webhook: 'https://hooks.example/secret'}\nseed: 7\n"
    )

    publish_to(own, target)
    follower = follow(tmp_path / "copy", target)
    follower.update()

    text = follower.project.params_file.read_text()
    assert "secret" not in text
    assert "seed: 7" in text


@pytest.mark.parametrize("key", ["", "short"])
def test_missing_key_says_how_to_make_one(key, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, key)

    with pytest.raises(SettingsError, match="openssl rand -hex 32"):
        read_key()


@pytest.mark.parametrize("name", ["../reader", ".reader"])
def test_name_of_follower_is_a_file_name(target, tmp_path, name):
    with pytest.raises(SettingsError, match="--follow-name NAME"):
        follow(tmp_path / "copy", target, name=name)


def test_temporary_files_of_killed_processes_are_passed_over(own, reader, target, tmp_path):
    of_follower = tmp_path / "shared/followers/.reader.json.4fc2_x"
    of_writer = tmp_path / "shared/heads/.00000002.json.81ab"
    of_follower.touch()
    of_writer.touch()
    change(own, {"added": "word1 word2"})

    publish_to(own, target)
    reader.update()

    assert searches(reader.project) == searches(own)
    assert not of_follower.exists()
    assert not of_writer.exists()


def test_unknown_protocol_names_the_extra():
    with pytest.raises(FreshetError, match=r"pip install -e '\.\[s3\]'") as raised:
        SharedStorage("nowhere://bucket")

    assert "\n" not in str(raised.value)


def test_damaged_generation_is_not_published(own, target):
    folder = own.live / RETRIEVER / "generations/000000"
    path = folder / "documents.safetensors"
    path.write_bytes(path.read_bytes() + b"x")

    with pytest.raises(Damaged, match="documents.safetensors was changed"):
        publish_to(own, target)

    assert read_head(SharedStorage(target), KEY) is None


def test_erasure_is_seen_after_the_state_was_lost(own, reader, target, tmp_path):
    change(own, {"private": "a telephone number: 1234567", "former": "another number"})
    erase_documents(LiveIndex(own), ["former"])
    publish_to(own, target)
    (own.state / "publishing/erasure").unlink()
    reader.update()
    erase_documents(LiveIndex(own), ["private"])

    publish_to(own, target)

    assert files_with(tmp_path / "shared", b"private") == []
    reader.update()
    assert files_with(tmp_path / "copy", b"private") == []
