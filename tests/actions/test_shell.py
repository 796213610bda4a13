from __future__ import annotations

import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions.agreement.shell import shell_form
from composer_replication.actions.shell_words import NotUnderstoodError, read_line
from composer_replication.actions.tool_effects import plain_path

WORD = st.text(string.ascii_letters + string.digits + " _-./'\"$*#;|&<>(){}~!\\\t", max_size=8)
FLAGS = st.lists(st.sampled_from("nisowxv"), unique=True, min_size=1, max_size=5)


def form(command, folders=()):
    try:
        return shell_form(command, folders)
    except NotUnderstoodError:
        return None


@pytest.mark.parametrize(
    "command",
    [
        "",
        "  ",
        "# nothing",
        "echo $(ls)",
        "echo `ls`",
        'echo "$(ls)"',
        "echo ${X}",
        "cat <<E\nx\nE",
        "cat <<< x",
        "(ls)",
        "{ ls; }",
        "ls &",
        "ls |& cat",
        "ls &&",
        "&& ls",
        "ls ;; ls",
        "ls; ; ls",
        "if true; then ls; fi",
        "! ls",
        "echo 'open",
        'echo "open',
        "diff <(ls) x",
        "f() { ls; }",
        "echo $'x'",
        "echo $((1))",
        "a\0b",
        "time ls",
        "[[ -f x ]]",
        "cat <>x",
        "echo a\rb",
        "ls >",
        "echo \\",
        "echo {fd}>x",
        "echo {fd}<x",
        "echo 2\\\n>x",
        "echo 1\\\n2>x",
        "echo a >2>x",
        "echo > #x",
        "echo >&-2",
        "echo >&2-",
        'echo "$\\\nHOME"',
    ],
)
def test_what_is_not_plain_is_not_understood(command):
    with pytest.raises(NotUnderstoodError):
        read_line(command)


@given(st.lists(WORD, min_size=1, max_size=5))
def test_words_are_those_of_the_shell(words):
    """However they are quoted: `shlex.join` is the standard library's way to quote any words."""
    line = "x " + shlex.join(words)
    (simple,) = read_line(line)
    assert [w.text for w in simple.words[1:] if not w.expands] == [
        w for w, mine in zip(words, simple.words[1:], strict=True) if not mine.expands
    ]
    assert not any(w.expands for w in simple.words)


@given(st.lists(WORD, min_size=1, max_size=4), st.lists(WORD, min_size=1, max_size=4))
def test_other_words_are_another_command(one, other):
    assert (form("x " + shlex.join(one)) == form("x " + shlex.join(other))) is (one == other)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    form(text)


@given(FLAGS, st.randoms(use_true_random=False))
def test_the_order_of_flags_changes_nothing(flags, random):
    moved = flags[:]
    random.shuffle(moved)
    one = form(f"grep -{''.join(flags)} total big.txt")
    assert one is not None
    assert one == form("grep " + " ".join(f"-{flag}" for flag in moved) + " total ./big.txt")
    assert one == form(f"grep total -{''.join(moved)} big.txt")
    assert one != form(f"grep -{''.join(flags)} big.txt total")
    assert one != form(f"grep -{''.join(flags)}h total big.txt")
    assert flags == ["n"] or one != form(f"grep -{''.join(flags[1:] or 'r')} total big.txt")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ls -lt -S", "ls -S -lt"),  # the last one sorts
        ("pytest a b", "pytest b a"),
        ("pytest -x --maxfail=2 t", "pytest --maxfail=2 -x t"),
        ("pytest -k=a t", "pytest -k '=a' t"),
        ("head -5 a b", "head a -5 b"),
        ("python -m pytest -q", "python3 -m pytest -q"),
        ("python -m pytest -q", "pytest -q"),
        ("./pytest -q t", "pytest -q t"),
        ("git diff a.py --stat", "git diff --stat a.py"),
        ("git diff -- a.py", "git diff a.py"),
        ("sed -i s/a/b/ x", "sed s/a/b/ x"),
        ("sed -ni s/a/b/ x", "sed -in s/a/b/ x"),
        ("cat ./-", "cat -"),
        ("cat a/../b", "cat b"),
        ("cat a/", "cat a"),
        ("ls a/", "ls a"),
        ("cat a", "c'at b'"),
        ("'A=1' ls", "A=1 ls"),
        ("ls '&&' pwd", "ls && pwd"),
        ("echo '>' x", "echo > x"),
        ("echo 2 > x", "echo 2> x"),
        ("echo \\$A", "echo $A"),
        ("echo '!x'", "echo !x"),
        ("FOO=1 ls -la", "FOO=1 ls -al"),
        ("source x && ls -la", "source x && ls -al"),
        ("set -- -x; ls a -l", "set -- -x; ls -l a"),
        ("ls $X -l", "ls -l $X"),
        ("ls *.py -l", "ls -l *.py"),
        ("grep -rn x --include=*.py .", "grep -rn --include=*.py x ."),
        ("cat a > x 2>&1", "cat a 2>&1 > x"),
        ("sort -k1 -k2 x", "sort -k2 -k1 x"),
        ("tail -f x", "tail x -f -n 1"),
        ("ls -la 'a b'", "ls -la a b"),
        ("cd a && ls", "cd a; ls"),
        ("A=$HOME x", "A='$HOME' x"),
        ("A=~ x", "A='~' x"),
        ("A=*; x", "A='*'; x"),
        ("grep -r x", "grep -r x ."),
        ("grep -rl x ./a", "grep -rl x a"),
        ("grep x ./a b", "grep x a b"),
        ("ls ./a", "ls a"),
        ("ls -R ./a", "ls -R a"),
        ("wc ./a", "wc a"),
        ("rm -v ./a", "rm -v a"),
        ("cat ./a 2>x", "cat a 2>x"),
        ("cat ./a &>x", "cat a &>x"),
        ("cat ./a >&x", "cat a >&x"),
        ("cat ./a 2>&1 >x", "cat a 2>&1 >x"),
        ("cat ./a 2>&1 | grep b", "cat a 2>&1 | grep b"),
        ("cat ./a 2>&1 | head -c 9", "cat a 2>&1 | head -c 9"),
        ("cat ./a 2>&1 | tail -n 3 > x", "cat a 2>&1 | tail -n 3 > x"),
        ("pytest ./t 2>&1 | cut -c1-9", "pytest t 2>&1 | cut -c1-9"),
        ("pytest t/::x", "pytest t::x"),
    ],
)
def test_near_misses_are_not_one(one, other):
    assert form(one) is None or form(one) != form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cat ./a | cut -c1-9", "cat a | cut -c1-9"),
        ("cat ./a > x", "cat a > x"),
        ("cat ./a 2>/dev/null", "cat a 2>/dev/null"),
        ("cat ./a >&2", "cat a >&2"),
        ("cat ./a 2>&1 | tail -n 3; ls", "cat a 2>&1 | tail -3; ls"),
        ("grep -rh x ./a", "grep -rh x a"),
        ("grep -rq x", "grep -rq x ."),
        ("cp -r ./a b", "cp -r a ./b"),
        ("pytest ./t/ -q 2>&1 | tail -n 3", "pytest t -q 2>&1 | tail -3"),
    ],
)
def test_a_path_that_is_not_shown_may_be_written_in_any_way(one, other):
    assert form(one) == form(other) is not None


def test_a_folder_is_known_where_the_line_begins():
    assert form("cd x && ls src/", {"src"}) != form("cd x && ls src", {"src"})
    assert form("ls -l src/", {"src"}) != form("ls -l src", {"src"})
    assert form("ls ./src", {"src"}) == form("ls src", {"src"})


def test_a_known_folder_needs_no_closing_slash():
    assert form("ls src/", {"src"}) == form("ls src", {"src"})
    assert form("grep -rn x src/", {"src"}) == form("grep -rn x src", {"src"})
    assert form("ls -R src/", {"src"}) != form("ls -R src", {"src"})
    assert form("cat src/", {"src"}) != form("cat src", {"src"})


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("./a", "a"),
        ("a//b", "a/b"),
        ("a/./b", "a/b"),
        ("././a", "a"),
        (".", "."),
        ("./", "./"),
        ("../a", "../a"),
        ("a/..", "a/.."),
        ("/a", "/a"),
        ("//a", "//a"),
        ("./-a", "./-a"),
        (".//a", "a"),
        ("", ""),
        ("a/", "a/"),
        (".a", ".a"),
        ("a/./", "a/"),
    ],
)
def test_plain_paths(given, plain):
    assert plain_path(given) == plain
