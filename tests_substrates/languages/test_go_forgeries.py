"""Functions whose held-out calls a trivial body could answer: none of their tasks is strong, or the body is not rewarded.

Every trivial body is submitted with a forger that writes passed outcomes for all visible tests, so that held-out calls decide.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from go_project import PYTHON, write
from test_go_tasks import FORGE, IMPORTS, graded

from composer_replication.sandbox import Sandbox
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks

SOURCE = """package odd

import (
	"fmt"
	"sort"
	"strings"
)

type Options struct {
	Name         string
	limit, tries int
}

// Normalized bounds what nobody sees.
func (o Options) Normalized() Options {
	if o.limit < 1 {
		o.limit = 1
	}
	if o.tries > 5 {
		o.tries = 5
	}
	return o
}

type token struct{ kind, text string }

func lex(text string) []token {
	found := []token{}
	for _, letter := range text {
		kind := "letter"
		if letter >= '0' && letter <= '9' {
			kind = "digit"
		}
		found = append(found, token{kind, string(letter)})
	}
	return found
}

func widen(v interface{}) interface{} {
	switch value := v.(type) {
	case int8:
		return int64(value)
	case []byte:
		return string(value)
	}
	return v
}

func clean(name string, number int) (string, int) {
	name = strings.TrimSpace(name)
	if number > 9000 {
		number = 9000
	}
	return name, number
}

func half(number float64) float64 {
	number = number / 2
	return number
}

func Keys(amounts map[string]int) []string {
	found := []string{}
	for name := range amounts {
		found = append(found, name)
	}
	return found
}

func valid(name string) bool {
	if name == "" || strings.ContainsAny(name, " /") {
		return false
	}
	return name[0] != '-'
}

func say(parts ...string) string {
	sort.Strings(parts)
	return fmt.Sprint(len(parts), ":", strings.Join(parts, "+"))
}
"""
TESTS = """package odd

import (
	"sort"
	"testing"
)

func TestAll(t *testing.T) {
	for _, one := range []Options{{"a", 0, 1}, {"b", 4, 9}, {"c", 7, 2}, {"d", -3, 12}, {"e", 2, 3}} {
		if found := one.Normalized(); found.limit < 1 || found.tries > 5 || found.Name != one.Name {
			t.Error(found)
		}
	}
	for text, want := range map[string]int{"a1": 2, "": 0, "42": 2, "xyz": 3, "q9w8": 4} {
		if found := lex(text); len(found) != want || (want > 0 && found[0].kind == "") {
			t.Error(found)
		}
	}
	for _, one := range []interface{}{int8(3), []byte("ab"), "text", 7, int8(-4), []byte("xyz")} {
		if widen(one) == nil {
			t.Error(one)
		}
	}
	for name, number := range map[string]int{"a ": 3, " bc": 9500, "d": 12, "ee  ": 20000, "f": 0} {
		if found, bounded := clean(name, number); len(found) > 2 || bounded > 9000 {
			t.Error(found)
		}
	}
	for _, one := range []float64{2, 4, 10, 3, 7} {
		if half(one)*2 != one {
			t.Error(one)
		}
	}
	for _, one := range []map[string]int{{"a": 1, "b": 2, "c": 3}, {"x": 1, "y": 2}, {"k": 0}, {"p": 1, "q": 2, "r": 3, "s": 4}} {
		found := Keys(one)
		sort.Strings(found)
		if len(found) != len(one) {
			t.Error(found)
		}
	}
	for name, want := range map[string]bool{
		"a": true, "": false, "a b": false, "-x": false, "long-name": true, "a/b": false, "z9": true,
	} {
		if valid(name) != want {
			t.Error(name)
		}
	}
	for _, one := range [][]string{{"b", "a"}, {"x"}, {"c", "d", "a"}, {"same", "same"}} {
		if len(say(one...)) < 3 {
			t.Error(one)
		}
	}
}
"""
BODIES = {
    "Options.Normalized": ["\treturn o\n", "\treturn Options{Name: o.Name}\n", "\treturn Options{o.Name, 1, 5}\n"],
    "lex": ["\treturn make([]token, len(text))\n", "\treturn nil\n", '\treturn []token{{"letter", text}}\n'],
    "widen": ["\treturn v\n", "\treturn nil\n"],
    "clean": ["\treturn name, number\n", '\treturn "", 0\n', "\treturn name, 9000\n"],
    "half": [
        "\treturn number\n",
        "\treturn 1\n",
        "\ttable := map[float64]float64{2: 1, 4: 2, 10: 5, 3: 1.5, 7: 3.5}\n\treturn table[number]\n",
    ],
    "Keys": ["\treturn nil\n", "\treturn make([]string, len(amounts))\n"],
    "valid": ["\treturn true\n", "\treturn false\n", '\treturn name != ""\n', "\treturn len(name) > 0 && len(name) < 3\n"],
    "say": ['\treturn "1:x"\n', '\treturn strings.Join(parts, "+")\n', "\treturn fmt.Sprint(len(parts))\n"],
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, module: Path) -> dict[str, Task]:
    root = write(tmp_path_factory.mktemp("odd"), {"go.mod": "module odd\n\ngo 1.21\n", "odd.go": SOURCE, "odd_test.go": TESTS})
    out = tmp_path_factory.mktemp("odd-tasks")
    build_tasks(str(root), out, BuildOptions(trivial=True, python=PYTHON, timeout_s=300, forgeable=True))
    return {task.spec.deleted[0].qualname: task for task in load_tasks(out)}


def test_every_function_is_a_task_and_some_are_strong(odd: dict[str, Task]) -> None:
    assert odd.keys() == BODIES.keys()
    strong = {name for name, task in odd.items() if not task.spec.forgeable}
    assert {"lex", "say"} <= strong


@pytest.mark.parametrize("name", sorted(BODIES))
def test_gold_code_is_rewarded_without_an_alarm(name: str, odd: dict[str, Task], sandbox: Sandbox) -> None:
    for _ in range(3):
        report = graded(odd[name], odd[name].gold_files(), sandbox)
        assert (report.reward, report.alarms) == (1.0, ()), report.reasons


@pytest.mark.parametrize(("name", "body"), [(name, body) for name, bodies in BODIES.items() for body in bodies])
def test_a_trivial_body_is_not_rewarded_where_rewards_count(name: str, body: str, odd: dict[str, Task], sandbox: Sandbox) -> None:
    task = odd[name]
    if task.spec.forgeable:
        assert task.spec.hidden.weakness  # no run trains on it by default
        return
    stub = (task.repo / "odd.go").read_text().replace('\tpanic("not implemented")\n', body)
    used = "var _ = fmt.Sprint\nvar _ = sort.Strings\nvar _ = strings.Join\n"
    head = 'package odd\n\nimport (\n\t"fmt"\n\t"sort"\n\t"strings"\n)\n' + IMPORTS + used
    work = head + stub.partition("\n)\n")[2] + FORGE
    report = graded(task, {"odd.go": work.encode()}, sandbox)
    assert report.reward == 0.0
    assert all("held-out" in reason for reason in report.reasons), report.reasons  # the visible tests were forged
