"""What the user may choose about a lexical retriever: the group `lexical` of a retriever."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Constant, Field, Settings, require

Head = Literal["auto", "mlm", "closed_form"]
Term = Literal["full", "beta", "alpha"]
MainSearch = Literal["full", "alpha", "beta", "beta_own", "beta_rerank"]


class LexicalSettings(Settings):
    """How texts become weights over the vocabulary, how that is trained, and how it is searched.

    Below, E(x) are the weights that the encoder gives a text, and T(x) is 1 for each token of the text itself.
    """

    head: Head = Field(
        "auto",
        description="mlm: the checkpoint's own masked-language-model head; closed_form solves for one (seconds) from "
        "the passages; auto: mlm where the checkpoint has such a head",
    )
    top_k: int = Field(256, ge=1, description="weights kept in training, of query and passage alike")
    index_top_k: int = Field(256, ge=1, description="weights of an indexed passage")
    query_top_k: int = Field(
        64, ge=1, description="weights of a query in search; 16 to 128 are at least as good as the paper's 768"
    )

    first_stage_steps: int = Field(
        0,
        ge=0,
        description="of training E(q) against the fixed T(p) of many passages, cheap since no passage is encoded; 90 "
        "is a good start where tokens alone are searched; before the whole loss it did harm",
    )
    first_stage_batch: int = Constant(192, ge=1, description="queries of such a step")
    first_stage_passages: int = Constant(2048, ge=0, description="more passages of such a step, as negatives of all")
    first_stage_learning_rate: float = Constant(1e-4, ge=0, description="of its encoder")
    semi_parametric: bool = Field(
        True, description="whether the stage with the whole loss follows; without it the first stage is all"
    )
    terms: tuple[Term, ...] = Constant(
        ("full", "beta", "alpha"),
        description="of the whole loss; [full] alone is the paper's ablation without the semi-parametric objective",
    )
    score_scale: Literal["measured", "raw"] = Constant(
        "measured",
        description="measured divides scores by a quarter of their deviation before training; raw is the paper's, at "
        "home with a masked language model and many epochs",
    )
    in_training_negatives: int = Field(
        0,
        ge=0,
        description="m: negatives come from the m best passages of a beta search with the encoder of that step, "
        "negatives_per_query of them a query, in place of `negatives`; 0: off",
    )
    in_training_from: float = Constant(
        0.5, ge=0, lt=1, description="share of the steps after which it begins (the paper's second half)"
    )
    in_training_margin: float = Constant(
        1.0,
        gt=0,
        description="times the positive's score: what scores above may be an answer, where the query names none",
    )

    search: MainSearch = Field(
        "beta_own",
        description="the main one: full E(q).E(p); alpha T(q).E(p); beta E(q).T(p), from the token index alone; "
        "beta_own: beta by the query's own tokens; beta_rerank: the best of beta ranked by full",
    )
    rerank_depth: int = Constant(100, ge=1, description="passages that beta_rerank ranks")
    embeddings: bool = Field(
        True,
        description="whether the index holds E(p) of every passage, which full and alpha need; without, it holds the "
        "texts, and re-ranking embeds passages as they come",
    )

    def check(self) -> None:
        """Refuse searches without what they read, and training of nothing."""
        require(
            self.embeddings or self.search not in ("full", "alpha"),
            f"search: {self.search} reads the passages' embeddings, and embeddings is false; set it true, or take beta",
        )
        require(
            self.semi_parametric or self.first_stage_steps > 0,
            "semi_parametric is false and first_stage_steps 0, so that nothing is trained; set first_stage_steps (90)",
        )
