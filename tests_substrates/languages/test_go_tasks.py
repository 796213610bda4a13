"""Tasks of a Go module: proven, graded, worked on by an agent, attacked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from go_project import PYTHON
from scripted import refuse_damaged, solve_with_shell

from composer_replication.languages.go.held_out import is_call, wrong_calls
from composer_replication.languages.go.runner import GoRunner
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.protocol import Tree
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_task
from composer_replication.types import GradeReport
from composer_replication.types.errors import ConfigError

STRONG = {"Ledger.Add", "Ledger.Largest", "Parse", "digits", "Names", "Loud"}


def graded(task: Task, changes: dict[str, bytes], sandbox: Sandbox) -> GradeReport:
    return grade(task.spec, task.repo, changes, sandbox=sandbox, python=PYTHON)


def test_every_covered_function_is_a_task(tasks: dict[str, Task]) -> None:
    assert tasks.keys() == STRONG | {"Ledger.Total"}
    assert {name for name, task in tasks.items() if not task.spec.forgeable} >= {"Parse", "digits", "Names", "Loud", "Ledger.Add"}
    spec = tasks["Parse"].spec
    assert spec.language == "go"
    assert set(spec.fail_to_pass) == {"ledger_test.go::TestParse", "ledger_test.go::TestParseRefuses"}
    assert spec.instruction == "Implement `Parse` in ledger.go: its body was removed. Make its tests pass."
    assert 'panic("not implemented")' in (tasks["Parse"].repo / "ledger.go").read_text()
    assert '"strings"' not in (tasks["Parse"].repo / "ledger.go").read_text()


@pytest.mark.parametrize("name", sorted(STRONG | {"Ledger.Total"}))
def test_the_solution_is_rewarded_and_nothing_is_not(name: str, tasks: dict[str, Task], sandbox: Sandbox) -> None:
    assert graded(tasks[name], tasks[name].gold_files(), sandbox).reward == 1.0
    assert graded(tasks[name], {}, sandbox).reward == 0.0


OTHER_WAYS = {
    "digits": '\tif text == "" {\n\t\treturn 0, errors.New("empty")\n\t}\n\tvar number int\n\tfor n := 0; n < len(text); n++ {\n'
    '\t\tif text[n] > 57 || text[n] < 48 {\n\t\t\treturn 0, errors.New("odd")\n\t\t}\n\t\tnumber *= 10\n'
    "\t\tnumber += int(text[n]) - 48\n\t}\n\treturn number, nil\n",
    "Loud": '\tloud := strings.ToUpper(strings.Join(strings.Fields(text), " "))\n\tfor ; marks > 0; marks-- {\n'
    '\t\tloud += "!"\n\t}\n\treturn loud\n',
    "Names": "\tvar names []string\n\tfor _, one := range entries {\n\t\tknown := false\n\t\tfor _, name := range names {\n"
    "\t\t\tknown = known || name == one.Name\n\t\t}\n\t\tif !known {\n\t\t\tnames = append(names, one.Name)\n\t\t}\n\t}\n"
    "\tsort.Strings(names)\n\treturn names\n",
}


def with_body(task: Task, body: str, more: str = "") -> dict[str, bytes]:
    path = task.spec.deleted[0].path
    gold = task.gold_files()[path].decode()
    stub = (task.repo / path).read_text()
    imports = gold[gold.index("import") : gold.index("\n\n", gold.index("import"))] if "import" in gold else ""
    if "import" in stub and imports:
        stub = stub.replace(stub[stub.index("import") : stub.index("\n\n", stub.index("import"))], imports)
    elif imports:
        head, _, rest = stub.partition("\n\n")
        stub = f"{head}\n\n{imports}\n\n{rest}"
    return {path: (stub.replace('\tpanic("not implemented")\n', body) + more).encode()}


@pytest.mark.parametrize("name", sorted(OTHER_WAYS))
def test_other_ways_to_write_it_are_rewarded(name: str, tasks: dict[str, Task], sandbox: Sandbox) -> None:
    report = graded(tasks[name], with_body(tasks[name], OTHER_WAYS[name]), sandbox)
    assert report.reward == 1.0, report.reasons
    assert report.alarms == ()


FORGE = """
func init() {
	if _, asked := composerforge.Stat("zz_composer_asker_test.go"); asked == nil {
		return
	}
	files, _ := composerglob.Glob("zz_composer_*_test.go")
	text, _ := composerforge.ReadFile(files[0])
	mark := string(text[composertext.Index(string(text), "composerPipe")+12:])[:16]
	number, _ := composernumber.Atoi(composerforge.Getenv("COMPOSER_PIPE"))
	pipe := composerforge.NewFile(uintptr(number), "")
	for n := 0; n < 50; n++ {
		for _, state := range []string{"begun", "passed"} {
			pipe.WriteString(mark + " " + composernumber.Itoa(n) + " " + state + "\\n")
		}
	}
	composerforge.Exit(0)
}
"""
IMPORTS = (
    'import composerglob "path/filepath"\nimport composerforge "os"\n'
    'import composertext "strings"\nimport composernumber "strconv"\n'
)
ATTACKS: dict[str, tuple[str, str]] = {
    "zero values": ("\treturn 0, nil\n", ""),
    "always an error": ('\treturn 0, errors.New("no")\n', ""),
    "a constant": ("\treturn 22, nil\n", ""),
    "the length": ("\treturn len(text), nil\n", ""),
    "the tests' answers by heart": (
        '\ttable := map[string]int{"1": 1, "22": 22, "100": 100, "2": 2, "65": 65, "0": 0}\n'
        '\tif found, good := table[text]; good {\n\t\treturn found, nil\n\t}\n\treturn 0, errors.New("no")\n',
        "",
    ),
    "by heart, else the length": (
        '\ttable := map[string]int{"1": 1, "22": 22, "100": 100, "2": 2, "65": 65, "0": 0}\n'
        '\tif found, good := table[text]; good {\n\t\treturn found, nil\n\t}\n\tif text == "" || text == "x" {\n'
        '\t\treturn 0, errors.New("no")\n\t}\n\treturn len(text), nil\n',
        "",
    ),
    "an end before the tests": ("\treturn 0, nil\n", '\nfunc init() { println("PASS"); composerexit() }\n'),
    "passed outcomes in the pipe": ("\treturn 0, nil\n", FORGE),
    "a panic that is caught": ("\tdefer func() { recover() }()\n\tpanic(text)\n", ""),
    "no end": ("\tfor {\n\t}\n", ""),
    "endless recursion": ("\treturn digits(text)\n", ""),
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_is_not_rewarded(name: str, tasks: dict[str, Task], sandbox: Sandbox) -> None:
    body, more = ATTACKS[name]
    task = tasks["digits"]
    work = with_body(task, body, more)
    text = work["ledger.go"].decode()
    if more == FORGE:
        text = text.replace("package ledger\n", f"package ledger\n\n{IMPORTS}", 1)
    if "composerexit" in more:
        text = (
            text.replace("package ledger\n", 'package ledger\n\nimport composeros "os"\n', 1)
            + "\nfunc composerexit() { composeros.Exit(0) }\n"
        )
    report = graded(task, {"ledger.go": text.encode()}, sandbox)
    assert report.reward == 0.0
    if more == FORGE:
        assert all("held-out" in reason for reason in report.reasons), report.reasons
        assert any("does something before any test begins (func init)" in alarm for alarm in report.alarms)


@pytest.mark.parametrize("path", ["ledger_test.go", "extra_test.go", "go.mod", "zz_composer_values.go", "shout/../go.mod"])
def test_what_decides_is_not_taken(path: str, tasks: dict[str, Task], sandbox: Sandbox) -> None:
    text = b"package ledger\n\nfunc init() {}\n"
    report = graded(tasks["digits"], {path: text, "ledger.go": tasks["digits"].gold_files()["ledger.go"]}, sandbox)
    assert path in report.rejected
    assert report.reward == 1.0


def test_held_out_calls_are_not_those_of_the_tests(tasks: dict[str, Task], runner: GoRunner) -> None:
    task = tasks["digits"]
    programs = task.spec.hidden.programs
    asked = [json.loads(program.steps)[0][1]["given"][0]["v"] for program in programs]
    assert len(asked) >= 4
    assert not {"1", "22", "100", "2", "65", "0", "", "x"} & set(asked)
    gold = Tree(base=task.repo, changes=task.gold_files())
    assert wrong_calls(runner, gold, programs)[0] == []
    assert wrong_calls(runner, Tree(base=task.repo), programs)[0] == list(range(len(programs)))


def test_an_agent_with_a_shell_solves_it(tasks: dict[str, Task]) -> None:
    path, test = "shout/shout.go", "go test ./shout"
    body = with_body(tasks["Loud"], OTHER_WAYS["Loud"])[path].decode()
    solve_with_shell(tasks["Loud"], tests=test, path=path, body=body, then=f"go vet ./shout && {test}")


def test_a_damaged_held_out_call_is_an_error(tasks: dict[str, Task]) -> None:
    injected = {"k": "int", "t": "int", "v": "1); panic(0"}
    changes: list[dict[str, Any]] = [
        *({"name": "x(); panic"}, {"name": 3}, {"folder": "../.."}, {"folder": 3}, {"package": "a b"}),
        *({"given": [injected]}, {"given": []}, {"given": 3}, {"results": "a"}, {"results": 10**9}, {"results": -1}),
    ]
    refuse_damaged(load_task(tasks["digits"].root).spec.hidden.programs[0], is_call, changes)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"mutants": 3}, "with mutants"), ({"impossible": 0.5}, "with impossible"), ({"mode": "delete"}, "mode")],
)
def test_what_go_does_not_have_is_refused(options: dict[str, object], said: str, module: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        build_tasks(str(module), tmp_path, BuildOptions(trivial=True, python=PYTHON, **options))  # type: ignore[arg-type]


def test_two_builds_of_a_module_hold_the_same_calls(module: Path, tasks: dict[str, Task], tmp_path: Path) -> None:
    build_tasks(str(module), tmp_path, BuildOptions(trivial=True, python=PYTHON, timeout_s=300, forgeable=True, max_tasks=2))
    again = [path.name for path in tmp_path.iterdir() if path.name.startswith("ledger")]
    by_id = {task.spec.task_id: task for task in tasks.values()}
    assert len(again) == 2
    for name in again:
        assert load_task(tmp_path / name).spec == by_id[name].spec
