"""Guards the integrations: LangChain's own suites for retrievers and vector stores, LlamaIndex,
MCP, and that every example of the page on applications runs.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from langchain_tests.integration_tests import (
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)

import freshet
from freshet.integrations.langchain import FreshetRetriever, FreshetVectorStore
from freshet.integrations.llama_index import FreshetNodes
from freshet.integrations.mcp import make_server
from tests.model_code.collection.conftest import DOCUMENTS

PAGE = Path(__file__).parents[2] / "docs" / "application.md"


@pytest.fixture(scope="module")
def opened(project):
    with freshet.Project.open(project.root) as opened:
        yield opened


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _over(self, opened):
        self.opened = opened

    retriever_constructor = FreshetRetriever
    retriever_query_example = "split a string"

    @property
    def retriever_constructor_params(self):
        return {"client": self.opened}


class TestVectorStore(VectorStoreIntegrationTests):
    has_async = True

    @pytest.fixture
    def vectorstore(self, opened):
        """The collection without its documents, which are there again afterwards."""
        before = [
            {"_id": one.document_id, "title": one.title, "text": one.text, "fields": one.fields}
            for one in opened.documents()
        ]
        opened.delete([row["_id"] for row in before])
        yield FreshetVectorStore(opened)
        opened.add(before)
        others = {one.document_id for one in opened.documents()} - DOCUMENTS.keys()
        if others:
            opened.delete(others)


def test_vector_store_uses_filter_and_metadata(opened):
    store = FreshetVectorStore(opened)
    told = {"title": "Own", "date": "2024-05-01", "kind": "note"}
    (name,) = store.add_texts(["A text of its own."], [told], ids=["own"])
    (found,) = store.similarity_search("text", 5, {"kind": "note"})
    assert (found.id, found.page_content) == (name, "A text of its own.")
    assert found.metadata == {"title": "Own", "date": "2024-05-01T00:00:00+00:00", "kind": "note"}
    with pytest.raises(freshet.InvalidRequest, match="row 1"):
        store.add_texts([""])
    store.delete(["own", "never.there"])
    assert store.get_by_ids(["own"]) == []


def test_vector_store_retrieves_in_all_search_types(opened):
    store = FreshetVectorStore(opened)
    question = "split a string"
    plain = store.as_retriever(search_kwargs={"k": 3}).invoke(question)

    diverse = store.as_retriever(search_type="mmr", search_kwargs={"k": 3}).invoke(question)
    same = store.as_retriever(search_type="mmr", search_kwargs={"k": 3, "lambda_mult": 1.0})
    scored = store.similarity_search_with_relevance_scores(question, 9)
    threshold = (scored[1][1] + scored[2][1]) / 2
    options = {"k": 9, "score_threshold": threshold}
    fitting = store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs=options
    ).invoke(question)

    assert diverse[0].id == plain[0].id
    assert len({document.id for document in diverse}) == 3
    assert [document.id for document in same.invoke(question)] == [
        document.id for document in plain
    ]
    assert [document.id for document in fitting] == [document.id for document in plain[:2]]
    assert all(0 <= score <= 1 for _, score in scored)


def test_retriever_streams_and_batches(opened):
    retriever = FreshetRetriever(client=opened, k=2)

    (streamed,) = retriever.stream("split a string")

    assert [document.id for document in streamed] == ["str.split", "re.split"]
    assert retriever.batch(["split a string"]) == [streamed]


@pytest.mark.parametrize("method", ["delete", "get_by_ids", "add_texts"])
def test_vector_store_refuses_text_for_list(opened, method):
    with pytest.raises(freshet.errors.InvalidRequest, match="is the text 'ab', but it must be a"):
        getattr(FreshetVectorStore(opened), method)("ab")


def test_llama_index_gets_passages_with_their_scores(opened):
    nodes = FreshetNodes(opened, 2, filters={"package": ["str", "re"]}).retrieve("split a string")
    hits = opened.search("split a string", 2, filters={"package": ["str", "re"]}).hits
    assert [(node.node.text, node.score) for node in nodes] == [
        (hit.text, hit.score) for hit in hits
    ]
    assert nodes[0].node.metadata["package"] in ("str", "re")


def test_an_mcp_server_searches_and_reads(opened):
    server = make_server(opened)
    assert [tool.name for tool in asyncio.run(server.list_tools())] == ["search", "get"]

    def call(name, **arguments):
        return asyncio.run(server.call_tool(name, arguments)).structured_content

    (first,) = call("search", text="split a string into words", k=1)["result"]
    assert (first["document_id"], first["text"]) == ("str.split", DOCUMENTS["str.split"])
    read = call("get", document_id="str.split")
    assert json.loads(json.dumps(read.get("result", read)))["text"] == DOCUMENTS["str.split"]


def test_every_example_of_the_page_runs(project, url):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, object] = {
        "model": lambda prompt: f"See [1]. ({len(prompt)} characters were read.)"
    }
    for example in examples:
        own = example.replace("http://127.0.0.1:8765", url).replace(
            '"path/to/project"', repr(str(project.root))
        )
        exec(own, names)
    assert len(examples) >= 6
    assert names["cited"] == ["linear.solve"]
