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
from freshet.integrations.mcp import main, make_server
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


@pytest.fixture
def store(opened):
    """A vector store to which a text with metadata was added."""
    store = FreshetVectorStore(opened)
    metadata = {"title": "Own", "date": "2024-05-01", "kind": "note"}
    ids = store.add_texts(["A text of its own."], [metadata], ids=["own"])
    assert ids == ["own"]
    yield store
    store.delete(["own", "never.there"])


def test_vector_store_uses_filter_and_metadata(store):
    (found,) = store.similarity_search("text", 5, {"kind": "note"})

    assert found.id == "own"
    assert found.page_content == "A text of its own."
    assert found.metadata == {"title": "Own", "date": "2024-05-01T00:00:00+00:00", "kind": "note"}


def test_vector_store_refuses_empty_texts(store):
    with pytest.raises(freshet.InvalidRequest, match="row 1"):
        store.add_texts([""])


def test_vector_store_deletes_texts(store):
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


@pytest.fixture
def mcp_server(opened):
    """An MCP server of the project."""
    return make_server(opened)


def call_tool(server, name, **arguments):
    """Call a tool of an MCP server and return its result."""
    return asyncio.run(server.call_tool(name, arguments)).structured_content


def test_mcp_server_has_two_tools(mcp_server):
    tools = asyncio.run(mcp_server.list_tools())

    assert [tool.name for tool in tools] == ["search", "get"]


def test_mcp_server_searches(mcp_server):
    result = call_tool(mcp_server, "search", text="split a string into words", k=1)

    (hit,) = result["result"]
    assert hit["document_id"] == "str.split"
    assert hit["text"] == DOCUMENTS["str.split"]


def test_mcp_server_reads_documents(mcp_server):
    result = call_tool(mcp_server, "get", document_id="str.split")

    document = json.loads(json.dumps(result.get("result", result)))
    assert document["text"] == DOCUMENTS["str.split"]


def test_mcp_server_without_address_explains_its_usage():
    with pytest.raises(SystemExit, match="usage: .* http://127.0.0.1:8765"):
        main([])


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
