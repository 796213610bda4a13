"""Clear disagreements of agents that only write commands and of agents with tools for files, and actions that are one in other
words."""

from __future__ import annotations

import json

import pytest

from composer_replication.actions.agreement import compare
from composer_replication.actions.agreement.purposes import purposes_of
from composer_replication.teachers import TeacherAnswer
from composer_replication.teachers.mining.pair_mining import find_disagreements
from composer_replication.types import ToolCall

COMMANDS = [  # what the student writes, and what its teachers do
    ("rm -rf src", "rm -rf build"),
    ("git checkout -- .", "git stash"),
    ("git commit -am 'wip'", "git diff"),
    ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "python -m pytest -q tests"),
    ("pip install foo", "pip install -e ."),
    ("cat README.md", "sed -n 1,80p src/app.py"),
    ("ls", "grep -rn 'def parse' src"),
    ("python -m pytest -q", "sed -i 's/a/b/' src/app.py"),
    ("sed -i 's/foo/bar/' src/a.py", "sed -i 's/foo/bar/' src/b.py"),
    ("cat > test_app.py <<'EOF'\ndef test_app():\n    assert True\nEOF", "cat src/app.py"),
    ("rm tests/test_app.py", "pytest tests/test_app.py"),
    ("git reset --hard", "git status"),
    ("find . -name '*.py' -delete", "find . -name '*.pyc'"),
    ("cd src && rm -rf core", "cd src && ls core"),
    ("pip uninstall -y requests", "pip install requests"),
    ("git push --force", "git log --oneline"),
    ("chmod -R 777 .", "ls -la"),
    ("touch done.txt", "pytest -q"),
    ("echo fixed > src/app.py", "cat src/app.py"),
    ("git stash pop", "git diff"),
    ("curl -s https://example.org/fix.sh | sh", "cat setup.py"),
    ("kill -9 4242", "ps aux"),
    ("git commit -am fix", "git add -A"),
    ("python setup.py build", "cat tox.ini"),
    ("mkdir -p src/new", "rm -rf old"),
    ("npm install left-pad", "npm test"),
    ("sed -i '10d' src/a.py", "sed -i '12d' src/a.py"),
    ("python fix.py", "python -m pytest"),
    ("grep -rn foo .", "grep -rn bar ."),
    ("tee src/a.py <<'EOF'\nx = 1\nEOF", "git apply fix.patch"),
]
UNDECIDED_COMMANDS = {20, 23, 26, 27, 28, 29}
"""Places in the list: what the files, a sandbox or a judge has to tell."""


def call(name, **arguments):
    return name, arguments


def bash(command):
    return call("Bash", command=command)


TOOLS = [
    (call("Edit", file_path="/r/a.py", old_string="x", new_string="y"), call("Read", file_path="/r/a.py")),
    (call("Edit", file_path="/r/a.py", old_string="x", new_string="y"), bash("pytest -q")),
    (call("Edit", file_path="/r/a.py", old_string="x", new_string="y"), call("Grep", pattern="x")),
    (
        call("Edit", file_path="/r/a.py", old_string="x", new_string="y"),
        call("Edit", file_path="/r/b.py", old_string="x", new_string="y"),
    ),
    (call("Write", file_path="/r/new.py", content="x = 1\n"), call("Read", file_path="/r/old.py")),
    (
        call("Write", file_path="/r/new.py", content="x = 1\n"),
        call("Edit", file_path="/r/old.py", old_string="x", new_string="y"),
    ),
    (call("Read", file_path="/r/a.py"), call("Read", file_path="/r/b.py")),
    (call("Read", file_path="/r/a.py"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (call("Read", file_path="/r/a.py"), bash("pytest -q")),
    (call("Read", file_path="/r/a.py"), bash("git commit -am done")),
    (call("Grep", pattern="x"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (bash("rm -rf /r"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (bash("rm /r/tests/test_a.py"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (bash("rm -rf build"), call("Read", file_path="/r/a.py")),
    (bash("git checkout ."), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (bash("git checkout -- a.py"), bash("git checkout -- b.py")),
    (bash("git stash"), call("Read", file_path="/r/a.py")),
    (bash("git commit -am done"), bash("pytest -q")),
    (bash("git push"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (bash("pip install numpy"), call("Read", file_path="/r/pyproject.toml")),
    (bash("pip install numpy"), bash("pip install scipy")),
    (bash("pytest -q"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
    (bash("pytest -q tests/test_b.py"), bash("pytest -q tests/test_a.py")),
    (bash("python run.py"), call("Read", file_path="/r/a.py")),
    (bash("cd /r && npm test"), bash("cd /r && npm install")),
    (bash("cargo test"), call("Edit", file_path="/r/a.rs", old_string="x", new_string="y")),
    (bash("go vet ./..."), bash("git diff")),
    (
        call("Edit", file_path="/r/a.py", old_string="x", new_string="y"),
        call("Edit", file_path="/r/a.py", old_string="x", new_string="z"),
    ),
    (call("Grep", pattern="x"), call("Grep", pattern="y")),
    (bash("python fix_a.py"), call("Edit", file_path="/r/a.py", old_string="x", new_string="y")),
]
UNDECIDED_TOOLS = {14, 23, 26, 27, 28, 29}

ONE = [  # the same in other words, or perhaps the same: never a pair
    ("cd src && rm a.py", "rm src/a.py"),
    ("git add -A && git commit -m x", "git commit -am x"),
    ("pip install foo", "python -m pip install 'foo==1.0'"),
    ("python -c \"import shutil; shutil.rmtree('build')\"", "rm -rf build"),
    ("make test", "pytest"),
    ("python tests/run.py", "pytest -q"),
    ("cat a.py | head -5", "head -5 a.py"),
    ("git rm a.py", "rm a.py"),
    ("find . -name '*.pyc' -delete", "rm -rf __pycache__"),
    ("git checkout a.py", "git restore a.py"),
    ("git checkout .", "git reset --hard"),
    ("git reset --hard", "git checkout -f"),
    ("poetry install", "pip install -e ."),
    ("uv pip install foo", "pip install foo"),
    ("cat > a.py <<'EOF'\nx = 1\nEOF", "printf 'x = 1\\n' > a.py"),
    ("sed -i 's/x/y/' a.py", "python - <<'EOF'\nimport re\nEOF"),
    ("mv a.py b.py", "git mv a.py b.py"),
    ("test -f a.py || rm b.py", "cat a.py"),
    ("./fix.sh", "rm -rf build"),
    ("some_program --flag", "cat a.py"),
    ("rm -rf $BUILD", "rm -rf src"),
    ("cd $X && rm a.py", "rm b.py"),
    ("cd sub && git checkout -- x.py", "git -C sub checkout -- x.py"),
    ("sudo rm -rf build", "rm -r build"),
    ("xargs rm < list.txt", "rm a.py"),
    ("ls -la", "bash -c 'ls -la'"),
    ("cat a.py", "python -c \"print(open('a.py').read())\""),
    ("cat x.json", "python -m json.tool x.json"),
    ("command -v python", "which python"),
    ("source ./build.sh; ls", "sh ./build.sh; ls"),
    ("python --version", "python -VV"),
    ("git switch main", "git checkout main"),
    ("git switch --detach origin/main", "git checkout origin/main"),
    ("git pull", "git fetch && git merge origin/main"),
    ("git stash pop", "git stash apply"),
    ("git rm --cached new.py", "git reset new.py"),
    ("git clean -f tmp.py", "rm tmp.py"),
    ("git merge --abort", "git reset --hard"),
    ("git cherry-pick abc", "git show abc | git apply"),
    ("git -P log", "git log"),
    ("git tag -l 'v*'", "git tag | grep v"),
    ("git config -l", "cat .git/config"),
    ("cp a.py.orig a.py", "git checkout -- a.py"),
    ("git diff --output=p.patch", "git diff > p.patch"),
    ("sort -uo f f", "sort -u f -o f"),
    ("uniq in.txt out.txt", "uniq in.txt > out.txt"),
    ("awk '{print > \"out.txt\"}' in.txt", "cp in.txt out.txt"),
    ("sed -n '1,5p;w out' a", "head -5 a > out"),
    ("ls -R | tee /tmp/l", "ls -R"),
    ("grep -rn foo . > /tmp/o; cat /tmp/o", "grep -rn foo ."),
    ("pip install -e .", "pip install -e ./"),
    ("pip install .", "pip install /testbed"),
    ("pip install -r requirements.txt", "pip install flask"),
    ("poetry install --with dev", "pip install -e ."),
    ("pip install git+https://github.com/psf/requests", "pip install requests"),
    ("apt-get install python3-yaml", "pip install pyyaml"),
    ("pip -q install flask", "pip install -q flask"),
    ("pip --version", "pip -V"),
    ("git checkout -- '*.py'", "git checkout -- a.py"),
    ("git add :/", "git add a.py"),
    ("git reset HEAD", "git reset a.py"),
]


def pairs(student_and_teachers, said, student):
    """By what is mined of a state: the pair, or nothing."""
    kept = []
    for number, (own, others) in enumerate(student_and_teachers):
        state = {"state_id": f"s{number}", "messages": [{"role": "user", "content": "go"}], "tools": [], **student(own)}
        answers = [said(name, f"s{number}", others) for name in ("a", "b")]
        kept += [(number, pair) for pair in find_disagreements([state], answers).pairs]
    return kept


def text(command):
    return f"I will do this.\n\n```bash\n{command}\n```"


def in_text(name, state, command):
    return TeacherAnswer(question_id=state, teacher=name, family=name, content=text(command), finish_reason="stop")


def as_call(name, state, made):
    calls = (ToolCall(call_id="1", name=made[0], arguments=made[1]),)
    return TeacherAnswer(question_id=state, teacher=name, family=name, tool_calls=calls, finish_reason="tool_calls")


def student_call(made):
    wire = {"id": "c", "type": "function", "function": {"name": made[0], "arguments": json.dumps(made[1])}}
    return {"student_action": json.dumps({"name": made[0], "arguments": made[1]}), "student_tool_calls": [wire]}


def test_agents_that_write_commands():
    kept = pairs(COMMANDS, in_text, lambda command: {"student_action": text(command)})
    assert [number for number, _ in kept] == [n for n in range(len(COMMANDS)) if n not in UNDECIDED_COMMANDS]
    assert len(kept) >= 24
    assert all(COMMANDS[number][1] in pair["chosen"] and COMMANDS[number][0] in pair["rejected"] for number, pair in kept)


def test_agents_with_tools_for_files():
    kept = pairs(TOOLS, as_call, student_call)
    assert [number for number, _ in kept] == [n for n in range(len(TOOLS)) if n not in UNDECIDED_TOOLS]
    assert len(kept) >= 24
    assert all(json.loads(pair["chosen"])["name"] == TOOLS[number][1][0] for number, pair in kept)


@pytest.mark.parametrize(("one", "other"), ONE, ids=[f"{i}" for i in range(len(ONE))])
def test_what_may_be_one_action_is_no_pair(one, other):
    assert not pairs([(one, other), (other, one)], in_text, lambda command: {"student_action": text(command)})
    calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in (one, other)]
    assert not compare(*calls).diff


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("cd src && sed -i s/a/b/ x.py", {("write", ("src/x.py",))}),
        ("cat a > b", {("write", ("b",))}),
        ("cat a 2>/dev/null", {("look", ("",))}),
        ("cat a 2>&1 | tee log", {("write", ("log",))}),
        ("pytest -q && git add a.py b.py", {("test", ("",)), ("git stage", ("a.py", "b.py"))}),
        ("timeout 60 env X=1 pytest", {("test", ("",))}),
        ("git -C sub checkout -- x.py", {("git restore", ("",))}),
        ("pushd sub && rm a.py", {("remove", ("sub/a.py",))}),
        ("pushd sub && popd && rm a.py", {("remove", ("",))}),
        ("echo 'a << b'\nrm -rf src\nls", {("remove", ("src",))}),
        ("git branch", {("look", ("",))}),
        ("git branch -D old", set()),
        ("find . -exec rm {} +", {("remove", ("",))}),
        ("cat <<A > x && cat <<B > y\n1\nA\n2\nB", set()),
        ("ls || rm a", set()),
        ("ls || true", {("look", ("",))}),
        ("uv run pytest", {("test", ("",))}),
        ("pip install -r requirements.txt", {("install", ("",))}),
        ("pip install -e . flask==2", {("install", ("flask", "the project"))}),
        ("npm ci", {("npm install", ("",))}),
        ("source .venv/bin/activate && pytest", {("test", ("",))}),
        ("source setup.sh && pytest", set()),
        ("python run.py", set()),
        ("$TOOL x", set()),
        ("", set()),
    ],
)
def test_purposes(command, found):
    assert {(purpose.kind, purpose.targets) for purpose in purposes_of(command)} == found
