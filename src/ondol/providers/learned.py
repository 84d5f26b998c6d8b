"""What does a server take only, as it turned out when it refused something else?

Servers with the same API differ, and so do the models behind one. What is learned holds for one model in one process:
after a restart the first attempt may be refused again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(slots=True)
class Learned:
    """The next attempt heeds it.

    ``nine``: ids of calls with nine letters and digits, as models of Mistral do, whoever serves them. ``uncounted``: no
    wish to be told the tokens of a stream. ``alternate``: no two messages of the user one after the other, which a note
    of the runtime is, too. ``no_system``: no message of the system. ``no_images``: no images at all. ``no_reasoning``:
    no reasoning of earlier answers. ``all_reasoning``: no answer with calls that has none, which that of another model
    has not. ``worded``: none without a text, which may be empty. ``excused``: no call without a signature of Google's,
    which that of another model has not, or a word of excuse in its place. ``spoiled``: not these images, and nothing of
    what was signed in these parts of answers, by their digests.
    """

    nine: bool = False
    uncounted: bool = False
    alternate: bool = False
    no_system: bool = False
    no_images: bool = False
    no_reasoning: bool = False
    all_reasoning: bool = False
    worded: bool = False
    excused: bool = False
    spoiled: set[str] = field(default_factory=set)

    def learns(self, error: Exception, images: set[str], signed: set[str]) -> bool:
        """Is there news in it? ``images`` are those that were sent and may be left out, ``signed`` the parts of answers
        that were sent with what only this provider reads."""
        said = str(error)
        news = [name for name, words in _REFUSALS.items() if not getattr(self, name) and words.search(said)]
        for name in news:
            setattr(self, name, True)
            if name in _OTHERWISE:
                setattr(self, _OTHERWISE[name], False)
        spoiled = images if _SPOILED.search(said) else signed if _UNREADABLE.search(said) else set()
        if news or spoiled <= self.spoiled:
            return bool(news)
        self.spoiled |= spoiled
        return True


_REFUSALS = {
    name: re.compile(words, re.IGNORECASE | re.DOTALL)
    for name, words in {
        "nine": r"tool call ids? .*\blength (?:of )?9\b",
        "uncounted": "stream_options|include_usage",
        "alternate": r"roles must\s+alternate|should alternate|successive user",
        "no_system": "system role (?:is )?not supported|only user and assistant roles are supported"
        "|does not support 'system'|developer instruction is not enabled",
        "no_images": "not support (?:image|vision)|image input is not supported|that support image input"
        "|image_url is only supported|unknown variant .?image_url|unexpected item type in content|at most 0 image"
        "|required for image input",
        "no_reasoning": "^(?=.*messages).*(?:reasoning.{0,80}(?:unsupported|not supported|not permitted)"
        "|(?:unsupported|not permitted|extra_forbidden).{0,200}reasoning)",
        "worded": r"content.{0,40}(?:must be a string|should be a valid string|expected a string, got null)",
        "excused": "missing an? .?thought.signature",
        "all_reasoning": r"(?:reasoning_content|content\[\]\.thinking).{0,60}(?:missing|must be passed back)"
        "|missing .{0,3}reasoning_content",
    }.items()
}
_OTHERWISE = {"no_reasoning": "all_reasoning", "all_reasoning": "no_reasoning"}  # another model behind the same address
_SPOILED = re.compile(
    "could not process image|not represent a valid image|decode image|process input image|image exceeds"
    "|image dimensions|unsupported image|invalid_image|image_parse_error",
    re.IGNORECASE,
)
#: As other accounts and other deployments behind the same address say of what was signed by the one before.
_UNREADABLE = re.compile(
    "invalid .{0,3}(?:signature|data).{0,3} in .{0,3}(?:redacted_)?thinking"
    "|thinking.{0,3} blocks .{0,60}cannot be modified"
    "|encrypted.content.{0,80}could not be|invalid_encrypted_content"
    "|thought.signature is not valid|(?:corrupted|invalid) thought.signature"
    "|'reasoning' was provided without|without its required 'reasoning'|item with id 'rs_.{0,80} not found",
    re.IGNORECASE | re.DOTALL,
)
