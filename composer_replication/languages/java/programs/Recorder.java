package zzcomposer;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Writes down what methods are called with, and which blocks of the code a test runs, a line each. */
public final class Recorder {
    private static final int MOST_CALLS = 150;
    private static final int LONGEST = 20_000;
    /** Calls of a method that are looked at: when none of the first can be written down, and at all. */
    private static final int MOST_IN_VAIN = 50;
    private static final int MOST_TRIED = 3000;

    private static final OutputStream OUT = open();
    private static final Map<String, int[]> COUNTS = new HashMap<>();
    private static final Set<String> KNOWN = new HashSet<>();
    private static final ThreadLocal<Boolean> BUSY = ThreadLocal.withInitial(() -> false);
    private static boolean[] blocks = new boolean[1024];
    private static String test = "";
    /** Nothing is written while held-out calls are made. */
    static boolean asking;

    private static OutputStream open() {
        String path = System.getenv("COMPOSER_RECORD");
        try {
            return path == null ? null : new FileOutputStream(path, true);
        } catch (IOException error) {
            return null;
        }
    }

    private static void write(Object line) {
        if (OUT != null && !asking) {
            try {
                OUT.write((Json.write(line) + "\n").getBytes(StandardCharsets.UTF_8));
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** Says what runs from here on, and writes down which blocks ran before. */
    public static synchronized void now(String next) {
        List<Object> numbers = take();
        if (!numbers.isEmpty()) {
            write(List.of("hits", test, numbers));
        }
        test = next;
    }

    static synchronized List<Object> take() {
        List<Object> numbers = new ArrayList<>();
        for (int n = 0; n < blocks.length; n++) {
            if (blocks[n]) {
                numbers.add(n);
            }
        }
        Arrays.fill(blocks, false);
        return numbers;
    }

    public static boolean hit(int number) {
        if (number >= blocks.length) {
            grow(number);
        }
        blocks[number] = true;
        return true;
    }

    private static synchronized void grow(int number) {
        if (number >= blocks.length) {
            blocks = Arrays.copyOf(blocks, Math.max(number + 1, 2 * blocks.length));
        }
    }

    public static boolean branch(boolean condition, int yes, int no) {
        hit(condition ? yes : no);
        return condition;
    }

    public static void called(String key, Object[] given) {
        if (asking || BUSY.get()) {
            return;
        }
        BUSY.set(true);
        try {
            note(key, given);
        } catch (RuntimeException | StackOverflowError odd) {
            return;
        } finally {
            BUSY.set(false);
        }
    }

    private static synchronized void note(String key, Object[] given) {
        int[] count = COUNTS.computeIfAbsent(key, one -> new int[2]);
        if (count[0] >= MOST_CALLS || count[1] >= (count[0] > 0 ? MOST_TRIED : MOST_IN_VAIN)) {
            return;
        }
        if (++count[1] == MOST_TRIED) {
            write(List.of("full", key));
        }
        List<Object> values = new ArrayList<>();
        for (Object one : given) {
            values.add(Values.given(one));
        }
        List<Object> line = List.of("call", key, values);
        String text = Json.write(line);
        boolean unwritable = text.contains("\"k\":\"opaque\"") || text.contains("\"k\":\"more\"") || text.contains("\"k\":\"error\"");
        if (!unwritable && text.length() <= LONGEST && KNOWN.add(text)) {
            count[0]++;
            write(line);
        }
    }
}
