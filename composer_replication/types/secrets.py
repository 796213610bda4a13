"""Patterns of credentials: tasks that contain one are refused, and imported traces are cleared of them.

There are two sorts. Keys that issuers mark by a prefix or an armour, in the forms that they document, are `certain`. A
literal of high entropy that is given to a name such as `password` or `api_token` is a guess, and so is whatever a header, a URL
or a command line carries where a secret belongs.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from composer_replication.types.plain_text import visible

_NUMBER = r"\d{1,6}[ \t]{0,4}(?:→|\\t|[\t:|-])"
_BETWEEN = rf"(?:[\s\"'\\+,()|>]|\\n|{_NUMBER}|[A-Za-z-]{{1,20}}: [^\n]*\n){{0,200}}+"
"""Line ends, also escaped ones, quotes between lines, the numbers that `cat -n` and agents' tools put before a line, and an
armour's headers."""
_ARMOUR = rf"-----BEGIN [A-Z ]{{0,20}}PRIVATE KEY(?: BLOCK)?-----{_BETWEEN}(?P<key>[A-Za-z0-9+/]{{40}})"
_CERTAIN = (  # kind, what every one of it holds (a text without is not searched), and its form
    ("private key", ("PRIVATE KEY",), _ARMOUR),
    ("AWS access key", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)(?P<key>[A-Z2-7]{16})\b"),
    (
        "GitHub token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_(?P<key>[A-Za-z0-9]{36})|github_pat_(?P<key2>[A-Za-z0-9]{22}_[A-Za-z0-9]{59}))\b",
    ),
    ("GitLab token", ("glpat-",), r"\bglpat-(?P<key>[A-Za-z0-9_-]{20,})"),
    ("Slack token", ("xox",), r"\bxox[abeprs]-(?P<key>[0-9]{8,}-[A-Za-z0-9-]{10,})"),
    ("Google API key", ("AIza",), r"\bAIza(?P<key>[A-Za-z0-9_-]{35})"),
    ("Stripe key", ("k_live_",), r"\b[rs]k_live_(?P<key>[A-Za-z0-9]{20,})"),
    ("OpenAI key", ("T3BlbkFJ",), r"\bsk-(?P<key>[A-Za-z0-9_-]{16,}T3BlbkFJ[A-Za-z0-9_-]{16,})"),
    ("Anthropic key", ("sk-ant-",), r"\bsk-ant-[a-z]+[0-9]{2}-(?P<key>[A-Za-z0-9_-]{80,})"),
    ("OpenRouter key", ("sk-or-v1-",), r"\bsk-or-v1-(?P<key>[0-9a-f]{64})\b"),
    ("Hugging Face token", ("hf_",), r"\bhf_(?P<key>[A-Za-z0-9]{34,})\b"),
    ("PyPI token", ("pypi-",), r"\bpypi-AgEIcHlwaS5vcmc(?P<key>[A-Za-z0-9_-]{50,})"),
    ("npm token", ("npm_",), r"\bnpm_(?P<key>[A-Za-z0-9]{36})\b"),
    ("Groq key", ("gsk_",), r"\bgsk_(?P<key>[A-Za-z0-9]{48,})\b"),
    ("xAI key", ("xai-",), r"\bxai-(?P<key>[A-Za-z0-9]{70,})\b"),
    ("NVIDIA key", ("nvapi-",), r"\bnvapi-(?P<key>[A-Za-z0-9_-]{60,})"),
    ("Replicate token", ("r8_",), r"\br8_(?P<key>[A-Za-z0-9]{37})\b"),
    ("LangSmith key", ("lsv2_",), r"\blsv2_(?:pt|sk)_(?P<key>[0-9a-f]{32}_[0-9a-f]{10})\b"),
    ("Docker token", ("dckr_",), r"\bdckr_[po]at_(?P<key>[A-Za-z0-9_-]{27,})"),
    ("Azure storage key", ("AccountKey",), r"\bAccountKey=(?P<key>[A-Za-z0-9+/]{86}==)"),
    ("Telegram token", (":AA",), r"\b[0-9]{8,10}:(?P<key>AA[A-Za-z0-9_-]{33})(?![A-Za-z0-9_-])"),
    ("DigitalOcean token", ("_v1_",), r"\bdo[opr]_v1_(?P<key>[0-9a-f]{64})\b"),
    ("Databricks token", ("dapi",), r"\bdapi(?P<key>[0-9a-f]{32})(?:-[0-9])?\b"),
    ("Terraform token", (".atlasv1.",), r"\b[A-Za-z0-9]{14}\.atlasv1\.(?P<key>[A-Za-z0-9_=-]{60,70})"),
    ("Slack webhook", ("hooks.slack.com",), r"\bhooks\.slack\.com/(?:services|workflows)/(?P<key>[A-Za-z0-9/_-]{30,})"),
    ("SendGrid key", ("SG.",), r"\bSG\.(?P<key>[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43})\b"),
)
_WORDS = r"(?:passw(?:or)?d|secret|token|api_?key|access_?key|private_?key|credential)"
_NAME = rf"{_WORDS}[\w-]{{0,40}}[\"']?\]?[ \t]{{0,8}}"
_VALUE = r"[A-Za-z0-9+/=_.~!@#$%^&*-]{16,1024}"
"""Bounded, so that a long text full of names takes linear time."""
_QUOTED = (
    rf"(?i:{_NAME})(?::[ \t]?[\w.\[\]| ]{{1,40}}?)?[:=][ \t]{{0,8}}[rbuRBU]{{0,2}}(?P<quote>[\"'])(?P<key>{_VALUE})(?P=quote)"
)
_BARE = rf"(?i:{_NAME})[:=][ \t]{{0,8}}(?P<key>{_VALUE})(?=[ \t]*$|[ \t]+(?:&&|\||;|[\w./-]+(?:[ \t]|$))|[;&])"
_PATTERNS = [(kind, marks, re.compile(pattern)) for kind, marks, pattern in _CERTAIN]
_ASSIGNED, _ASSIGNED_BARE = re.compile(_QUOTED), re.compile(_BARE, re.MULTILINE)
_NAMED, _LITERAL = re.compile(_WORDS, re.IGNORECASE), re.compile(_VALUE)
_PASSWORD_NAME, _SHORT = re.compile(r"passw(?:or)?d|passphrase|pwd", re.IGNORECASE), re.compile(r"\S{8,200}")
_GUESSED = "secret in an assignment"
_LITERAL_WORD = r"[^\s\"'`\\,;|(){}\[\]<>$]"
"""A character of an unquoted word that is neither code nor a placeholder."""
_PASSWORD = r"(?:passw(?:or)?d|passphrase|pwd)"
_OPEN = r"(?:\\?[\"'])?"
"""A quote, perhaps of a text in a text."""
_IN_LOGS = (  # kind, mark (in the lower-cased text), form, condition on the key
    ("JSON web token", "eyj", re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.(?P<key>[\w-]{20,})"), "certain"),
    (
        "authorization header",
        "authorization",
        re.compile(
            rf"(?i:authorization)\\?[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}}{_OPEN}(?i:bearer|basic|token|apikey)[ \t]+"
            rf"(?P<key>[A-Za-z0-9+/=_.~-]{{8,}}+)(?![(\[{{])"
        ),
        "given",
    ),
    (
        "key in a header",
        "-",
        re.compile(
            r"(?i:(?<![\w-])(?:x-(?:[a-z]{1,20}-){0,3}(?:key|token|secret|auth|password)"
            r"|(?:[a-z]{1,20}-){0,2}(?:api|auth|access|private|secret|session|security|subscription)-(?:key|token|secret)))"
            r"(?P<q>\\?[\"'])?[ \t]{0,4}:[ \t]{0,4}"
            r"(?(q)\\?[\"']|(?:\\?[\"'])?)(?P<key>[A-Za-z0-9+/=_.~-]{8,}+)(?![(\[{])"
        ),
        "given",
    ),
    (
        "session in a cookie",
        "cookie:",
        re.compile(r"(?i:cookie:[^\n]{0,300}?(?:sess|sid|auth|token)[\w-]{0,30})=(?P<key>[A-Za-z0-9%._~+/-]{16,})"),
        "random",
    ),
    (
        "password in a URL",
        "://",
        re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://(?P<user>[^\s/:@\"'<>{}$]{0,100}):(?P<key>[^\s/:@\"'<>{}$]{5,200})@"),
        "given",
    ),
    (
        "password of a command",
        "curl",
        re.compile(
            rf"\bcurl\b(?:[^\n|;&]|\\\n){{0,400}}?\s(?:-u|--user|--proxy-user)(?:=|[ \t]{{0,4}}){_OPEN}"
            rf"(?P<user>[^\s:\"'$<>{{}}]{{0,100}}):(?P<key>{_LITERAL_WORD}{{4,}}+)(?![(\[{{])"
        ),
        "given",
    ),
    (
        "password of a command",
        "pass",
        re.compile(
            rf"(?i:--(?:[a-z]{{1,20}}-)?{_PASSWORD}(?:=|[ \t]{{1,4}})|sshpass -p ?)"
            rf"{_OPEN}(?P<key>{_LITERAL_WORD}{{6,}}+)(?![(\[{{])"
        ),
        "given",
    ),
    (
        "password in a variable",
        "p",
        re.compile(
            rf"(?<![\w.])[A-Z0-9_]{{0,40}}(?:PASSWORD|PASSWD|PASSPHRASE|_PWD|_PASS)={_OPEN}(?P<key>{_LITERAL_WORD}{{6,}}+)(?![(\[{{])"
        ),
        "given",
    ),
    (
        "password",
        "p",
        re.compile(
            rf"(?i:{_PASSWORD}\\?[\"']?(?:: {{0,4}}|=|[ \t]{{1,4}}=[ \t]{{1,4}}(?=[\"'])))"
            rf"{_OPEN}(?P<key>{_LITERAL_WORD}{{8,}}+)(?![(\[{{])"
        ),
        "mixed",
    ),
    ("key of a compatible server", "sk-", re.compile(r"(?<![\w-])sk-(?P<key>[A-Za-z0-9_-]{32,})"), "random"),
)
_ARMOUR_END = re.compile(r"-----END [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----")
_ARMOUR_REST = re.compile(rf"(?:{_BETWEEN}[A-Za-z0-9+/=]++)*+")
_ATTRIBUTE = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)+")
"""Code that agents read: `token = self.config.t2u_pad_token_id`."""
_MADE_UP = re.compile(r"example|dummy|fake|placeholder|changeme|your[-_]|x{4}|\*{4}|\.{3}|1234567|abcdef", re.IGNORECASE)
_EVERYBODYS = re.compile(
    r"\W*(?:(?:my|your|the|some|a)?[-_. ]?"
    r"(?:pass(?:w(?:or)?d|wd|phrase)?|pwd|pw|secret|token|key|api[-_]?key|auth|admin|root|user|guest|test|demo|default|hello|welcome|"
    r"letmein|qwerty|postgres|mysql|redis|rabbitmq|minio|foo|bar|baz|spam|eggs|x|here|value|null|none|true|false|redacted|hidden|"
    r"string|required|optional)[-_. \d!]*+)++",
    re.IGNORECASE,
)
"""Passwords that are none, and what stands in their place in documents."""
_WORD = re.compile(r"[a-z]{1,11}|[a-z._-]{1,19}|[A-Z._-]{1,40}|%\(?\w*\)?[sdr]?")
"""A word, not a secret, wherever one may stand without being random."""
_FEW_DIGITS = re.compile(r"\d{1,7}")
"""A number that a trace is full of: to take it out would change what the model saw."""
_IDENTIFIER = re.compile(
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|[a-z_]+\d{0,3}|[A-Z_]+\d{0,3}|(?:[A-Z]+[a-z]+|[a-z]+)(?:[A-Z][a-z]+)*\d{0,3}"
)
_HEX = re.compile(r"[0-9a-fA-F]+")
_REPEATS, _HEX_GUESS, _GUESS = 2.5, 3.0, 3.5
"""Bits per character below which a marked key is filler, and a hexadecimal or another literal no random one."""
_MAX_ARMOUR = 1 << 15
_SHORTEST_KEY, _REDACTED = 8, "[REDACTED]"
_JSON_BEGINS = ("{", "[", '"')
_MOST_READ = 20_000
"""Characters beyond those shown in which unknown credentials are looked for: more than one can be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A substring that looks like a credential."""

    kind: str
    start: int
    """Start of the match; a guess includes its name."""
    text: str = field(repr=False)
    """The credential itself."""
    certain: bool
    """The match has the form in which its issuer writes keys."""


def secrets_in(text: str, *, bare: bool) -> Iterator[Secret]:
    """Find what looks like a credential in a file. Texts marked as placeholders (`EXAMPLE`, `xxxx`) do not count.

    Args:
        bare: a literal needs no quotes, as in `.env` and YAML files.
    """
    for kind, marks, pattern in _PATTERNS:
        if any(mark in text for mark in marks):
            yield from _real(kind, pattern, text, certain=True)
    for pattern in (_ASSIGNED, _ASSIGNED_BARE) if bare else (_ASSIGNED,):
        yield from _real(_GUESSED, pattern, text, certain=False)


def secrets_in_log(text: str) -> Iterator[Secret]:
    """Find everything `secrets_in` finds, and what appears only in command output: headers, URLs, command lines."""
    yield from (s for s in secrets_in(text, bare=True) if s.certain or not _ATTRIBUTE.fullmatch(s.text))
    low = text.lower()
    for kind, mark, pattern, asked in _IN_LOGS:
        if mark in low:
            yield from _values_in_places(kind, pattern, text, asked)


def without_secrets(text: str, *known: str, certain: bool = False) -> str:
    """Return `text` without credentials: `[REDACTED]` stands where one was. In a JSON text those that escapes spell are found as
    well, and so are those in JSON that its strings hold.

    Args:
        known: credentials by value, such as the key that was sent, which are found in every spelling of `_spellings`. One of less
            than 8 characters is none: local servers are given words such as `EMPTY`.
        certain: of the unknown ones take out those only that have their issuer's form; otherwise all that `secrets_in_log` finds.
    """
    if len(text) < _SHORTEST_KEY:
        return text
    text = _without_known(text, known)
    guesses = {secret.text for secret in secrets_in_log(text) if secret.certain or not certain}
    for guess in sorted(guesses, key=len, reverse=True):
        text = text.replace(guess, _REDACTED)
    if "\\" in text and text.lstrip()[:1] in _JSON_BEGINS:
        text = _with_strings(text, lambda string: without_secrets(string, *known, certain=certain))
    return text


def quoted(text: str, *known: str, most: int) -> str:
    """Return what somebody else said, fit for a message: without credentials, without control characters, and short.

    Args:
        known: credentials by value, as for `without_secrets`.
        most: characters that are kept.
    """
    return visible(without_secrets(_without_known(text, known)[: _MOST_READ + most], *known))[:most]


def _without_known(text: str, known: Iterable[str]) -> str:
    for key in sorted({key for key in known if len(key) >= _SHORTEST_KEY}, key=len, reverse=True):
        text = _spellings(key).sub(_REDACTED, text)
    return text


@functools.lru_cache(maxsize=64)
def _spellings(key: str) -> re.Pattern[str]:
    """Compile the spellings of a key: as it is, with any of its characters escaped (JSON, Python, URLs, some of them repeatedly),
    in hexadecimal, and in base64 wherever it begins in what is encoded."""
    data = key.encode("utf-8", "surrogatepass")
    forms = ["".join(map(_escaped, key)), f"(?i:{data.hex()})"]
    for before in range(3):  # in base64 three bytes are four characters; the first and the last may also hold bits of a neighbour
        inner = base64.b64encode(bytes(before) + data).decode()[-(-8 * before // 6) : 8 * (before + len(data)) // 6]
        forms.append("".join(_IN_BASE64.get(character, character) for character in inner))
    return re.compile("|".join(forms))


def _escaped(character: str) -> str:
    """Return the pattern of a character, as it is or escaped. Runs are bounded, so that a search takes linear time."""
    data, units = character.encode("utf-8", "surrogatepass"), character.encode("utf-16-be", "surrogatepass").hex()
    percent = "".join(f"%(?:25){{0,3}}{byte:02x}" for byte in data)
    python = "".join(f"\\\\{{1,8}}x{byte:02x}" for byte in data)
    as_json = "".join(f"\\\\{{1,8}}u{units[at : at + 4]}" for at in range(0, len(units), 4))
    plain = character if character.isalnum() else f"\\\\{{0,8}}{re.escape(character)}"
    return f"(?:{plain}|(?i:{percent}|{as_json}|{python}))"


_IN_BASE64 = {"+": f"(?:{_escaped('+')}|-)", "/": f"(?:{_escaped('/')}|_)"}


def _with_strings(text: str, clean: Callable[[str], str]) -> str:
    """Return a JSON text whose strings went through `clean`; the text itself where it is no JSON, or where nothing changed."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return clean(value)
        return type(value)(map(cleaned, value)) if isinstance(value, list | tuple) else value

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return {name: plain(item) for name, item in value}
        return [plain(item) for item in value] if isinstance(value, list) else value

    try:
        value = json.loads(text, object_pairs_hook=tuple)  # a tuple of pairs, for a name may come twice
        found = cleaned(value)
        return text if found == value else json.dumps(plain(found), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _values_in_places(kind: str, pattern: re.Pattern[str], text: str, asked: str) -> Iterator[Secret]:
    """Find values in places where a secret belongs: `given` unless the value is a word, `mixed` when it is not an identifier
    either."""
    for match in pattern.finditer(text):
        key = match["key"]
        if asked in ("certain", "random"):
            real = not _MADE_UP.search(key) and _looks_random(key, asked == "certain")
        else:
            real = not _MADE_UP.search(key) and not _EVERYBODYS.fullmatch(key) and not _WORD.fullmatch(key)
            real = (
                real and not _ATTRIBUTE.fullmatch(key) and key != match.groupdict().get("user") and not _FEW_DIGITS.fullmatch(key)
            )
            real = real and (asked == "given" or _mixed(key))
        if real:
            yield Secret(kind=kind, start=match.start(), text=match[0] if asked == "certain" else key, certain=asked == "certain")


def _mixed(key: str) -> bool:
    """Return whether a text has letters and digits, and is neither a name of code, a path, a version nor a date."""
    digits, letters = sum(c.isdigit() for c in key), sum(c.isalpha() for c in key)
    return bool(digits and letters > 2 and not _IDENTIFIER.fullmatch(key) and "/" not in key and ":" not in key)


def named_secret(name: str, value: str) -> Secret | None:
    """Return the credential in a field whose name announces one, as in the arguments of a tool call."""
    if not _NAMED.search(name) or _MADE_UP.search(value):
        return None
    if _LITERAL.fullmatch(value) and _looks_random(value, False):
        return Secret(kind=_GUESSED, start=0, text=value, certain=False)
    password = _PASSWORD_NAME.search(name) and _SHORT.fullmatch(value) and not _EVERYBODYS.fullmatch(value) and _mixed(value)
    return Secret(kind="password", start=0, text=value, certain=False) if password else None


def _real(kind: str, pattern: re.Pattern[str], text: str, *, certain: bool) -> Iterator[Secret]:
    for match in pattern.finditer(text):
        name, key = next((n, value) for n, value in match.groupdict().items() if n.startswith("key") and value)
        if not _MADE_UP.search(key) and _looks_random(key, certain):
            whole = match[0] if certain else match[name]
            if pattern is _PATTERNS[0][2]:
                whole = text[match.start() : _end_of_armour(text, match.end())]
            yield Secret(kind=kind, start=match.start(), text=whole, certain=certain)


def _end_of_armour(text: str, start: int) -> int:
    """Return where a private key ends: after its closing line, or at its last character when the text was cut."""
    closing = _ARMOUR_END.search(text, start, start + _MAX_ARMOUR)
    if closing:
        return closing.end()
    rest = _ARMOUR_REST.match(text, start, start + _MAX_ARMOUR)
    return rest.end() if rest else start


def _bits(key: str) -> float:
    return -sum(n / len(key) * math.log2(n / len(key)) for n in Counter(key).values())


def _looks_random(key: str, certain: bool) -> bool:
    bits = _bits(key)
    if certain:
        return bits >= _REPEATS
    mixed = any(c.isdigit() for c in key) and any(c.isalpha() for c in key)
    return mixed and bits >= (_HEX_GUESS if _HEX.fullmatch(key) else _GUESS)
