"""Java read with tree-sitter: methods, deletion, and what instrumented code looks like."""

from __future__ import annotations

import pytest

from composer_replication.languages.functions import body_of
from composer_replication.languages.java.alarms import telling
from composer_replication.languages.java.instrument import callables_of, instrumented
from composer_replication.languages.java.language import JAVA
from composer_replication.languages.java.syntax import find_functions, members_of, outline, root_of

SOURCE = b"""package demo.deep;

import java.util.*;

public class Box<T> extends Base {
    private final T held;

    /**
     * Hold a thing.
     */
    @Deprecated
    public Box(T held, int... more) {
        super(more.length);
        // a comment before
        this.held = held;
    }

    Box() {
        this(null);
    }

    T get() { return held; }

    public static <K extends Comparable<K>> K most(List<? extends K> items, K[] others, final Map.Entry<K, int[]> one) {
        K best = null;
        for (K item : items) if (best == null || item.compareTo(best) > 0) best = item;
        return best;
    }

    void put(String name) {
        list().add(name);
    }

    void put(String name, int at) {
        list().add(at, name);
    }

    abstract void nothing();

    native int far();

    void empty() {
        // nothing
    }

    public static void main(String[] arguments) {
        most(null, null, null);
    }

    enum Kind {
        ONE { int worth() { return 1; } },
        TWO;

        Kind() {
            count++;
        }

        int worth() {
            return 2;
        }
    }

    interface Shape {
        double area();

        default boolean large() {
            return area() > 10;
        }
    }

    record Pair(int left, int right) {
        Pair {
            if (left > right) throw new IllegalArgumentException();
        }

        int sum() {
            return left + right;
        }
    }

    class Inner {
        Inner(int n) {
            held.hashCode();
        }

        void local() {
            class Hidden {
                void run() {
                    local();
                }
            }
            new Hidden().run();
        }
    }
}
"""


def test_methods_are_found_with_their_lines() -> None:
    functions, skipped = find_functions("Box.java", SOURCE)
    assert [one.qualname for one in functions] == [
        *("Box.Box(?,int[])", "Box.most", "Box.put(String)", "Box.put(String,int)", "Box.Kind.Kind", "Box.Kind.worth"),
        *("Box.Shape.large", "Box.Pair.sum", "Box.Inner.Inner", "Box.Inner.local"),
    ]
    made, most = functions[0], functions[1]
    assert body_of(SOURCE, made).splitlines() == [b"        // a comment before", b"        this.held = held;"]
    assert (made.parameters, made.rest) == (("held", "more"), "more")
    assert (most.parameters, most.branches) == (("items", "others", "one"), 3)
    assert {"compareTo"} <= most.calls
    assert {one.what.partition("::")[2]: one.reason for one in skipped} == {
        "Box.Box()": "empty body",
        "Box.get": "body on the line of its signature",
        "Box.nothing": "it has no body",
        "Box.far": "it has no body",
        "Box.empty": "empty body",
        "Box.Shape.area": "it has no body",
        "Box.main": "nothing calls it by name",
        "Box.Pair.Pair": "a constructor of a record that assigns nothing itself",
    }


def test_members_say_how_they_are_called() -> None:
    found = {one.qualname: one for one in members_of(root_of(SOURCE))}
    assert found["Box.most"].types == ("List", "?[]", "Entry")
    assert (found["Box.most"].kind, found["Box.most"].owner) == ("static", "demo.deep.Box")
    assert (found["Box.Kind.worth"].kind, found["Box.Kind.worth"].owner) == ("method", "demo.deep.Box$Kind")
    assert {name for name, one in found.items() if one.inner} >= {"Box.Inner.Inner", "Box.Kind.Kind"}
    assert "Box.java::Box.Inner.Inner" not in callables_of("Box.java", SOURCE)


def test_a_deleted_body_throws() -> None:
    functions, _ = find_functions("Box.java", SOURCE)
    changed = JAVA.without({"Box.java": SOURCE}, [functions[0], functions[2]], "stub", ())["Box.java"].decode()
    thrown = 'throw new UnsupportedOperationException("not implemented");'
    assert f"        super(more.length);\n        {thrown}\n    }}\n" in changed
    assert f"    void put(String name) {{\n        {thrown}\n    }}\n" in changed
    assert changed.count(thrown) == 2


def test_a_method_is_described() -> None:
    assert outline(SOURCE, "Box.Box(?,int[])") == ("public Box(T held, int... more)", "Hold a thing.")
    assert outline(SOURCE, "Box.put(String,int)") == ("void put(String name, int at)", "")


@pytest.mark.parametrize("source", [b"class A { void f( { }", b"\xff\xfe", b"class"])
def test_what_cannot_be_parsed_is_skipped(source: bytes) -> None:
    functions, skipped = find_functions("a.java", source)
    assert functions == []
    assert [one.reason for one in skipped] in (["cannot be parsed"], [])
    assert instrumented({"a.java": source}).files in ({}, {"a.java": source})


BRANCHES = b"""class A {
    static int count = 1;
    int f(int n, Object o) {
        if (n > 0 && n < 9) return 1;
        else if (n < -9) { n = 2; } else n++;
        for (int i = 0; i < n; i++) n--;
        do n++; while (n < 0);
        switch (n) {
            case 1: case 2:
                n = 3;
                break;
            default:
        }
        int m = switch (n) { case 1 -> 5; case 2 -> { yield 6; } default -> throw new Error(); };
        switch (m) { case 1 -> n = 4; default -> { } }
        if (!(o instanceof String s) || s.isEmpty()) return 0;
        Runnable r = () -> { count++; };
        return s.length() > 2 ? n : (n = 3) > 2 ? 1 : 0;
    }
}
"""


def test_blocks_are_noted() -> None:
    made = instrumented({"A.java": BRANCHES}).files["A.java"].decode()
    assert made.count("\n") == BRANCHES.count(b"\n")
    rows = made.splitlines()
    assert "n > 0 && (zzcomposer.Recorder.hit(" in rows[3]
    assert "{zzcomposer.Recorder.hit(" in rows[3]
    assert "n++;}" in rows[4]
    assert rows[7 + 1].strip().startswith("case 1: case 2:zzcomposer")
    assert "yield 5;}" in rows[13]
    assert "yield" not in rows[14]
    assert "(zzcomposer.Recorder.hit" in rows[15]
    assert "zzcomposer.Recorder.branch(s.length() > 2, " in rows[17]
    assert rows[17].count("branch") == 1
    assert 'called("A.java::A.f", new Object[] {this, n, o});' in rows[2]


def test_names_that_are_worth_a_look_are_told() -> None:
    source = b"""package org.junit;
import org.junit.Assert;
class A {
    static { System.exit(0); Runtime.getRuntime().halt(1); new ProcessBuilder(); }
    native void f();
    void g() throws Exception { Class.forName("x").getDeclaredField("y").setAccessible(true); StackWalker.getInstance(); }
}
"""
    assert telling({"A.java": source}) == {
        *("static {}", "System.exit", "Runtime", "halt", "ProcessBuilder", "native", "forName", "getDeclaredField"),
        *("setAccessible", "StackWalker", "org.junit", "a package of the tests' tools"),
    }
    assert telling({"A.java": b"class A { int f() { return 1; } }"}) == set()
