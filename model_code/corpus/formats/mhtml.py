"""Read MHTML, in which browsers save a page with its parts in one file."""

from __future__ import annotations

import email
import email.policy

from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.html import read_html
from model_code.corpus.rows import RowError


def read_mhtml(data: bytes) -> Extraction:
    """Read the page and the pages in its frames. Pictures and styles hold no text.

    Raises:
        RowError: If the file holds no page.
    """
    message = email.message_from_bytes(data, policy=email.policy.default)
    pages: list[Extraction] = []
    for part in message.walk():
        payload = part.get_payload(decode=True)
        if part.get_content_type() == "text/html" and isinstance(payload, bytes):
            pages.append(read_html(payload))
    if not pages:
        raise RowError("unreadable file", "it holds no page")

    extraction = pages[0]
    all_text = list(extraction.all_text or ())
    for frame in pages[1:]:
        extraction.text += f"\n\n{frame.text}"
        extraction.left_out.extend([*frame.left_out, frame.title])
        all_text.extend(frame.all_text or ())
        for remark in frame.remarks:
            extraction.note(remark.kind, remark.detail, remark.share)
    extraction.all_text = all_text
    return extraction
