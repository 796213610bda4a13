"""A small Go module, written for these tests: pure functions, methods that change their receiver, a package below, subtests."""

from __future__ import annotations

import sys
from pathlib import Path

PYTHON = Path(sys.executable)
"""Of an environment that has a go command."""

FILES = {
    "go.mod": "module example.com/ledger\n\ngo 1.22\n",
    "LICENSE": "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n",
    "ledger.go": """// Package ledger keeps amounts under names.
package ledger

import (
	"errors"
	"sort"
	"strings"
)

// Entry is an amount under a name.
type Entry struct {
	Name   string
	Amount int
}

// Ledger holds entries in the order in which they came.
type Ledger struct {
	entries []Entry
	total   int
}

// Add puts an entry in.
func (l *Ledger) Add(name string, amount int) {
	l.entries = append(l.entries, Entry{Name: name, Amount: amount})
	l.total += amount
}

// Total returns the sum of all amounts.
func (l *Ledger) Total() int {
	return l.total
}

// Largest returns the name of the largest amount, the first of equal ones.
func (l *Ledger) Largest() (string, error) {
	if len(l.entries) == 0 {
		return "", errors.New("the ledger is empty")
	}
	best := l.entries[0]
	for _, entry := range l.entries[1:] {
		if entry.Amount > best.Amount {
			best = entry
		}
	}
	return best.Name, nil
}

// Parse reads "name=amount" pairs that are separated by commas.
func Parse(text string) ([]Entry, error) {
	found := []Entry{}
	for _, part := range strings.Split(text, ",") {
		name, amount, good := strings.Cut(strings.TrimSpace(part), "=")
		if !good || name == "" {
			return nil, errors.New("not a pair: " + part)
		}
		number, failed := digits(amount)
		if failed != nil {
			return nil, failed
		}
		found = append(found, Entry{Name: name, Amount: number})
	}
	return found, nil
}

func digits(text string) (int, error) {
	number := 0
	if text == "" {
		return 0, errors.New("no digits")
	}
	for _, letter := range text {
		if letter < '0' || letter > '9' {
			return 0, errors.New("not a digit: " + string(letter))
		}
		number = number*10 + int(letter-'0')
	}
	return number, nil
}

// Names returns the names in order, each once.
func Names(entries ...Entry) []string {
	seen := map[string]bool{}
	found := []string{}
	for _, entry := range entries {
		if !seen[entry.Name] {
			seen[entry.Name] = true
			found = append(found, entry.Name)
		}
	}
	sort.Strings(found)
	return found
}
""",
    "ledger_test.go": """package ledger

import (
	"reflect"
	"testing"
)

func TestAdd(t *testing.T) {
	ledger := &Ledger{}
	ledger.Add("a", 3)
	ledger.Add("b", 4)
	if ledger.Total() != 7 {
		t.Fatalf("total is %d", ledger.Total())
	}
}

func TestAddMore(t *testing.T) {
	ledger := &Ledger{}
	for _, amount := range []int{5, 2, 9, 1, 12} {
		ledger.Add("x", amount)
	}
	if ledger.Total() != 29 {
		t.Error("the total is wrong")
	}
}

func TestLargest(t *testing.T) {
	for _, one := range []struct {
		amounts []int
		want    string
	}{{[]int{1, 2, 3}, "c"}, {[]int{3, 2, 1}, "a"}, {[]int{1, 5, 5}, "b"}, {[]int{7}, "a"}, {[]int{0, 4, 2, 1}, "b"}} {
		ledger := &Ledger{}
		for n, amount := range one.amounts {
			ledger.Add(string(rune('a'+n)), amount)
		}
		if found, failed := ledger.Largest(); found != one.want || failed != nil {
			t.Errorf("%v: %s", one.amounts, found)
		}
	}
	if _, failed := (&Ledger{}).Largest(); failed == nil {
		t.Error("an empty ledger has no largest")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]Entry{
		"a=1":         {{"a", 1}},
		"a=1, b=22":   {{"a", 1}, {"b", 22}},
		"x=100,y=2":   {{"x", 100}, {"y", 2}},
		"long=65, q=0": {{"long", 65}, {"q", 0}},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			found, failed := Parse(text)
			if failed != nil || !reflect.DeepEqual(found, want) {
				t.Errorf("%v %v", found, failed)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "a", "=3", "a=x", "a=1,b", "a="} {
		if _, failed := Parse(text); failed == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestNames(t *testing.T) {
	if found := Names(Entry{"b", 1}, Entry{"a", 2}, Entry{"b", 3}); !reflect.DeepEqual(found, []string{"a", "b"}) {
		t.Errorf("%v", found)
	}
	if found := Names(Entry{"q", 1}, Entry{"c", 2}, Entry{"z", 3}, Entry{"a", 0}); len(found) != 4 {
		t.Errorf("%v", found)
	}
}
""",
    "shout/shout.go": """// Package shout makes words loud.
package shout

import "strings"

// Loud returns the words in capitals with marks behind them.
func Loud(text string, marks int) string {
	words := strings.Fields(text)
	for n, word := range words {
		words[n] = strings.ToUpper(word)
	}
	return strings.Join(words, " ") + strings.Repeat("!", marks)
}
""",
    "shout/shout_test.go": """package shout_test

import (
	"testing"

	"example.com/ledger/shout"
)

func TestLoud(t *testing.T) {
	for text, want := range map[string]string{
		"a b": "A B!!", "hello  you": "HELLO YOU!!", "x": "X!!", "one two three": "ONE TWO THREE!!",
	} {
		if found := shout.Loud(text, 2); found != want {
			t.Errorf("%q", found)
		}
	}
	if shout.Loud("quiet", 0) != "QUIET" {
		t.Error("no mark was asked for")
	}
}
""",
}


def write(root: Path, files: dict[str, str] | None = None) -> Path:
    for path, text in (files or FILES).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root
