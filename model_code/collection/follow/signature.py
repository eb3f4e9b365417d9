"""Sign and verify heads and registrations by HMAC-SHA256.

The writer and all followers share one secret key.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from typing import Any

from model_code.errors import FreshetError, SettingsError
from model_code.files import canonical_json

# Environment variable with the secret key that the writer and its followers share.
KEY_VARIABLE = "FRESHET_FOLLOW_KEY"

# Least number of characters of the key.
MIN_KEY_CHARACTERS = 16

# Name under which a JSON object holds its own signature.
SIGNATURE = "signature"


def read_key() -> bytes:
    """Return the shared key.

    Raises:
        SettingsError: If the environment variable is not set, or the key is too short.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if len(key) < MIN_KEY_CHARACTERS:
        raise SettingsError(
            f"{KEY_VARIABLE} has {len(key)} characters, but must have at least "
            f"{MIN_KEY_CHARACTERS}; set the same random key for the writer and all followers, "
            "such as the output of: openssl rand -hex 32"
        )
    return key.encode()


def sign(content: Mapping[str, Any], key: bytes) -> bytes:
    """Return the content as JSON with its signature.

    >>> verify(sign({"a": 1}, b"secret"), b"secret", "example")
    {'a': 1}
    """
    signed = dict(content)
    signed[SIGNATURE] = _signature(content, key)
    return canonical_json(signed).encode()


def verify(text: bytes, key: bytes, label: str) -> dict[str, Any]:
    """Return the content of signed JSON, without the signature.

    Args:
        text: The JSON.
        key: The shared key.
        label: Name of the signed file, for the error message.

    Raises:
        FreshetError: If the JSON is torn, or signed with another key.
    """
    try:
        content = json.loads(text)
        signature = content.pop(SIGNATURE)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FreshetError(
            f"{label} is torn or has no signature; nothing of it is used: publish it again"
        ) from None
    if not hmac.compare_digest(str(signature), _signature(content, key)):
        raise FreshetError(
            f"{label} is signed with another key than {KEY_VARIABLE}, or was changed; nothing of "
            "it is used: set the key of the writer"
        )
    return content


def _signature(content: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, canonical_json(dict(content)).encode(), "sha256").hexdigest()
