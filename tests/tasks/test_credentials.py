"""Credentials are found by their form and named by place and kind; those of the code keep it out, those of tests are told of.

Every key here is put together when the tests run.
"""

from __future__ import annotations

import json
import random
import string
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from in_process import composer_here

from composer_replication.tasks import BuildOptions, build_tasks
from composer_replication.tasks.sources.credentials import credentials_in, find_credentials, refuse_credentials
from composer_replication.types.errors import SourceError

WriteProject = Callable[[Mapping[str, str]], Path]

LETTERS = string.ascii_letters + string.digits


def made_up(length: int, alphabet: str = LETTERS) -> str:
    rng = random.Random(length)
    return "".join(rng.choice(alphabet) for _ in range(length))


def private_key(word: str = "RSA ", line_end: str = "\n", headers: str = "") -> str:
    fence = "-" * 5
    return line_end.join(
        [f"{fence}BEGIN {word}PRIVATE KEY{fence}", headers + made_up(64), f"{fence}END {word}PRIVATE KEY{fence}"]
    )


AWS = "AK" + "IA" + made_up(16, string.ascii_uppercase + "234567")
CERTAIN = {
    "private key": private_key(),
    "AWS access key": AWS,
    "GitHub token": "gh" + "p_" + made_up(36),
    "GitLab token": "glp" + "at-" + made_up(20),
    "Slack token": "xo" + "xb-" + made_up(12, string.digits) + "-" + made_up(24),
    "Google API key": "AI" + "za" + made_up(35),
    "Stripe key": "sk_" + "live_" + made_up(24),
    "OpenAI key": "sk-" + "proj-" + made_up(20) + "T3Bl" + "bkFJ" + made_up(20),
    "Anthropic key": "sk-" + "ant-api03-" + made_up(95),
    "OpenRouter key": "sk-" + "or-v1-" + made_up(64, "0123456789abcdef"),
    "Hugging Face token": "h" + "f_" + made_up(34),
    "PyPI token": "pypi-" + "AgEIcHlwaS5vcmc" + made_up(60),
    "npm token": "np" + "m_" + made_up(36),
    "SendGrid key": "S" + "G." + made_up(22) + "." + made_up(43),
}
FINE_GRAINED = "github_" + "pat_" + made_up(22) + "_" + made_up(59)


@pytest.mark.parametrize("kind", CERTAIN)
def test_every_marked_key_is_found_by_kind_and_line(kind: str) -> None:
    (found,) = credentials_in("shop.py", f"a = 1\nb = '''{CERTAIN[kind]}'''\n".encode())
    assert (found.path, found.line, found.kind, found.certain) == ("shop.py", 2, kind, True)
    assert str(found) == f"shop.py:2 ({kind})"
    assert CERTAIN[kind][-12:] not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        private_key("OPENSSH "),
        private_key("", "\\n"),
        private_key("ENCRYPTED ", '"\n    "'),
        private_key("EC ", headers="Proc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\n"),
        FINE_GRAINED,
    ],
)
def test_other_spellings_of_a_marked_key(text: str) -> None:
    assert [c.certain for c in credentials_in("x.py", text.encode())] == [True]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("m.py", f'PASSWORD = "{made_up(20)}"'),
        ("m.py", f"connect(api_key='{made_up(24)}')"),
        ("m.py", f'{{"client_secret": "{made_up(32, "0123456789abcdef")}"}}'),
        ("m.py", f'token: str = b"{made_up(20)}"'),
        (".env", f"SERVICE_TOKEN={made_up(24)}"),
        ("deploy.yml", f"db_password: {made_up(24)}"),
    ],
)
def test_a_random_literal_under_a_telling_name_is_a_guess(path: str, text: str) -> None:
    (found,) = credentials_in(path, f"\n{text}\n".encode())
    assert (found.line, found.kind, found.certain) == (2, "secret in an assignment", False)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 5 + "BEGIN PRIVATE KEY" + "-" * 5 + "\n' is where a key begins",
        "AK" + "IA" + "IOSFODNN7" + "EXAMPLE",
        "gh" + "p_" + "x" * 36,
        "gh" + "p_" + "a" * 36,
        'password = "correct horse battery staple 42"',
        'TOKEN_PATTERN = "identifier_or_keyword"',
        'secret = "' + "your-" + made_up(20) + '"',
        'token = "aaaaaaaaaaaaaaaa1111"',
        f'digest = "{made_up(40, "0123456789abcdef")}"',
        f'if token == "{made_up(24)}": pass',
        f"token = {made_up(24)}",
        "token = make_token_from_base64_and_a_salt(12)",
        f'name = "sk_{made_up(24)}"',
    ],
)
def test_what_is_no_credential(text: str) -> None:
    assert credentials_in("m.py", f"{text}\n".encode()) == []


def test_binary_files_are_not_read() -> None:
    assert credentials_in("x.db", b"\0" + AWS.encode()) == []


def test_a_long_line_of_telling_names_is_read_in_one_go() -> None:
    assert credentials_in("m.js", b"token" * 200_000) == []
    assert credentials_in("m.js", (b"-" * 5 + b"BEGIN RSA PRIVATE KEY" + b"-" * 5 + b"\\n" * 50) * 2_000) == []


def test_the_code_is_refused_and_tests_are_not(tmp_path: Path) -> None:
    for path in ("shop/keys.py", "tests/data/a.pem", "docs/use.py", "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"\n{AWS}\n")
    found = find_credentials(tmp_path)
    assert [c.path for c in found] == ["README.md", "docs/use.py", "shop/keys.py", "tests/data/a.pem"]
    with pytest.raises(SourceError, match=r"shop holds credentials: shop/keys.py:2 \(AWS access key\)\n") as caught:
        refuse_credentials(found, ("tests",), "shop")
    assert "--allow-credentials shop/keys.py" in (caught.value.fix or "")
    assert AWS not in str(caught.value)
    allowed = find_credentials(tmp_path, ["shop/*"])
    assert len(allowed) == 3
    refuse_credentials(allowed, ("tests",), "shop")


def project(secret: str) -> dict[str, str]:
    return {
        "shop.py": f"""
            def open_till(day):
                password = "{secret}"
                return password + str(day)

            def count(basket):
                return len(basket)
            """,
        "test_shop.py": f"""
            from shop import count, open_till

            KEY = "{AWS}"

            def test_open():
                assert open_till(3).endswith("3")

            def test_count():
                assert count([1, 2]) == 2
            """,
    }


@pytest.fixture(scope="module")
def built(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("credentials") / "tasks"
    done = composer_here("tasks", "build", write_project(project(made_up(20))), "--out", out, "--forgeable", "--trivial")
    assert done.returncode == 0, done.stderr
    return out, done


def test_a_candidate_with_one_is_dropped_and_counted(built: tuple[Path, CompletedProcess[str]]) -> None:
    out, done = built
    record = json.loads((out / "build.json").read_text())
    assert record["dropped"] == [
        {"what": "shop.py::open_till", "reason": "a credential is in its code (--allow-credentials)", "detail": ""},
    ]
    assert len(record["tasks"]) == 1
    assert "a credential is in its code (--allow-credentials)" in done.stdout


def test_what_stays_in_the_trees_is_told_without_its_text(built: tuple[Path, CompletedProcess[str]]) -> None:
    out, done = built
    assert [(c["path"], c["line"], c["kind"]) for c in json.loads((out / "build.json").read_text())["credentials"]] == [
        ("shop.py", 3, "secret in an assignment"),
        ("test_shop.py", 4, "AWS access key"),
    ]
    row = next(line.split() for line in done.stdout.splitlines() if "AWS access key" in line)
    assert row == ["AWS", "access", "key", "test_shop.py", "4"]
    assert AWS not in done.stdout + (out / "build.json").read_text()
    assert made_up(20) not in done.stdout + (out / "build.json").read_text()


def test_allowed_files_are_used(write_project: WriteProject, tmp_path: Path) -> None:
    source = str(write_project(project(AWS)))
    with pytest.raises(SourceError, match=r"folder:shop holds credentials: shop\.py:3 \(AWS access key\)"):
        build_tasks(source, tmp_path / "refused", BuildOptions(trivial=True, forgeable=True))
    report = build_tasks(source, tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True, allow_credentials=("shop.py",)))
    assert len(report.tasks) == 2
    assert [c.path for c in report.credentials] == ["test_shop.py"]


def test_the_projects_here_hold_none() -> None:
    root = Path(__file__).resolve().parents[2]
    kept = [*root.glob("composer_replication/**/*.py"), *root.glob("tests/**/*.py")]
    found = [c for path in kept for c in credentials_in(path.relative_to(root).as_posix(), path.read_bytes())]
    assert found == [], textwrap.shorten(str(found), 400)
