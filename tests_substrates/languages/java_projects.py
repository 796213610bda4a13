"""Two small Java projects, written for these tests: one with Maven and JUnit 5, one with JUnit 4 and no build file.

The version of JUnit 5 is what the repository of Debian calls the one that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_LICENCE = "MIT License\n\nPermission is hereby granted, free of charge, to any person obtaining a copy\n"

MAVEN = {
    "LICENSE": _LICENCE,
    "pom.xml": """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>example</groupId>
  <artifactId>ledger</artifactId>
  <version>1.0</version>
  <properties><junit.version>debian</junit.version></properties>
  <dependencies>
    <dependency>
      <groupId>org.junit.jupiter</groupId>
      <artifactId>junit-jupiter</artifactId>
      <version>${junit.version}</version>
      <scope>test</scope>
    </dependency>
  </dependencies>
</project>
""",
    "src/main/java/ledger/Entry.java": """package ledger;

/** An amount in cents under a name. */
public record Entry(String name, long amount) {
    public static Entry parse(String line) {
        String[] parts = line.trim().split("\\\\s+");
        if (parts.length != 2) {
            throw new IllegalArgumentException("not an entry: " + line);
        }
        return new Entry(parts[0], cents(parts[1]));
    }

    private static long cents(String text) {
        int sign = text.startsWith("-") ? -1 : 1;
        String digits = text.replaceFirst("^[+-]", "");
        return sign * Math.round(Double.parseDouble(digits) * 100);
    }
}
""",
    "src/main/java/ledger/Ledger.java": """package ledger;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Predicate;

/** Keeps entries in the order in which they came. */
public class Ledger {
    /** What an amount does. */
    public enum Kind { IN, OUT, NOTHING }

    private final List<Entry> entries = new ArrayList<>();
    private final String owner;
    private long total;

    public Ledger(String owner) {
        this(owner, new ArrayList<>());
    }

    public Ledger(String owner, List<Entry> entries) {
        this.owner = owner.trim();
        for (Entry entry : entries) {
            add(entry);
        }
    }

    public Ledger add(Entry entry) {
        entries.add(entry);
        total += entry.amount();
        return this;
    }

    /**
     * Return the sum of all amounts under a name.
     */
    public long total(String name) {
        long sum = 0;
        for (Entry entry : entries) {
            if (entry.name().equals(name)) {
                sum += entry.amount();
            }
        }
        return sum;
    }

    public long total(Kind kind) {
        long sum = 0;
        for (Entry entry : entries) {
            sum += kind(entry.amount()) == kind ? Math.abs(entry.amount()) : 0;
        }
        return sum;
    }

    public static Kind kind(long amount) {
        if (amount == 0) {
            return Kind.NOTHING;
        }
        return amount > 0 ? Kind.IN : Kind.OUT;
    }

    public Map<String, Long> byName() {
        Map<String, Long> found = new TreeMap<>();
        for (Entry entry : entries) {
            found.merge(entry.name(), entry.amount(), Long::sum);
        }
        return found;
    }

    public Optional<Entry> largest() {
        Entry best = null;
        for (Entry entry : entries) {
            if (best == null || entry.amount() > best.amount()) {
                best = entry;
            }
        }
        return Optional.ofNullable(best);
    }

    public <T extends Comparable<T>> T most(List<T> items) {
        T best = null;
        for (T item : items) {
            if (best == null || item.compareTo(best) > 0) {
                best = item;
            }
        }
        return best;
    }

    public int count(Predicate<Entry> wanted) {
        int found = 0;
        for (Entry entry : entries) {
            found += wanted.test(entry) ? 1 : 0;
        }
        return found;
    }

    public String getOwner() { return owner; }

    /** A column of text. */
    public static class Column {
        private final int width;

        public Column(int width) {
            this.width = width;
        }

        public String pad(String text) {
            StringBuilder padded = new StringBuilder(text);
            while (padded.length() < width) {
                padded.insert(0, '.');
            }
            return padded.toString();
        }
    }
}
""",
    "src/test/java/ledger/LedgerTest.java": """package ledger;

import static org.junit.jupiter.api.Assertions.*;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.*;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class LedgerTest {
    private final Ledger ledger = new Ledger(" me ");

    @ParameterizedTest
    @CsvSource({"rent -12.50,rent,-1250", "wage +3000,wage,300000", "tea 2.2,tea,220", "x 0.01,x,1", "bus -2.40,bus,-240"})
    void parses(String line, String name, long amount) {
        assertEquals(new Entry(name, amount), Entry.parse(line));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "rent", "a b c"})
    void refuses(String line) {
        assertThrows(IllegalArgumentException.class, () -> Entry.parse(line));
    }

    @Test
    void kinds() {
        assertEquals(Ledger.Kind.IN, Ledger.kind(3));
        assertEquals(Ledger.Kind.OUT, Ledger.kind(-1));
        assertEquals(Ledger.Kind.NOTHING, Ledger.kind(0));
        assertEquals(Ledger.Kind.IN, Ledger.kind(70));
        assertEquals(Ledger.Kind.OUT, Ledger.kind(-400));
        assertEquals(Ledger.Kind.IN, Ledger.kind(12));
    }

    @Nested
    class Filled {
        @BeforeEach
        void fill() {
            ledger.add(new Entry("a", 3)).add(new Entry("b", -4)).add(new Entry("a", 8)).add(new Entry("c", 0));
        }

        @Test
        void sums() {
            assertEquals(11, ledger.total("a"));
            assertEquals(-4, ledger.total("b"));
            assertEquals(0, ledger.total("z"));
            assertEquals(11, ledger.total(Ledger.Kind.IN));
            assertEquals(4, ledger.total(Ledger.Kind.OUT));
            Ledger other = new Ledger("x", List.of(new Entry("q", 7), new Entry("r", 9), new Entry("q", 11)));
            assertEquals(18, other.total("q"));
            assertEquals(9, other.total("r"));
        }

        @Test
        void groups() {
            assertEquals(Map.of("a", 11L, "b", -4L, "c", 0L), ledger.byName());
            assertEquals(Map.of("q", 16L), new Ledger("x", List.of(new Entry("q", 7), new Entry("q", 9))).byName());
            assertEquals(Map.of(), new Ledger("x").byName());
        }

        @Test
        void largest() {
            assertEquals("a", ledger.largest().get().name());
            assertTrue(new Ledger("none").largest().isEmpty());
            assertEquals(new Entry("w", 12), new Ledger("x", List.of(new Entry("w", 12), new Entry("v", 2))).largest().get());
        }

        @Test
        void counts() {
            assertEquals(2, ledger.count(entry -> entry.amount() > 0));
        }
    }

    @Test
    void most() {
        assertEquals(9, ledger.most(List.of(1, 9, 3)));
        assertEquals("pear", ledger.most(List.of("fig", "pear", "apple")));
        assertEquals("me", ledger.getOwner());
    }

    @RepeatedTest(2)
    void pads() {
        assertEquals("...ab", new Ledger.Column(5).pad("ab"));
        assertEquals("abcdef", new Ledger.Column(3).pad("abcdef"));
        assertEquals(".x", new Ledger.Column(2).pad("x"));
    }

    @Test
    @Disabled
    void never() {
        fail();
    }
}
""",
}

PLAIN = {
    "LICENSE": _LICENCE,
    "src/words/Words.java": """package words;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Works on words. */
public final class Words {
    private Words() {
    }

    /** Count the words of a text. */
    public static Map<String, Integer> count(String text) {
        Map<String, Integer> found = new HashMap<>();
        for (String word : text.toLowerCase().split("[^a-z]+")) {
            if (!word.isEmpty()) {
                found.merge(word, 1, Integer::sum);
            }
        }
        return found;
    }

    public static int[] lengths(String... words) {
        int[] found = new int[words.length];
        for (int n = 0; n < words.length; n++) {
            found[n] = words[n].strip().length();
        }
        return found;
    }

    public static String join(List<String> words, char between) {
        StringBuilder out = new StringBuilder();
        for (String word : words) {
            if (out.length() > 0) out.append(between);
            out.append(Character.toUpperCase(word.charAt(0))).append(word.substring(1));
        }
        return out.toString();
    }

    public static int score(String word) {
        int total = 0;
        for (char letter : word.toCharArray()) {
            switch (letter) {
                case 'a': case 'e': case 'i': case 'o': case 'u':
                    total += 1;
                    break;
                case 'q':
                    total += 10;
                    break;
                default:
                    total += Character.isLetter(letter) ? 2 : 0;
            }
        }
        return total;
    }

    /** Words that are found by their first letters. */
    public static class Tree {
        final Map<Character, Tree> below = new HashMap<>();
        boolean end;

        public void insert(String word) {
            Tree here = this;
            for (char letter : word.toCharArray()) {
                here = here.below.computeIfAbsent(letter, one -> new Tree());
            }
            here.end = true;
        }

        public List<String> all() {
            List<String> found = new ArrayList<>();
            below.keySet().stream().sorted().forEach(letter -> {
                Tree inner = below.get(letter);
                if (inner.end) {
                    found.add(String.valueOf(letter));
                }
                for (String rest : inner.all()) {
                    found.add(letter + rest);
                }
            });
            return found;
        }
    }
}
""",
    "test/words/WordsTest.java": """package words;

import static org.junit.Assert.*;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.Ignore;
import org.junit.Test;

public class WordsTest {
    @Test
    public void counts() {
        assertEquals(Map.of("b", 2, "a", 1), Words.count("b a b"));
        assertEquals(Map.of("one", 1, "two", 2), Words.count("One two TWO"));
        assertEquals(Map.of("go", 3), Words.count("go Go gO"));
        assertEquals(Map.of("tea", 1, "for", 1, "two", 1), Words.count("tea, for two!"));
        assertEquals(Map.of(), Words.count("12 34"));
    }

    @Test
    public void measures() {
        assertArrayEquals(new int[] {1, 3}, Words.lengths("a", " abc "));
        assertArrayEquals(new int[] {2, 0, 4}, Words.lengths("ab ", "", "four"));
        assertArrayEquals(new int[] {5}, Words.lengths("seven"));
        assertArrayEquals(new int[] {}, Words.lengths());
    }

    @Test
    public void joins() {
        assertEquals("A-Bc", Words.join(List.of("a", "bc"), '-'));
        assertEquals("Tea+For+Two", Words.join(List.of("tea", "for", "two"), '+'));
        assertEquals("X", Words.join(Arrays.asList("x"), ','));
    }

    @Test
    public void inserts() {
        Words.Tree tree = new Words.Tree();
        tree.insert("ab");
        tree.insert("b");
        tree.insert("abc");
        assertEquals(List.of("ab", "abc", "b"), tree.all());
        assertTrue(tree.below.get('b').end);
    }

    @Ignore
    @Test
    public void later() {
        fail();
    }
}
""",
    "test/words/ScoreTest.java": """package words;

import static org.junit.Assert.assertEquals;

import java.util.Arrays;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.junit.runners.Parameterized;

@RunWith(Parameterized.class)
public class ScoreTest {
    @Parameterized.Parameters(name = "{0} has {1}")
    public static Iterable<Object[]> rows() {
        return Arrays.asList(new Object[][] {{"a", 1}, {"quiz", 14}, {"tea", 4}, {"x-y", 4}, {"", 0}, {"queue", 14}});
    }

    private final String word;
    private final int score;

    public ScoreTest(String word, int score) {
        this.word = word;
        this.score = score;
    }

    @Test
    public void scores() {
        assertEquals(score, Words.score(word));
    }
}
""",
    "test/words/OldTest.java": """package words;

import junit.framework.TestCase;

public class OldTest extends TestCase {
    public void testScore() {
        assertEquals(12, Words.score("qb"));
    }
}
""",
}
PROJECTS = {"maven": MAVEN, "plain": PLAIN}


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write a project's files."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root
