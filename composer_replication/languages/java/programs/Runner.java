package zzcomposer;

import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** Runs the tests that a plan names, and writes a line for each to a descriptor that it inherits. */
public final class Runner {
    /** Runs the tests of a class. */
    interface Framework {
        boolean takes(Class<?> tests);

        void run(Class<?> tests, Report report) throws Throwable;
    }

    private static final String[] FRAMEWORKS = {"zzcomposer.JUnit4", "zzcomposer.Jupiter"};

    public static void main(String[] arguments) throws Exception {
        List<String> plan = Files.readAllLines(Path.of(arguments[2]));
        OutputStream out = new FileOutputStream("/proc/self/fd/" + arguments[1], true);
        Set<String> done = new HashSet<>();
        for (String line : plan) {
            if (line.startsWith("done\t")) {
                done.add(base(line.substring(5)));
            }
        }
        List<Framework> frameworks = frameworks();
        Report report = new Report(out, arguments[0], done, arguments[3].equals("first"));
        for (String line : plan) {
            String[] parts = line.split("\t");
            if (!parts[0].equals("run") || report.stopped()) {
                continue;
            }
            Set<String> asked = new HashSet<>();
            for (int n = 3; n < parts.length; n++) {
                asked.add(base(parts[n]));
            }
            report.enter(parts[1], parts[2], asked);
            try {
                Class<?> tests = Class.forName(parts[2], true, Runner.class.getClassLoader());
                for (Framework framework : frameworks) {
                    if (framework.takes(tests)) {
                        framework.run(tests, report);
                        break;
                    }
                }
            } catch (ThreadDeath | OutOfMemoryError error) {
                throw error;
            } catch (Throwable error) {
                report.group("", error);
            }
        }
        Watch.now("");
        report.write("end", "", "", "");
        System.exit(0);
    }

    private static List<Framework> frameworks() throws Exception {
        List<Framework> found = new ArrayList<>();
        for (String name : FRAMEWORKS) {
            try {
                found.add((Framework) Class.forName(name).getDeclaredConstructor().newInstance());
            } catch (ClassNotFoundException absent) {
                continue;
            }
        }
        return found;
    }

    /** Returns an id without the number of a parameterised test. */
    static String base(String id) {
        return id.endsWith("]") ? id.substring(0, id.lastIndexOf('[')) : id;
    }

    /** Takes what happens to tests, and writes it down. */
    static final class Report {
        private final OutputStream out;
        private final String mark;
        private final Set<String> done;
        private final boolean first;
        private Set<String> asked = Set.of();
        private String file = "";
        private String top = "";
        private boolean failed;

        Report(OutputStream out, String mark, Set<String> done, boolean first) {
            this.out = out;
            this.mark = mark;
            this.done = done;
            this.first = first;
        }

        void enter(String file, String top, Set<String> asked) {
            this.file = file;
            this.top = top;
            this.asked = asked;
            Watch.now(file);
        }

        boolean stopped() {
            return first && failed;
        }

        /** Returns the id of a test of a class of this file; the number of a parameterised one is not part of it. */
        String id(String className, String method) {
            String inside = className.equals(top) ? "" : className.startsWith(top + "$")
                ? className.substring(top.length() + 1).replace('$', '.') + "."
                : className.substring(className.lastIndexOf('.') + 1).replace('$', '.') + ".";
            return file + "::" + inside + method.trim().replaceAll("\\s+", " ");
        }

        /** Returns whether a test is to run, by its id without a number. */
        boolean wants(String id) {
            return !done.contains(id) && (asked.isEmpty() || asked.contains(id));
        }

        void begun(String id) {
            Watch.now(id);
            write("begun", id, "", "");
        }

        void done(String id, String state, Throwable why) {
            failed |= state.equals("failed");
            write("done", id, state, why == null ? "" : said(why));
            Watch.now(file);
        }

        /** Says why no test of a class runs. */
        void group(String className, Throwable why) {
            failed = true;
            write("group", className.isEmpty() ? file + "::" : id(className, ""), "", said(why));
        }

        synchronized void write(String kind, String id, String state, String said) {
            String line = String.join("\t", mark, kind, id, state, said) + "\n";
            try {
                out.write(line.getBytes(StandardCharsets.UTF_8));
            } catch (java.io.IOException error) {
                Runtime.getRuntime().halt(3);
            }
        }

        private static String said(Throwable why) {
            String text;
            try {
                text = why.toString();
            } catch (Throwable odd) {
                text = why.getClass().getName();
            }
            text = text == null ? "" : text.replaceAll("\\s+", " ").trim();
            return text.length() > 500 ? text.substring(0, 500) : text;
        }
    }

    /** Tells the recorder, where the code has one, which test runs. */
    static final class Watch {
        private static final java.lang.reflect.Method NOW = find();

        private static java.lang.reflect.Method find() {
            try {
                return Class.forName("zzcomposer.Recorder").getMethod("now", String.class);
            } catch (ReflectiveOperationException absent) {
                return null;
            }
        }

        static void now(String id) {
            if (NOW != null) {
                try {
                    NOW.invoke(null, id);
                } catch (ReflectiveOperationException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
    }
}
