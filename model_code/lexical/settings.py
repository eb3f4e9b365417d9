"""What the user may choose about a lexical retriever: the group `lexical` of a retriever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require, require_at_least

Head = Literal["auto", "mlm", "closed_form"]
Term = Literal["full", "beta", "alpha"]
MainSearch = Literal["full", "alpha", "beta", "beta_own", "beta_rerank"]


@dataclass(frozen=True)
class LexicalSettings:
    """How texts become weights over the vocabulary, how that is trained, and how it is searched.

    Below, E(x) are the weights that the encoder gives a text, and T(x) is 1 for each token of the text itself.

    Encoder
      head: "mlm" takes the checkpoint's own masked-language-model head; "closed_form" solves for one (seconds) from the
        passages; "auto" is "mlm" where the checkpoint has such a head, else "closed_form".
      top_k: weights kept in training, query and passage alike; index_top_k: of an indexed passage; query_top_k: of a
        query in search (16 to 128 are at least as good as the paper's 768).

    Training
      first_stage_steps: of training E(q) against the fixed T(p) of many passages, cheap since no passage is encoded
        (0: none; 90 is a good start where tokens alone are searched; before the whole loss it did harm);
        first_stage_batch queries a step; first_stage_passages more passages a step as negatives of all.
      semi_parametric: whether the stage with the whole loss follows; without it the first stage is all.
      terms: of that loss. [full] alone leaves the tokens out, as the paper's ablation "without the semi-parametric
        objective" does; "beta" then has learned nothing of T(p).
      first_stage_learning_rate: of its encoder.
      score_scale: "measured" divides the scores of each term of the loss, and of each level of the hierarchy loss, by a
        quarter of their standard deviation before training; "raw" is the paper's, at home with a masked language model
        and many epochs.
      in_training_negatives: m; negatives are drawn from the m best passages of a beta search with the encoder of that
        very step, negatives_per_query of them a query, in place of `negatives` (0: off). Passages that hold one of the
        query's answers are no negatives; of a query without answers, it is those of the positive's leaf of the
        hierarchy, and those that score above in_training_margin times the positive.
      in_training_from: share of the steps after which it begins (the paper's second half: .5).

    Search
      search: the main one. "full" E(q).E(p); "alpha" T(q).E(p); "beta" E(q).T(p), from the token index alone;
        "beta_own" is beta without expansion: only the query's own tokens, weighted; "beta_rerank" takes the best
        rerank_depth of beta and ranks them by "full". The others are evaluated beside it.
      embeddings: whether the index holds E(p) of every passage, which "full" and "alpha" need; without, it holds the
        texts, and re-ranking embeds passages as they come and keeps the last few thousand.
    """

    head: Head = "auto"
    top_k: int = 256
    index_top_k: int = 256
    query_top_k: int = 64

    first_stage_steps: int = 0
    first_stage_batch: int = 192
    first_stage_passages: int = 2048
    first_stage_learning_rate: float = 1e-4
    semi_parametric: bool = True
    terms: tuple[Term, ...] = ("full", "beta", "alpha")
    score_scale: Literal["measured", "raw"] = "measured"
    in_training_negatives: int = 0
    in_training_from: float = 0.5
    in_training_margin: float = 1.0

    search: MainSearch = "beta_own"
    rerank_depth: int = 100
    embeddings: bool = True

    def __post_init__(self) -> None:
        """Check ranges."""
        require_at_least(1, self, "top_k", "index_top_k", "query_top_k", "first_stage_batch", "rerank_depth")
        require_at_least(0, self, "first_stage_steps", "first_stage_passages", "in_training_negatives")
        require_at_least(0, self, "first_stage_learning_rate")
        require(self.in_training_margin > 0, f"in_training_margin is {self.in_training_margin}, but must be above 0")
        require(
            0 <= self.in_training_from < 1,
            f"in_training_from is {self.in_training_from}, but is a share of the steps: at least 0, below 1",
        )
        require(
            self.embeddings or self.search not in ("full", "alpha"),
            f"search: {self.search} reads the passages' embeddings, and embeddings is false; set it true, or take beta",
        )
        require(
            len(self.terms) > 0 and len(set(self.terms)) == len(self.terms),
            f"terms is {list(self.terms)}, but names the parts of the loss, each once: such as [full, beta, alpha]",
        )
        require(
            self.semi_parametric or self.first_stage_steps > 0,
            "semi_parametric is false and first_stage_steps 0, so that nothing is trained; set first_stage_steps (90)",
        )
