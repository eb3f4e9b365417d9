"""Every stage's contract, under its name: what its output promises to the stages and people that
read it.

A contract reads a finished output (`context.output`), the inputs that it was made from and its
settings; it changes nothing. `orchestration.pipeline.run_stage` asks it before an output is moved
into place, and Dagster's checks ask the same function again of what lies there. Stages do not
import it, so no stage's row in the table lists this code: it decides whether an output is
published, never what is in it, and another rule must not train every encoder anew. The price is
that what is already in place is not asked by DVC; Dagster asks it in the next build, also where
nothing ran. Rules of one kind of retriever lie in its package (`contract.py`), which the table does
list: an edit there trains retrievers again.
"""

from __future__ import annotations

from collections.abc import Callable

from safetensors import SafetensorError

from model_code.context import StageContext, left_out_reason
from model_code.contracts.corpus import check_acceptance, check_corpus, check_pseudo_queries
from model_code.contracts.evaluation import (
    check_baselines,
    check_comparison,
    check_evaluate,
    check_fuse,
)
from model_code.contracts.models import (
    check_hierarchy,
    check_index_folder,
    check_query_generator,
    check_train,
)
from model_code.errors import FreshetError
from model_code.retrieval.kinds import DEFAULT_KIND

CONTRACTS: dict[str, Callable[[StageContext], None]] = {
    "corpus": check_corpus,
    "query_generator": check_query_generator,
    "pseudo_queries": check_pseudo_queries,
    "acceptance": check_acceptance,
    "base_index": lambda context: check_index_folder(
        context.output / "index", DEFAULT_KIND, context
    ),
    "hierarchy": check_hierarchy,
    "train": check_train,
    "index": lambda context: check_index_folder(
        context.output / "index", context.settings["retriever"].kind, context
    ),
    "baselines": check_baselines,
    "evaluate": check_evaluate,
    "fuse": check_fuse,
    "comparison": check_comparison,
}


# cut short, a missing key
UNREADABLE = (OSError, EOFError, LookupError, TypeError, ValueError, SafetensorError)


def check(stage: str, context: StageContext) -> None:
    """FreshetError, in one line, if the output breaks the contract of the stage of that name, or
    cannot be read.

    A stage that was left out promises nothing.
    """
    if left_out_reason(context.output):
        return
    try:
        CONTRACTS[stage](context)
    except (FreshetError, *UNREADABLE) as error:
        # which of several equal parts
        place = "".join(f"{note}: " for note in getattr(error, "__notes__", []))
        unread = f"it cannot be read: {type(error).__name__}: {' '.join(str(error).split())}"
        raise FreshetError(
            f"{place}{error if isinstance(error, FreshetError) else unread}"
        ) from error
